#!/usr/bin/env bash
# NCCL 2.32.3, without a GPU: ncclGroupSimulateEnd of a group without calls succeeds and leaves the estimate as it was.
#
# Expected: success, and an estimated time of 0.
# Seen:     success, and estimatedTime is not written: what an earlier group left in the structure looks like an answer.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m pip download --quiet --no-deps --only-binary=:all: --platform manylinux_2_27_x86_64 --dest . nvidia-nccl-cu12==2.32.3
python3 - <<'PYTHON' >seen
import ctypes, glob, os, zipfile
zipfile.ZipFile(glob.glob("*.whl")[0]).extract("nvidia/nccl/lib/libnccl.so.2")
library = ctypes.CDLL(os.path.abspath("nvidia/nccl/lib/libnccl.so.2"))
class Information(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("magic", ctypes.c_uint), ("version", ctypes.c_uint), ("time", ctypes.c_float)]
version = ctypes.c_int()
library.ncclGetVersion(ctypes.byref(version))
of = Information(ctypes.sizeof(Information), 0x74685283, version.value, 123.0)
print("start", library.ncclGroupStart())
print("simulated end", library.ncclGroupSimulateEnd(ctypes.byref(of)), "time", of.time)
PYTHON
diff seen - <<'SEEN' && echo "NCCL 2.32.3: as seen"
start 0
simulated end 0 time 123.0
SEEN
