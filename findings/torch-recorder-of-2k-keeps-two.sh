#!/usr/bin/env bash
# PyTorch 2.13.0 (CPU build, gloo): TORCH_FR_BUFFER_SIZE=2k, as sizes are written elsewhere.
#
# Expected: an error that names the variable, or 2,000 entries.
# Seen:     what follows the digits is dropped without a word: the Flight Recorder keeps the last two calls, so that a dump
#           of a job that hangs has nothing to compare.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv environment
environment/bin/pip install --quiet torch==2.13.0+cpu numpy==2.4.6
cat >program.py <<'PYTHON'
import os, pickle, sys, torch, torch.distributed as dist
from torch._C import _distributed_c10d as c10d
dist.init_process_group("gloo", rank=0, world_size=1, init_method=f"file://{os.getcwd()}/{sys.argv[1]}")
for number in range(5):
    dist.all_reduce(torch.ones(number + 1))
entries = pickle.loads(c10d._dump_fr_trace())["entries"]
print(f"TORCH_FR_BUFFER_SIZE={sys.argv[1]}: {len(entries)} of 5 calls, sizes {[each['input_sizes'][0][0] for each in entries]}")
sys.stdout.flush()
os._exit(0)
PYTHON
for size in 2000 2k; do
  TORCH_FR_BUFFER_SIZE=$size timeout 300 environment/bin/python program.py $size 2>log || { cat log; exit 1; }
done >seen
diff seen - <<'SEEN' && echo "torch 2.13.0: as seen"
TORCH_FR_BUFFER_SIZE=2000: 5 of 5 calls, sizes [1, 2, 3, 4, 5]
TORCH_FR_BUFFER_SIZE=2k: 2 of 5 calls, sizes [4, 5]
SEEN
