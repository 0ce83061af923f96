#!/usr/bin/env bash
# networkx 3.6.1: of 18 parallel links between two switches some functions count 18, others 1, and flows refuse them.
#
# Expected: the edge connectivity of two switches with 18 links between them is 18, and a minimum cut adds up capacities.
# Seen:     18 for the whole graph, 1 for the very same pair of nodes, one path without a shared link; the cut is refused,
#           and made into a simple graph, as the message's reader would, it has one link's capacity.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m pip install --quiet --target packages networkx==3.6.1
export PYTHONPATH=$folder/packages
python3 - <<'PYTHON' >seen
import networkx
graph = networkx.MultiGraph()
for _ in range(18):
    graph.add_edge("a", "b", capacity=25)
print("graph", networkx.edge_connectivity(graph))
print("pair", networkx.edge_connectivity(graph, "a", "b"))
print("paths", len(list(networkx.edge_disjoint_paths(graph, "a", "b"))))
try:
    print("cut", networkx.minimum_cut(graph, "a", "b"))
except networkx.NetworkXError as error:
    print("cut", error)
print("cut of the simple graph", networkx.minimum_cut_value(networkx.Graph(graph), "a", "b"))
PYTHON
diff seen - <<'SEEN' && echo "networkx 3.6.1: as seen"
graph 18
pair 1
paths 1
cut MultiGraph and MultiDiGraph not supported (yet).
cut of the simple graph 25
SEEN
