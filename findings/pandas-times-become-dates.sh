#!/usr/bin/env bash
# pandas 3.1.1: read_json turns a column of nanoseconds whose name ends in _time into dates.
#
# Expected: comm_time of 45,000,000 ns is a whole number, as it is in the file.
# Seen:     a date of 1971, since the name ends in _time and every value is above 31,536,000. With one smaller value in the
#           column all stay numbers, and under the name comm_ns they do as well.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m pip install --quiet --target packages pandas==3.1.1
export PYTHONPATH=$folder/packages
python3 - <<'PYTHON' >seen
import io, json, pandas
def kind(name, values):
    column = pandas.read_json(io.StringIO(json.dumps([{name: value} for value in values])))[name]
    return "date" if column.dtype.kind == "M" else column.dtype.name
print("comm_time", kind("comm_time", [45000000, 46000000]))
print("comm_time with a small one", kind("comm_time", [45, 46000000]))
print("comm_ns", kind("comm_ns", [45000000, 46000000]))
print("float", kind("out_of_place_time", [45000000.5, 46000000.5]))
PYTHON
diff seen - <<'SEEN' && echo "pandas 3.1.1: as seen"
comm_time date
comm_time with a small one int64
comm_ns int64
float date
SEEN
