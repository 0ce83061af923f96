#!/usr/bin/env bash
# NCCL 2.22.3 and 2.32.3, without a GPU: what a mistyped NCCL_SOCKET_IFNAME is called.
#
# Expected: ncclSystemError (2): the system has no such interface.
# Seen:     2.22.3 says ncclInternalError (3), a fault of NCCL itself; 2.32.3 ncclInvalidUsage (5), one of the caller.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 - <<'PYTHON' >program.py
print('''import ctypes, os, sys
library, identity = ctypes.CDLL(os.path.abspath(sys.argv[1])), ctypes.create_string_buffer(128)
print(library.ncclGetUniqueId(identity))''')
PYTHON
for version in 2.22.3 2.32.3; do
  mkdir "$version"
  python3 -m pip download --quiet --no-deps --only-binary=:all: --platform manylinux_2_27_x86_64 \
    --platform manylinux2014_x86_64 --dest "$version" "nvidia-nccl-cu12==$version"
  (cd "$version" && python3 -c 'import glob, zipfile; zipfile.ZipFile(glob.glob("*.whl")[0]).extract("nvidia/nccl/lib/libnccl.so.2")')
done
unset "${!NCCL_@}"
for version in 2.22.3 2.32.3; do
  for interface in lo nothere0; do
    echo "$version $interface $(NCCL_SOCKET_IFNAME=$interface python3 program.py $version/nvidia/nccl/lib/libnccl.so.2 2>/dev/null | tail -1)"
  done
done >seen
diff seen - <<'SEEN' && echo "NCCL 2.22.3 and 2.32.3: as seen"
2.22.3 lo 0
2.22.3 nothere0 3
2.32.3 lo 0
2.32.3 nothere0 5
SEEN
