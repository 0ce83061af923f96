#!/usr/bin/env bash
# cupy-cuda12x 14.2.0: the extra that brings CUDA's libraries does not bring NCCL.
#
# Expected: pip install cupy-cuda12x[ctk] brings all that cupy loads, NCCL too: cupy.cuda.nccl is part of it.
# Seen:     the extra asks for seven libraries of the toolkit, and no extra for NCCL: cupy.cuda.nccl is there and empty, and
#           a warning asks for the wheel.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m pip download --quiet --no-deps --only-binary=:all: --python-version 3.11 --platform manylinux2014_x86_64 --platform manylinux_2_28_x86_64 --dest . cupy-cuda12x==14.2.0
python3 - <<'PYTHON' >seen
import glob, re, zipfile
wheel = zipfile.ZipFile(glob.glob("*.whl")[0])
metadata = wheel.read(next(name for name in wheel.namelist() if name.endswith("METADATA"))).decode()
print(*re.findall(r'^Requires-Dist: (.*); extra == .ctk.', metadata, re.M))
print("asks for NCCL:", "nvidia-nccl" in metadata)
print("has NCCL's module:", any(re.match(r"cupy_backends/cuda/libs/nccl\..*\.so", name) for name in wheel.namelist()))
PYTHON
diff seen - <<'SEEN' && echo "cupy-cuda12x 14.2.0: as seen"
cuda-toolkit[cublas,cudart,cufft,curand,cusolver,cusparse,nvrtc]==12.*
asks for NCCL: False
has NCCL's module: True
SEEN
