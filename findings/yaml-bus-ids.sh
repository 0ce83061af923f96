#!/usr/bin/env bash
# PyYAML 6.0.4: some PCI bus ids of a machine's description become numbers.
#
# Expected: 0000:18:00.0 is a text, as 0000:1a:00.0 is.
# Seen:     a bus id without letters whose parts are below 60 is read as a number to the base of 60: 0000:18:00.0 is
#           1080.0, so that of the eight GPUs of a node some have a text and others a number.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m pip install --quiet --target packages pyyaml==6.0.4
export PYTHONPATH=$folder/packages
python3 - <<'PYTHON' >seen
import yaml
text = "gpus: [0000:18:00.0, 0000:2a:00.0, 0000:3a:00.0, 0000:5d:00.0, 0000:9a:00.0, 0000:60:00.0, 0000:51:00.0]"
print(yaml.safe_load(text)["gpus"])
PYTHON
diff seen - <<'SEEN' && echo "PyYAML 6.0.4: as seen"
[1080.0, '0000:2a:00.0', '0000:3a:00.0', '0000:5d:00.0', '0000:9a:00.0', '0000:60:00.0', 3060.0]
SEEN
