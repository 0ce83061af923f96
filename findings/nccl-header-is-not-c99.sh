#!/usr/bin/env bash
# nvidia-nccl-cu12 2.32.3: a C program with nccl.h needs three more wheels, and C11 where it is to be strict.
#
# Expected: nvidia-cuda-runtime-cu12, which has cuda_runtime.h, is what nccl.h lacks; with it a C99 program compiles with
#           -pedantic -Werror, as nccl.h is a C interface.
# Seen:     cuda_runtime.h includes crt/host_config.h, which the wheel of nvcc has, and cuda_fp16.h nv/target, which the
#           wheel of CCCL has, also in C. With all four -std=c99 -pedantic -Werror fails in CUDA's headers; C11 is fine.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
get() { python3 -m pip download --quiet --no-deps --only-binary=:all: --platform "$1" --dest wheels "$2"; }
get manylinux_2_27_x86_64 nvidia-nccl-cu12==2.32.3
get manylinux2014_x86_64 nvidia-cuda-runtime-cu12==12.9.79
get manylinux2014_x86_64 nvidia-cuda-nvcc-cu12==12.9.86
get manylinux2014_x86_64 nvidia-cuda-cccl-cu12==12.9.27
python3 - <<'PYTHON'
import glob, zipfile
for file in glob.glob("wheels/*.whl"):
    wheel = zipfile.ZipFile(file)
    wheel.extractall(".", [name for name in wheel.namelist() if "/include/" in name])
PYTHON
printf '#include <nccl.h>\nint main(void) { return 0; }\n' >program.c
compiles() { # a standard, further options, wheels
  local options=(-std="$1"); shift
  [ "$1" = strict ] && options+=(-pedantic -Werror); shift
  for wheel in "$@"; do options+=(-I "nvidia/$wheel/include"); done
  if gcc "${options[@]}" -c program.c -o program.o 2>errors; then echo compiles; else grep -oE "[a-z/_0-9]+(\.h)?: No such file|doesn.t support unnamed structs/unions" errors | head -1; fi
}
export LC_ALL=C
{
  echo "nccl: $(compiles c11 loose nccl)"
  echo "with the runtime: $(compiles c11 loose nccl cuda_runtime)"
  echo "with nvcc: $(compiles c11 loose nccl cuda_runtime cuda_nvcc)"
  for standard in c99 c11; do
    for how in loose strict; do
      echo "with CCCL, $standard, $how: $(compiles $standard $how nccl cuda_runtime cuda_nvcc cuda_cccl)"
    done
  done
} >seen
diff seen - <<'SEEN' && echo "nvidia-nccl-cu12 2.32.3: as seen"
nccl: cuda_runtime.h: No such file
with the runtime: crt/host_config.h: No such file
with nvcc: nv/target: No such file
with CCCL, c99, loose: compiles
with CCCL, c99, strict: doesn't support unnamed structs/unions
with CCCL, c11, loose: compiles
with CCCL, c11, strict: compiles
SEEN
