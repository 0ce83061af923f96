#!/usr/bin/env bash
# nvidia-nccl-cu12 2.32.3: the wheel has nccl.h, but no libnccl.so for -lnccl.
#
# Expected: with -I and -L of the wheel's folders a program links by -lnccl, as with NVIDIA's packages of distributions.
# Seen:     the linker finds no libnccl: only libnccl.so.2 is there, so it has to be named in full, -l:libnccl.so.2.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m pip download --quiet --no-deps --only-binary=:all: --platform manylinux_2_27_x86_64 --dest . nvidia-nccl-cu12==2.32.3
python3 -c 'import glob, zipfile; zipfile.ZipFile(glob.glob("*.whl")[0]).extractall()'
printf 'int ncclGetVersion(int *);\nint main(void) { int version; return ncclGetVersion(&version); }\n' >program.c
links() { gcc program.c -L nvidia/nccl/lib "$1" -o program 2>errors && echo "$1 links" || echo "$1: $(grep -o 'cannot find -lnccl' errors | head -1)"; }
{
  find nvidia/nccl/lib -name '*libnccl.so*' -printf '%f\n'
  find nvidia/nccl/include -name 'nccl.h*' -printf '%f\n'
  links -lnccl
  links -l:libnccl.so.2
} >seen
diff seen - <<'SEEN' && echo "nvidia-nccl-cu12 2.32.3: as seen"
libnccl.so.2
nccl.h
-lnccl: cannot find -lnccl
-l:libnccl.so.2 links
SEEN
