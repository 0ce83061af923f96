"""The graphs that libnccl found on machines of the catalogue, as `tests.scripts.search_graphs --libnccl` wrote them."""

from functools import cache
from pathlib import Path

from tuner.oracle.conformance.capture import Captured, read

FOLDER = Path(__file__).parents[1] / "golden" / "graphs"


def names() -> list[str]:
    """The machines that libnccl was asked about; a machine may be in the catalogue without."""
    return sorted(file.stem for file in FOLDER.glob("*.toml"))


@cache
def of(machine: str) -> Captured:
    return read(FOLDER / f"{machine}.toml")
