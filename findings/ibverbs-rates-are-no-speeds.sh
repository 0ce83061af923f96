#!/usr/bin/env bash
# libibverbs 44.0 (Debian 12): the rates have other speeds than their names, and the name's speed is "no limit".
#
# Expected: IBV_RATE_200_GBPS and IBV_RATE_400_GBPS are 200000 and 400000 Mb/s, and back.
# Seen:     206250 (8 lanes of 25.78125) and 425000 (4 of 106.25): the signalling rate. A whole 200000 or 400000 gives rate 0,
#           IBV_RATE_MAX, where the older 10000 and 40000 give their own.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
apt-get download --quiet libibverbs1=44.0-2 libnl-3-200=3.7.0-0.2+b1 libnl-route-3-200=3.7.0-0.2+b1 >/dev/null 2>&1
for package in *.deb; do dpkg -x "$package" root; done
export LD_LIBRARY_PATH=$folder/root/usr/lib/x86_64-linux-gnu:$folder/root/lib/x86_64-linux-gnu
python3 - <<'PYTHON' >seen
import ctypes
library = ctypes.CDLL("libibverbs.so.1")
for name, rate in (("10", 3), ("40", 7), ("100", 16), ("200", 17), ("400", 21), ("800", 23)):
    print(name, "Gb/s is", library.ibv_rate_to_mbps(rate), "and back", library.mbps_to_ibv_rate(int(name) * 1000))
PYTHON
diff seen - <<'SEEN' && echo "libibverbs 44.0: as seen"
10 Gb/s is 10000 and back 3
40 Gb/s is 40000 and back 7
100 Gb/s is 103125 and back 0
200 Gb/s is 206250 and back 0
400 Gb/s is 425000 and back 0
800 Gb/s is 850000 and back 0
SEEN
