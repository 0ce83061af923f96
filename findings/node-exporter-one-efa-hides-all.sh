#!/usr/bin/env bash
# Prometheus' node exporter 1.5.0 (Debian 12): one adapter without the folder of counters takes away those of all.
#
# Expected: an EFA adapter, which has hw_counters alone, shows rx_bytes and tx_bytes, and the others are as before.
# Seen:     the whole collector ends with an error: not even the state of the InfiniBand adapter beside it is exported.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
apt-get download --quiet prometheus-node-exporter=1.5.0-1+b6 >/dev/null 2>&1
for package in *.deb; do dpkg -x "$package" root; done
export LD_LIBRARY_PATH=$folder/root/usr/lib/x86_64-linux-gnu:$folder/root/lib/x86_64-linux-gnu
port() { mkdir -p "sys/class/infiniband/$1/ports/1/$2"; cd "sys/class/infiniband/$1/ports/1"; echo "4: ACTIVE" >state
         echo "5: LinkUp" >phys_state; echo "400 Gb/sec (4X NDR)" >rate; cd "$folder"; }
port mlx5_0 counters
echo 1000 >sys/class/infiniband/mlx5_0/ports/1/counters/port_rcv_data
for file in board_id fw_ver hca_type; do echo 1 >sys/class/infiniband/mlx5_0/$file; done
metrics() {
  timeout 20 root/usr/bin/prometheus-node-exporter --path.sysfs="$folder/sys" --collector.disable-defaults \
    --collector.infiniband --web.listen-address=127.0.0.1:19117 >log 2>&1 &
  server=$!
  python3 - <<'PYTHON'
import time, urllib.request
for _ in range(50):
    try:
        text = urllib.request.urlopen("http://127.0.0.1:19117/metrics").read().decode()
        break
    except OSError:
        time.sleep(0.2)
print(*(line for line in text.splitlines() if line.startswith(("node_infiniband_port", "node_infiniband_rate", "node_scrape_collector_su"))), sep="\n")
PYTHON
  kill "$server"
  wait "$server" || true
}
metrics >seen
port rdmap0s31 hw_counters
echo 7 >sys/class/infiniband/rdmap0s31/ports/1/hw_counters/rx_bytes
echo 1 >sys/class/infiniband/rdmap0s31/fw_ver
metrics >>seen
diff seen - <<'SEEN' && echo "node exporter 1.5.0: as seen"
node_infiniband_port_data_received_bytes_total{device="mlx5_0",port="1"} 4000
node_infiniband_rate_bytes_per_second{device="mlx5_0",port="1"} 5e+10
node_scrape_collector_success{collector="infiniband"} 1
node_scrape_collector_success{collector="infiniband"} 0
SEEN
