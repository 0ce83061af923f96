#!/usr/bin/env bash
# NCCL 2.32.3, without a GPU: the documented typed getters, and the one for strings, refuse NCCL_DEBUG.
#
# Expected: ncclParamGetI32 of NCCL_DEBUG=INFO gives 3, and with the variable unset the text is empty or a level's name.
# Seen:     every getter of a whole number and ncclParamGetStr answer ncclInvalidArgument (4): only ncclParamGet, which
#           copies four bytes, and ncclParamGetParameter, which makes a text, read it. Unset it reads "<unknown>".
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m pip download --quiet --no-deps --only-binary=:all: --platform manylinux_2_27_x86_64 --dest . nvidia-nccl-cu12==2.32.3
cat >ask.py <<'PYTHON'
import ctypes, glob, os, zipfile
zipfile.ZipFile(glob.glob("*.whl")[0]).extract("nvidia/nccl/lib/libnccl.so.2")
library = ctypes.CDLL(os.path.abspath("nvidia/nccl/lib/libnccl.so.2"))
handle = ctypes.c_void_p()
library.ncclParamBind(ctypes.byref(handle), b"NCCL_DEBUG")
text, length = ctypes.c_char_p(), ctypes.c_int()
library.ncclParamGetParameter(b"NCCL_DEBUG", ctypes.byref(text), ctypes.byref(length))
print("as text:", text.value.decode())
for name, kind in (("I8", ctypes.c_int8), ("I32", ctypes.c_int32), ("I64", ctypes.c_int64), ("U32", ctypes.c_uint32)):
    print(f"ncclParamGet{name}:", getattr(library, "ncclParamGet" + name)(handle, ctypes.byref(kind())))
print("ncclParamGetStr:", library.ncclParamGetStr(handle, ctypes.byref(text)))
raw = ctypes.create_string_buffer(16)
print("ncclParamGet:", library.ncclParamGet(handle, raw, 16, ctypes.byref(length)), length.value, "bytes,", raw.raw[0])
PYTHON
{ NCCL_DEBUG=INFO python3 ask.py; env -u NCCL_DEBUG python3 ask.py; } | grep -v "NCCL INFO" >seen
diff seen - <<'SEEN' && echo "NCCL 2.32.3: as seen"
as text: INFO
ncclParamGetI8: 4
ncclParamGetI32: 4
ncclParamGetI64: 4
ncclParamGetU32: 4
ncclParamGetStr: 4
ncclParamGet: 0 4 bytes, 3
as text: <unknown>
ncclParamGetI8: 4
ncclParamGetI32: 4
ncclParamGetI64: 4
ncclParamGetU32: 4
ncclParamGetStr: 4
ncclParamGet: 0 4 bytes, 0
SEEN
