#!/usr/bin/env bash
# jq of PyPI 1.13.0: two communicators' hashes above 2^53 that differ in the last digit.
#
# Expected: the program keeps their digits, as jq does since 1.7, and Python gets what the program made.
# Seen:     within the program they are two (grouped, compared, as text); on the way out both become one rounded number.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv environment
environment/bin/pip install --quiet jq==1.13.0
environment/bin/python - <<'PYTHON' >seen
import jq
calls = '[{"comm": 13836129317120211713}, {"comm": 13836129317120211714}]'
for program in ("group_by(.comm) | length", "map(.comm | tostring)", "map(.comm)"):
    print(f"{program}:", jq.compile(program).input_text(calls).first())
print("text() of 9007199254740993:", jq.compile(".").input_text("9007199254740993").text())
print("9007199254740993 of Python:", jq.compile(".").input_value(9007199254740993).first())
PYTHON
diff seen - <<'SEEN' && echo "jq 1.13.0: as seen"
group_by(.comm) | length: 2
map(.comm | tostring): ['13836129317120211713', '13836129317120211714']
map(.comm): [13836129317120212992, 13836129317120212992]
text() of 9007199254740993: 9007199254740992
9007199254740993 of Python: 9007199254740992
SEEN
