#!/usr/bin/env bash
# NCCL 2.32.3: one exported function has no pnccl twin and stands in no header of the wheel.
#
# Expected: each exported function ncclX has its twin pncclX, through which an interposer calls on, and a declaration.
# Seen:     all but ncclResetDebugInitInternal, which an interposer that wraps what the library exports cannot call on.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m pip download --quiet --no-deps --only-binary=:all: --platform manylinux_2_27_x86_64 --dest . nvidia-nccl-cu12==2.32.3
python3 - <<'PYTHON' >seen
import ctypes, glob, os, zipfile
zipfile.ZipFile(glob.glob("*.whl")[0]).extract("nvidia/nccl/lib/libnccl.so.2")
library = ctypes.CDLL(os.path.abspath("nvidia/nccl/lib/libnccl.so.2"))
import re
wheel = zipfile.ZipFile(glob.glob("*.whl")[0])
found = set(re.findall(rb"\0(p?nccl[A-Z][A-Za-z0-9]*)(?=\0)", open("nvidia/nccl/lib/libnccl.so.2", "rb").read(3 << 20)))
# A name that ends another one is not kept twice in the file: ncclX is the end of pncclX.
functions = {name for name in (each.decode().lstrip("p") for each in found) if hasattr(library, name)}
lonely = sorted(name for name in functions if not hasattr(library, "p" + name))
headers = "".join(wheel.read(name).decode() for name in wheel.namelist() if name.endswith(".h"))
print("more than 90 functions:", len(functions) > 90)
for name in lonely:
    print("without a twin:", name, "declared:", name in headers)
PYTHON
diff seen - <<'SEEN' && echo "NCCL 2.32.3: as seen"
more than 90 functions: True
without a twin: ncclResetDebugInitInternal declared: False
SEEN
