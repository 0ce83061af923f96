"""Which GPUs, libnccl and processes there are, and what opening them gives back where it fails."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tuner.base.errors import BadInput, MeasuringFailed
from tuner.bench.backend import Options
from tuner.bench.gpu import opening
from tuner.bench.gpu.opening import allows_several, library_of, open_gpus
from tuner.bench.gpu.rendezvous import ALONE, RankAddress, Rendezvous


class Met:
    def __init__(self) -> None:
        self.closed = False

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def library(tmp_path: Path) -> Path:
    path = tmp_path / "libnccl.so.2"
    path.write_bytes(b"\x7fELF ... NCCL_ALGO\0NCCL_MULTI_RANK_GPU_ENABLE\0")
    return path


@pytest.fixture
def met(monkeypatch: pytest.MonkeyPatch) -> Met:
    """Two GPUs, and nothing of CUDA, NCCL or other processes behind them."""
    met = Met()
    for name in opening.FORBIDDEN:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(opening, "own_address", lambda: ALONE)
    monkeypatch.setattr(opening, "Cuda", lambda: SimpleNamespace(count=2, error=str))
    monkeypatch.setattr(opening, "Forcing", lambda: "the forcing plugin")
    monkeypatch.setattr(Rendezvous, "meet", lambda here, limit_s: met)
    return met


def test_rank_0_gets_the_gpus_and_each_rank_its_own(monkeypatch: pytest.MonkeyPatch, met: Met, library: Path) -> None:
    opened: list[Any] = []

    def gpus(*given: Any) -> str:
        opened.append(given)
        return "the GPUs"

    monkeypatch.setattr(opening, "GpuBackend", gpus)
    monkeypatch.setattr(opening, "Nccl", lambda *given: given)
    assert open_gpus(Options(2, library)) == "the GPUs"
    ((where, devices, options, libraries),) = opened
    assert (where, devices, options.library) == (met, [0, 0, 1, 1], library)
    assert libraries.forcing == "the forcing plugin"
    assert libraries.nccl({"NCCL_DEBUG": "INFO"}) == (library, {"NCCL_DEBUG": "INFO"}, str)
    assert not met.closed


def test_another_rank_serves_until_rank_0_is_done(monkeypatch: pytest.MonkeyPatch, met: Met, library: Path) -> None:
    served: list[str] = []
    there = RankAddress(1, 2, 1, "torchrun")
    monkeypatch.setattr(opening, "own_address", lambda: there)
    monkeypatch.setattr(
        opening, "GpuBackend", lambda *given: SimpleNamespace(serve=lambda: served.append("to the end"))
    )
    assert open_gpus(Options(library=library)) is None
    assert served == ["to the end"]


def test_what_fails_leaves_the_other_ranks(monkeypatch: pytest.MonkeyPatch, met: Met, library: Path) -> None:
    def fails(*given: Any) -> None:
        raise MeasuringFailed("ncclCommInitRank returned 2")

    monkeypatch.setattr(opening, "GpuBackend", fails)
    with pytest.raises(MeasuringFailed, match="ncclCommInitRank"):
        open_gpus(Options(library=library))
    assert met.closed


def test_a_libnccl_that_knows_no_shared_gpus(met: Met, tmp_path: Path) -> None:
    older = tmp_path / "older.so"
    older.write_bytes(b"\x7fELF ... NCCL_ALGO\0")
    assert not allows_several(older)
    with pytest.raises(BadInput, match=r"older\.so refuses several ranks on one GPU; valid: `ranks_per_gpu` 1"):
        open_gpus(Options(2, older))


def test_the_library_is_the_given_one_else_that_of_a_wheel(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, library: Path
) -> None:
    with pytest.raises(BadInput, match=r"none\.so does not exist; valid: a libnccl\.so\.2"):
        library_of(Options(library=tmp_path / "none.so"))
    monkeypatch.setattr(
        opening, "distribution", lambda wheel: SimpleNamespace(locate_file=lambda member: tmp_path / wheel)
    )
    with pytest.raises(BadInput, match="no libnccl: none of "):
        library_of(Options())
    last = tmp_path / opening.WHEELS[-1]
    last.write_bytes(library.read_bytes())
    assert library_of(Options()) == last
