"""What libnccl itself takes for a pick of random sizes, where GPUs are simulated: benchmarks/libnccl_picks.c."""

import math
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path

import numpy as np
from elftools.elf.elffile import ELFFile

from tuner.base.numerics import SizeArray
from tuner.emulator.request import Request
from tuner.emulator.selection import Selection
from tuner.oracle import library
from tuner.oracle.api import Oracle
from tuner.scenario import Scenario

SOURCE = Path(__file__).with_name("libnccl_picks.c")
# By what their symbols begin with; another release may take other arguments.
FUNCTIONS = {
    "NCCL_TUNER_BENCH_PICK": "_ZL15topoGetAlgoInfoP8ncclCommP12ncclTaskCollmPPfP",
    "NCCL_TUNER_BENCH_TIME_OF": "_Z19ncclTopoGetAlgoTimeP8ncclCommiiimiPf",
}


def measure(scenario: Scenario, request: Request, sizes: SizeArray) -> tuple[float, float]:
    """Processor time of a pick with its time, channels and threads, ns: least and median of nine rounds."""
    with library.find(scenario.nccl).path.open("rb") as file:
        symbols = ELFFile(file).get_section_by_name(".symtab")
        there = {symbol.name: symbol["st_value"] for symbol in symbols.iter_symbols()}
    places = {
        variable: next(str(at) for name, at in there.items() if name.startswith(begin))
        for variable, begin in FUNCTIONS.items()
    }
    with tempfile.TemporaryDirectory() as folder:
        plugin, asked, result = (Path(folder, name) for name in ("libbenchmark.so", "sizes", "result"))
        subprocess.run(["cc", "-std=c11", "-O2", "-shared", "-fPIC", SOURCE, "-o", plugin], check=True)
        asked.write_bytes(sizes.tobytes())
        env = {**places, "NCCL_TUNER_BENCH_SIZES": str(asked), "NCCL_TUNER_BENCH_RESULT": str(result)}
        configuration = scenario.oracle_configuration()
        configuration = replace(configuration, plugin=plugin, env={**configuration.env, **env})
        with Oracle(configuration, timeout_s=600) as oracle:
            oracle.launch(request, [1 << 20])
        least, median, sum_us = map(float, result.read_text().split())
    picks = Selection(scenario.communicator()).pick(request, sizes)
    if not math.isclose(sum_us, picks.time_us.sum(dtype=np.float64), rel_tol=1e-12):
        raise SystemExit(f"{SOURCE}: what is timed are not this call's picks")
    return least, median
