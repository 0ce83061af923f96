#!/usr/bin/env bash
# PyTorch 2.13.0 (the CPU build, gloo): DistributedDataParallel's AllReduces are larger than bucket_cap_mb.
#
# Expected: eight parameters of 10 MiB make buckets of two: 25 MiB is the limit.
# Seen:     a bucket is closed once it has reached the limit, so three go into one: 30 MiB. And the very first step
#           takes all 80 MiB at once: its AllReduces are not those of the job.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv environment
environment/bin/pip install --quiet torch==2.13.0+cpu numpy==2.4.6
cat >program.py <<'PYTHON'
import os, torch, torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
dist.init_process_group("gloo", rank=0, world_size=1, init_method=f"file://{os.getcwd()}/store")
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.all = torch.nn.ParameterList([torch.nn.Parameter(torch.zeros(10 << 18)) for _ in range(8)])
    def forward(self, x):
        return sum((each * x).sum() for each in self.all)
model = torch.nn.parallel.DistributedDataParallel(Model(), bucket_cap_mb=25)
sizes = []
def hook(state, bucket):
    sizes.append(bucket.buffer().numel() >> 18)
    return allreduce_hook(dist.group.WORLD, bucket)
model.register_comm_hook(None, hook)
for step in range(3):
    sizes.clear()
    model(torch.ones(1)).backward()
    print("step", step, "MiB", *sizes)
dist.destroy_process_group()
PYTHON
GLOO_SOCKET_IFNAME=lo environment/bin/python program.py 2>log >seen || { cat log; exit 1; }
diff seen - <<'SEEN' && echo "torch 2.13.0: as seen"
step 0 MiB 80
step 1 MiB 30 30 20
step 2 MiB 30 30 20
SEEN
