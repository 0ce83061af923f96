#!/usr/bin/env bash
# prometheus_client 0.26.0: reading a counter of NVIDIA's exporter gives it another name.
#
# Expected: a program that reads DCGM_FI_DEV_PCIE_REPLAY_COUNTER and exposes it again keeps the name.
# Seen:     the parser itself puts _total behind the sample's name, also behind one that ends in _TOTAL; and of a name that
#           ends in _total it takes that off the family's name.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m pip install --quiet --target packages prometheus-client==0.26.0
export PYTHONPATH=$folder/packages
python3 - <<'PYTHON' >seen
from prometheus_client.parser import text_string_to_metric_families
names = "DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", "node_infiniband_port_data_received_bytes_total"
for name in names:
    for family in text_string_to_metric_families(f'# TYPE {name} counter\n{name}{{gpu="0"}} 3\n'):
        print(family.name, *(sample.name for sample in family.samples))
PYTHON
diff seen - <<'SEEN' && echo "prometheus_client 0.26.0: as seen"
DCGM_FI_DEV_PCIE_REPLAY_COUNTER DCGM_FI_DEV_PCIE_REPLAY_COUNTER_total
DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL_total
node_infiniband_port_data_received_bytes node_infiniband_port_data_received_bytes_total
SEEN
