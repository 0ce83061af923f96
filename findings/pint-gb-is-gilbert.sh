#!/usr/bin/env bash
# pint 0.25.1: the speed of an adapter in Gb/s is no amount of data.
#
# Expected: 400 Gb/s are 50 GB/s: b is bit and B is byte, as adapters and switches say it.
# Seen:     Gb is the gilbert, a unit of magnetomotive force, and the conversion fails; Gbit is understood. Mb and Tb are
#           bars' and barns' cousins as well: only "bit" spelled out is a bit.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv environment
environment/bin/pip install --quiet pint==0.25.1
cat >program.py <<'PYTHON'
import pint
units = pint.UnitRegistry()
for text in ("400 Gbit/s", "400 Gb/s", "400000 Mb/s"):
    try:
        print(text, "=", units(text).to("GB/s"))
    except pint.DimensionalityError as error:
        print(text, "is in", error.units1)
PYTHON
environment/bin/python program.py >seen
diff seen - <<'SEEN' && echo "pint 0.25.1: as seen"
400 Gbit/s = 50.0 gigabyte / second
400 Gb/s is in gilbert / second
400000 Mb/s is in megabarn / second
SEEN
