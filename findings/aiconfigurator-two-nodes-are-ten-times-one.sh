#!/usr/bin/env bash
# aiconfigurator-core 0.12.0 (the model under NVIDIA's aiconfigurator): NCCL's time on numbers of GPUs that were not
# measured.
#
# Expected: times for 3 and 6 GPUs of an H100 node lie between those measured for 2, 4 and 8. Two nodes with an adapter
#           for each GPU take a little longer than one: a ring enters and leaves a node by all eight adapters, so large
#           calls keep most of their speed, and small ones pay some microseconds.
# Seen:     3 and 6 GPUs are refused, with an error about Intel's oneCCL. 9, 16 and 24 GPUs, which were not measured
#           either, are answered: the time of 8 GPUs times the ratio of the data sheet's bandwidths, 450 to 50 GB/s, at
#           every size, with a small factor for the number of ranks. An AllReduce of 1 KiB and one of 2 GiB both take
#           9.64 times as long on 16 GPUs as on 8, so the latter reaches a bus bandwidth of 49 GB/s.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv environment
environment/bin/pip install --quiet aiconfigurator-core==0.12.0
cat >program.py <<'PYTHON'
from aiconfigurator_core.sdk import common
from aiconfigurator_core.sdk.engine import _evaluate_single_op
from aiconfigurator_core.sdk.operations.communication import NCCL
from aiconfigurator_core.sdk.perf_database import get_database

database = get_database("h100_sxm", "trtllm", "current")
print("NCCL", database.system_spec["misc"]["nccl_version"])


def time_us(elements, gpus):
    """As the package's own operations ask its tables."""
    call = NCCL("call", 1.0, "all_reduce", elements, gpus, common.CommQuantMode.half)
    return 1000 * float(_evaluate_single_op(database, call, is_context=True, batch_size=1, s=1, x=1))


for gpus in (3, 6):
    try:
        print(gpus, time_us(1 << 20, gpus))
    except Exception as error:
        print(gpus, type(error).__name__, "OneCCL" in str(error))
for gpus in (9, 16, 24):
    print(gpus, *(f"{time_us(elements, gpus) / time_us(elements, 8):.2f}" for elements in (512, 1 << 20, 1 << 30)))
time = time_us(1 << 30, 16)
print("busbw", round(2 * 15 / 16 * (2 << 30) / time / 1000), "GB/s")
PYTHON
environment/bin/python program.py >seen 2>errors || { cat errors; exit 1; }
diff seen - <<'SEEN' && echo "aiconfigurator-core 0.12.0: as seen"
NCCL 2.27.3
3 PerfDataNotAvailableError True
6 PerfDataNotAvailableError True
9 9.14 9.14 9.14
16 9.64 9.64 9.64
24 9.86 9.86 9.86
busbw 49 GB/s
SEEN
