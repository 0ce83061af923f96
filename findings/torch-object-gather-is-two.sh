#!/usr/bin/env bash
# PyTorch 2.13.0 (the CPU build, gloo): gathering one object is two collectives.
#
# Expected: all_gather_object of a short text is one AllGather in a trace.
# Seen:     two, of the lengths and of the texts: a program that counts calls by its own source counts half.
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
    dist.all_gather_object([None], "abcdefgh")
profile.export_chrome_trace("trace.json")
events = [event for event in json.load(open("trace.json"))["traceEvents"] if event.get("ph") == "X"]
print("collectives", sum(event["name"] == "c10d::allgather_" for event in events))
dist.destroy_process_group()
PYTHON
GLOO_SOCKET_IFNAME=lo environment/bin/python program.py 2>log | grep -v USDT >seen || { cat log; exit 1; }
diff seen - <<'SEEN' && echo "torch 2.13.0: as seen"
collectives 2
SEEN
