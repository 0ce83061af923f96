#!/usr/bin/env bash
# PyTorch 2.13.0 (the CPU build) and ml_dtypes 0.5.3: what becomes of a number too large for float8.
#
# Expected: 448, the largest float8_e4m3fn, and 57344, the largest float8_e5m2: conversions saturate, in both packages.
# Seen:     PyTorch saturates e4m3fn and makes e5m2 infinite; ml_dtypes, which JAX has, makes e4m3fn NaN. A check of an
#           fp8 AllReduce whose reference is made by the other package sees faults that are none, or none that are.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv environment
environment/bin/pip install --quiet torch==2.13.0+cpu ml_dtypes==0.5.3 numpy==2.3.4
cat >program.py <<'PYTHON'
import ml_dtypes, numpy, torch
for name, values in (("float8_e4m3fn", [448.0, 464.0, 500.0]), ("float8_e5m2", [57344.0, 61440.0, 70000.0])):
    print(name, "torch", torch.tensor(values).to(getattr(torch, name)).float().tolist())
    print(name, "ml_dtypes", numpy.array(values, "float32").astype(getattr(ml_dtypes, name)).astype("float32").tolist())
PYTHON
environment/bin/python program.py >seen
diff seen - <<'SEEN' && echo "torch 2.13.0, ml_dtypes 0.5.3: as seen"
float8_e4m3fn torch [448.0, 448.0, 448.0]
float8_e4m3fn ml_dtypes [448.0, 448.0, nan]
float8_e5m2 torch [57344.0, inf, inf]
float8_e5m2 ml_dtypes [57344.0, inf, inf]
SEEN
