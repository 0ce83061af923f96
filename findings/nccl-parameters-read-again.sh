#!/usr/bin/env bash
# NCCL 2.32.3, without a GPU: a parameter that was read follows a later setenv.
#
# Expected: ncclParamGetParameter keeps what it read first, as NCCL's variables are read once in a process.
# Seen:     NCCL_DEBUG is read from the environment again at each question; another one of the seven parameters,
#           NCCL_SET_THREAD_NAME, which the dump marks as cached, is not.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m pip download --quiet --no-deps --only-binary=:all: --platform manylinux_2_27_x86_64 --dest . nvidia-nccl-cu12==2.32.3
python3 - <<'PYTHON' >seen
import ctypes, glob, os, zipfile
zipfile.ZipFile(glob.glob("*.whl")[0]).extract("nvidia/nccl/lib/libnccl.so.2")
library = ctypes.CDLL(os.path.abspath("nvidia/nccl/lib/libnccl.so.2"))
process = ctypes.CDLL(None)
def read(key):
    text, length = ctypes.c_char_p(), ctypes.c_int()
    library.ncclParamGetParameter(key.encode(), ctypes.byref(text), ctypes.byref(length))
    return text.value.decode()
for key, first, second in (("NCCL_DEBUG", b"VERSION", b"WARN"), ("NCCL_SET_THREAD_NAME", b"0", b"1")):
    process.setenv(key.encode(), first, 1)
    before = read(key)
    process.setenv(key.encode(), second, 1)
    print(key, before, "then", read(key))
PYTHON
diff seen - <<'SEEN' && echo "NCCL 2.32.3: as seen"
NCCL_DEBUG VERSION then WARN
NCCL_SET_THREAD_NAME FALSE then FALSE
SEEN
