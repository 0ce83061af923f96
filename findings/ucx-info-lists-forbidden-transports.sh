#!/usr/bin/env bash
# UCX 1.13.1 (Debian 12): ucx_info -d lists transports that UCX_TLS forbids, and those of a mistyped name as well.
#
# Expected: with UCX_TLS=rcx, which is no transport, ucx_info -d warns or shows none.
# Seen:     tcp and shared memory are listed without a word, as without the variable. Only where a context is made (ucx_info
#           -e) is the name reported, and the context refused.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
apt-get download --quiet ucx-utils=1.13.1-1 libucx0=1.13.1-1 libnuma1=2.0.16-1 libibverbs1=44.0-2 librdmacm1=44.0-2 libnl-3-200=3.7.0-0.2+b1 libnl-route-3-200=3.7.0-0.2+b1 >/dev/null 2>&1
for package in *.deb; do dpkg -x "$package" root; done
export LD_LIBRARY_PATH=$folder/root/usr/lib/x86_64-linux-gnu:$folder/root/lib/x86_64-linux-gnu
{
  UCX_TLS=rcx root/usr/bin/ucx_info -d 2>&1 | grep -oE 'Transport: tcp|WARN.*' | sort -u
  UCX_TLS=rcx root/usr/bin/ucx_info -e -u t 2>&1 | grep -oE "transport 'rcx' is not available" || true
} >seen
diff seen - <<'SEEN' && echo "UCX 1.13.1: as seen"
Transport: tcp
transport 'rcx' is not available
SEEN
