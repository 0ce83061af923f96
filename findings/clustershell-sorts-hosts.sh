#!/usr/bin/env bash
# ClusterShell 1.10.1: a set of hosts has not the order in which it was written, so that ranks change places.
#
# Expected: NodeSet("n10,n9,n2") gives n10, n9, n2 when iterated, as python-hostlist and Slurm do: the order of ranks.
# Seen:     n2, n9, n10: sorted, also where only a bracket says another order; python-hostlist 2.3.0 keeps the order.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m pip install --quiet --target packages clustershell==1.10.1 python-hostlist==2.3.0
export PYTHONPATH=$folder/packages
python3 - <<'PYTHON' >seen
import hostlist
from ClusterShell.NodeSet import NodeSet
for written in "n10,n9,n2", "n[3,1-2]":
    print(written, "ClusterShell", *NodeSet(written), "python-hostlist", *hostlist.expand_hostlist(written))
PYTHON
diff seen - <<'SEEN' && echo "ClusterShell 1.10.1: as seen"
n10,n9,n2 ClusterShell n2 n9 n10 python-hostlist n10 n9 n2
n[3,1-2] ClusterShell n1 n2 n3 python-hostlist n3 n1 n2
SEEN
