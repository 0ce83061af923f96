#!/usr/bin/env bash
# nvidia-nccl-cu12 2.18.1 and 2.21.5: the wheel's tag promises glibc 2.5, the library in it wants 2.17.
#
# Expected: the tag of a manylinux wheel is the oldest glibc that its library starts on.
# Seen:     manylinux1 is glibc 2.5, and libnccl.so.2 has symbols of 2.17: pip installs it where it cannot be loaded.
#           The wheel of 2.32.3 says what its library wants.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
for version in 2.18.1 2.21.5 2.32.3; do
  python3 -m pip download --quiet --no-deps --only-binary=:all: --platform manylinux_2_27_x86_64 \
    --platform manylinux2014_x86_64 --platform manylinux1_x86_64 --dest . "nvidia-nccl-cu12==$version"
done
python3 - <<'PYTHON' >seen
import glob, re, zipfile
for name in sorted(glob.glob("*.whl")):
    library = zipfile.ZipFile(name).read("nvidia/nccl/lib/libnccl.so.2")
    wanted = {tuple(map(int, text.split(b"."))) for text in re.findall(rb"\0GLIBC_(2\.[0-9]+)(?=\0)", library)}
    tag = re.search(r"none-(.*)_x86_64", name)[1]
    print(name.split("-")[1], tag, "wants glibc", ".".join(map(str, max(wanted))))
PYTHON
diff seen - <<'SEEN' && echo "nvidia-nccl-cu12: as seen"
2.18.1 manylinux1 wants glibc 2.17
2.21.5 manylinux2014 wants glibc 2.17
2.32.3 manylinux_2_27 wants glibc 2.27
SEEN
