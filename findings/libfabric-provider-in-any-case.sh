#!/usr/bin/env bash
# libfabric 1.17.0 (Debian 12): FI_PROVIDER is compared without regard to case.
#
# Expected: FI_PROVIDER=TCP finds nothing, as libfabric's names are in small letters and its list is one of exact names.
# Seen:     TCP and Tcp find what tcp finds; a word that is no provider finds nothing (fi_getinfo: -61).
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
apt-get download --quiet libfabric-bin=1.17.0-3 libfabric1=1.17.0-3 libibverbs1 ibverbs-providers librdmacm1 libpsm-infinipath1 \
  libpsm2-2 libnuma1 libnl-3-200 libnl-route-3-200 libucx0 >/dev/null 2>&1
for package in *.deb; do dpkg -x "$package" root; done
ln -s "$(basename root/usr/lib/libpsm1/libpsm_infinipath.so.1.*)" root/usr/lib/libpsm1/libpsm_infinipath.so.1
export LD_LIBRARY_PATH=$folder/root/usr/lib/x86_64-linux-gnu:$folder/root/lib/x86_64-linux-gnu:$folder/root/usr/lib/libpsm1
for name in tcp TCP Tcp nonsense; do
  echo "$name: $(FI_PROVIDER=$name root/usr/bin/fi_info 2>&1 | sed -nE 's/^provider: //p; s/^(fi_getinfo.*)/\1/p' | sort -u | paste -sd' ')"
done >seen
diff seen - <<'SEEN' && echo "libfabric 1.17.0: as seen"
tcp: tcp tcp;ofi_rxm
TCP: tcp tcp;ofi_rxm
Tcp: tcp tcp;ofi_rxm
nonsense: fi_getinfo: -61
SEEN
