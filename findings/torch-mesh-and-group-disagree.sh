#!/usr/bin/env bash
# PyTorch 2.13.0 (CPU build, gloo): the order of ranks in dist.new_group([2, 0]) and in DeviceMesh("cpu", [2, 1, 0]).
#
# Expected: rank 0 of each is the one that is listed first, and a mesh's local rank is the place in the mesh.
# Seen:     groups are sorted without a word, also those of a mesh: global rank 0 is at place 2 of the mesh, and its local
#           rank is 0, so that whoever cuts by one and gathers by the other mixes the parts up.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv environment
environment/bin/pip install --quiet torch==2.13.0+cpu numpy==2.4.6
cat >program.py <<'PYTHON'
import os, torch.distributed as dist, torch.multiprocessing as processes
from torch.distributed.device_mesh import DeviceMesh

def main(rank, ranks):
    dist.init_process_group("gloo", rank=rank, world_size=ranks, init_method=f"file://{os.getcwd()}/store")
    group = dist.new_group([2, 0])
    mesh = DeviceMesh("cpu", [2, 1, 0])
    told = f"rank {rank}: in the group {dist.get_rank(group)}, in the mesh {mesh.get_coordinate()[0]}, local {mesh.get_local_rank()}"
    open(f"said.{rank}", "w").write(told + "\n")
    dist.barrier()
    dist.destroy_process_group()

if __name__ == "__main__":
    processes.spawn(main, (3,), 3)
PYTHON
environment/bin/python program.py >log 2>&1 || { cat log; exit 1; }
cat said.0 said.1 said.2 >seen
diff seen - <<'SEEN' && echo "torch 2.13.0: as seen"
rank 0: in the group 0, in the mesh 2, local 0
rank 1: in the group -1, in the mesh 1, local 1
rank 2: in the group 1, in the mesh 0, local 2
SEEN
