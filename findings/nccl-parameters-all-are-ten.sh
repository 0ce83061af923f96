#!/usr/bin/env bash
# NCCL 2.32.3, without a GPU: NCCL_PARAM_DUMP_ALL=true, which is to include all parameters, adds three, none of tuning.
#
# Expected: ncclParamGetAllParameterKeys then names all variables that the library reads, NCCL_ALGO among them.
# Seen:     three more of logging and of the parameters themselves. A variable that the environment sets is said to come
#           from an environment plugin (set_by=EnvPlugin), though none is loaded.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m pip download --quiet --no-deps --only-binary=:all: --platform manylinux_2_27_x86_64 --dest . nvidia-nccl-cu12==2.32.3
cat >ask.py <<'PYTHON'
import ctypes, glob, os, zipfile
zipfile.ZipFile(glob.glob("*.whl")[0]).extract("nvidia/nccl/lib/libnccl.so.2")
library = ctypes.CDLL(os.path.abspath("nvidia/nccl/lib/libnccl.so.2"))
table, length = ctypes.POINTER(ctypes.c_char_p)(), ctypes.c_int()
library.ncclParamGetAllParameterKeys(ctypes.byref(table), ctypes.byref(length))
print(" ".join(sorted(table[each].decode() for each in range(length.value))), flush=True)
library.ncclParamDumpAll()
PYTHON
NCCL_PARAM_DUMP_ALL=false NCCL_ALGO=Ring python3 ask.py | head -1 | tr ' ' '\n' >some
NCCL_PARAM_DUMP_ALL=true NCCL_ALGO=Ring python3 ask.py >dump
head -1 dump | tr ' ' '\n' | comm -13 some - >seen
grep -c NCCL_ALGO dump >>seen || true
grep -o 'set_by=EnvPlugin' dump >>seen
diff seen - <<'SEEN' && echo "NCCL 2.32.3: as seen"
NCCL_NO_CACHE
NCCL_PARAM_DUMP_ALL
NCCL_WARN_ENABLE_DEBUG_INFO
0
set_by=EnvPlugin
SEEN
