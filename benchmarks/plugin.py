"""How long the tuner plugin's calls take and what a table of it costs: builds and runs csrc/plugin/check/bench.c.

python benchmarks/plugin.py [--json] [NVIDIAS_EXAMPLE.so]
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tuner import plugin

ROOT = Path(__file__).resolve().parent.parent
CHECKS = ROOT / "csrc" / "plugin" / "check"
OPENING_AIMS = {10000: ("   (aim: 5 ms)", "   (aim: 2048 KiB)"), 100000: ("   (aim: 50 ms)", "")}
AIMS_NS = {10: 14, 1000: 20, 10000: 28, 100000: 40}
FAILING, FAILING_NS = "ours, rows that cannot run", 100


def measure(example: str | None = None) -> dict[str, list[dict[str, Any]]]:
    """``calls``: plugin, rows, ns, least_ns; ``openings``: rows, init_ms, resident_kib, peak_kib. Medians of nine."""
    core = max(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as folder:
        program, counting_nothing = Path(folder) / "bench", Path(folder) / "counting_nothing.so"
        sources = [CHECKS / "bench.c", CHECKS / "source.c"]
        subprocess.run(["cc", "-std=c11", "-O2", "-rdynamic", *sources, "-ldl", "-o", program], check=True)
        without = ["cc", "-DCOUNTERS_COUNT_NOTHING", "@csrc/plugin.args", "-o", counting_nothing]
        subprocess.run(without, check=True, cwd=ROOT)
        command = [program, plugin.path(), counting_nothing, str(core), *([example] if example else [])]
        ran = subprocess.run(command, check=True, capture_output=True, text=True)
    figures: dict[str, list[dict[str, Any]]] = json.loads(ran.stdout)
    return figures


def main() -> None:
    words = [word for word in sys.argv[1:] if word != "--json"]
    figures = measure(*words)
    if "--json" in sys.argv[1:]:
        print(json.dumps(figures))
        return
    for call in figures["calls"]:
        aims = {"ours": AIMS_NS.get(call["rows"]), FAILING: FAILING_NS}
        aim = f"   (aim: {aims[call['plugin']]} ns)" if call["plugin"] in aims else ""
        print(
            f"getCollInfo, {call['plugin']}, {call['rows']} rows".ljust(58)
            + f" {call['ns']:10.1f} ns, least {call['least_ns']:.1f} ns{aim}"
        )
    for opening in figures["openings"]:
        aims = OPENING_AIMS.get(opening["rows"], ("", ""))
        what = f"init, {opening['rows']} rows"
        print(what.ljust(58) + f" {opening['init_ms']:10.2f} ms{aims[0]}")
        print(f"{what}: memory kept".ljust(58) + f" {opening['resident_kib']:10d} KiB{aims[1]}")
        print(f"{what}: memory at the most".ljust(58) + f" {opening['peak_kib']:10d} KiB")


if __name__ == "__main__":
    main()
