#!/usr/bin/env bash
# SQLite 3.51.1: json_extract of a whole number above 2^63, such as a communicator's hash in the NVTX payloads (jsonText)
# of Nsight's SQLite exports.
#
# Expected: the same number, or an error.
# Seen:     a floating-point number, so that two hashes become one and a join or count by them mixes communicators, with
#           json_extract and with ->> alike; -> keeps the digits, as text.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv environment
environment/bin/pip install --quiet pysqlite3-binary==0.5.4.post2
environment/bin/python - <<'PYTHON' >seen
import pysqlite3
made = pysqlite3.connect(":memory:")
made.execute("CREATE TABLE NVTX_EVENTS (jsonText TEXT)")
for last in (3, 4):
    made.execute("INSERT INTO NVTX_EVENTS VALUES (?)", ['{"comm": 1383612931712021171%d}' % last])
print("SQLite", pysqlite3.sqlite_version)
for asked in ("json_extract(jsonText, '$.comm')", "jsonText ->> '$.comm'", "jsonText -> '$.comm'"):
    ((number,),) = made.execute(f"SELECT COUNT(DISTINCT {asked}) FROM NVTX_EVENTS")
    kind, first = made.execute(f"SELECT typeof({asked}), {asked} FROM NVTX_EVENTS").fetchone()
    print(f"{asked}: {number} of 2, {kind} {first}")
PYTHON
diff seen - <<'SEEN' && echo "SQLite 3.51.1: as seen"
SQLite 3.51.1
json_extract(jsonText, '$.comm'): 1 of 2, real 1.383612931712021e+19
jsonText ->> '$.comm': 1 of 2, real 1.383612931712021e+19
jsonText -> '$.comm': 2 of 2, text 13836129317120211713
SEEN
