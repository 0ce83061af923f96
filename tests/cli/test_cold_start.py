"""How much Python does before it answers, counted and not timed: modules that it loads, code that it compiles."""

import subprocess
import sys

import pytest

COUNTED = """
import sys
counts = {"compile": 0}
sys.addaudithook(lambda event, given: counts.__setitem__(event, counts[event] + 1) if event in counts else None)
"""
PRINTED = """
ours = [name for name in sys.modules if name.startswith("tuner")]
print(counts["compile"], len(ours), *(name for name in given if name in sys.modules), file=sys.stderr)
"""
COMMAND = """
from tuner.cli import main
sys.argv = ["nccl-tuner", *{words!r}.split()]
try:
    main()
except SystemExit as ended:
    assert not ended.code
"""
# Each takes longer to load than a pick takes to answer, or reads what was compiled when it was read first.
SLOW = (
    "scipy",
    "rich",
    "polars",
    "cffi",
    "tomllib",
    "platformdirs",
    "pkg_resources",
    "matplotlib",
    "tuner.bench",
    "tuner.oracle",
)


@pytest.mark.parametrize(
    ("does", "compiled", "modules"),
    [
        (COMMAND.format(words="pick allreduce --machine dgx-h100 --nodes 2 --bytes 1M"), 200, 120),
        ("import nccl_tuner\nnccl_tuner.communicator('dgx-h100', nodes=2).pick('allreduce', 1 << 20)", 200, 120),
    ],
    ids=["pick", "communicator"],
)
def test_an_answer_loads_and_compiles_little(does: str, compiled: int, modules: int) -> None:
    """141 standard dataclasses compiled 740 methods; 413 modules were loaded, of which 139 are ours."""
    code = COUNTED + does + f"\ngiven = {SLOW!r}" + PRINTED
    for _ in range(2):  # the first one may find tables that are not compiled yet
        run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    found_compiled, found_modules, *slow = run.stderr.split()
    assert not slow
    assert int(found_compiled) <= compiled
    assert int(found_modules) <= modules


def test_a_server_for_agents_starts_without_numpy() -> None:
    """Which takes half of its start, and which the first answer loads."""
    code = COUNTED + COMMAND.format(words="mcp") + "given = ('numpy', 'mcp', *" + f"{SLOW!r})" + PRINTED
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
    )
    assert run.returncode == 0, run.stderr
    _, modules, *slow = run.stderr.split()
    assert not slow
    assert int(modules) <= 40


def test_a_budget_loads_no_library_for_fits() -> None:
    words = "budget docs/examples/nsight.sqlite --machine dgx-h100 --nodes 2"
    code = COUNTED + COMMAND.format(words=words) + "\ngiven = ('scipy',)" + PRINTED
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stderr.splitlines()[-1].split()[2:] == []
