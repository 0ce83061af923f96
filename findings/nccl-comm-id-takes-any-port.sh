#!/usr/bin/env bash
# NCCL 2.32.3, without a GPU: NCCL_COMM_ID without a port, and with one that is none.
#
# Expected: ncclGetUniqueId returns ncclInvalidArgument, or a warning names the variable.
# Seen:     ncclSuccess and no warning: without a port it is 65535, of letters 0, and 99999 is 34463.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
unset "${!NCCL_@}"
python3 -m pip download --quiet --no-deps --only-binary=:all: --platform manylinux_2_27_x86_64 --dest . nvidia-nccl-cu12==2.32.3
cat >program.py <<'PYTHON'
import ctypes, os, struct
library, made = ctypes.CDLL(os.path.abspath("nvidia/nccl/lib/libnccl.so.2")), ctypes.create_string_buffer(128)
result = library.ncclGetUniqueId(made)
print("result", result, "port", *struct.unpack_from(">H", made.raw, 10))  # behind 8 bytes and the address family
PYTHON
python3 -c 'import glob, zipfile; zipfile.ZipFile(glob.glob("*.whl")[0]).extract("nvidia/nccl/lib/libnccl.so.2")'
for address in 127.0.0.1:50000 127.0.0.1 127.0.0.1:abc 127.0.0.1:99999; do
  NCCL_COMM_ID=$address NCCL_DEBUG=WARN python3 program.py >said 2>&1
  echo "$address: $(grep -c WARN said || true) warnings, $(grep result said)"
done >seen
diff seen - <<'SEEN' && echo "NCCL 2.32.3: as seen"
127.0.0.1:50000: 0 warnings, result 0 port 50000
127.0.0.1: 0 warnings, result 0 port 65535
127.0.0.1:abc: 0 warnings, result 0 port 0
127.0.0.1:99999: 0 warnings, result 0 port 34463
SEEN
