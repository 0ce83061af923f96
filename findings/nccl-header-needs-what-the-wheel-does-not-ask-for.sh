#!/usr/bin/env bash
# nvidia-nccl-cu12 2.32.3: the wheel ships nccl.h and asks for no package, yet nccl.h includes CUDA's headers.
#
# Expected: the wheel requires nvidia-cuda-runtime-cu12, whose header its own header includes.
# Seen:     it requires nothing (no Requires-Dist), and has no cuda_runtime.h: who compiles with what pip installed for it
#           meets a missing header.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m pip download --quiet --no-deps --only-binary=:all: --platform manylinux_2_27_x86_64 --dest . nvidia-nccl-cu12==2.32.3
python3 - <<'PYTHON' >seen
import glob, re, zipfile
wheel = zipfile.ZipFile(glob.glob("*.whl")[0])
names = wheel.namelist()
metadata = wheel.read(next(name for name in names if name.endswith("METADATA"))).decode()
print("requires:", re.findall(r"^Requires-Dist: .*", metadata, re.M))
header = wheel.read("nvidia/nccl/include/nccl.h").decode()
for included in re.findall(r'^#include [<"](cuda[^>"]*)[>"]', header, re.M):
    print(included, "in the wheel:", any(name.endswith("/" + included) for name in names))
PYTHON
diff seen - <<'SEEN' && echo "nvidia-nccl-cu12 2.32.3: as seen"
requires: []
cuda_runtime.h in the wheel: False
cuda_fp16.h in the wheel: False
cuda_bf16.h in the wheel: False
cuda_fp8.h in the wheel: False
SEEN
