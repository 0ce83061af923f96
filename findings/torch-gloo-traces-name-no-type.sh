#!/usr/bin/env bash
# PyTorch 2.13.0 (the CPU build, gloo): the profiler's trace of an AllReduce has neither its size nor its type.
#
# Expected: an event record_param_comms with dtype BFloat16 and the number of elements, as for NCCL.
# Seen:     no such event: c10d::allreduce_ and gloo:all_reduce stand there, without a type, a size or a group. A trace made
#           on a laptop is no example of one of a job.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv environment
environment/bin/pip install --quiet torch==2.13.0+cpu numpy==2.4.6
cat >program.py <<'PYTHON'
import json, os, torch, torch.distributed as dist
dist.init_process_group("gloo", rank=0, world_size=1, init_method=f"file://{os.getcwd()}/store")
with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
    dist.all_reduce(torch.ones(8, dtype=torch.bfloat16))
profile.export_chrome_trace("trace.json")
events = [event for event in json.load(open("trace.json"))["traceEvents"] if event.get("ph") == "X"]
print("record_param_comms", sum(event["name"] == "record_param_comms" for event in events))
for name in "c10d::allreduce_", "gloo:all_reduce":
    for event in events:
        if event["name"] == name:
            said = [key for key in event.get("args", {}) if any(word in key.lower() for word in ("nelems", "dtype", "group"))]
            print(name, "says", said)
dist.destroy_process_group()
PYTHON
GLOO_SOCKET_IFNAME=lo environment/bin/python program.py 2>log | grep -v USDT >seen || { cat log; exit 1; }
diff seen - <<'SEEN' && echo "torch 2.13.0: as seen"
record_param_comms 0
c10d::allreduce_ says []
gloo:all_reduce says []
SEEN
