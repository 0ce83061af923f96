"""Which GPUs, libnccl and processes there are, and what opening them gives back where it fails."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tuner.base.errors import BadInput, BadMeasurement, MeasuringFailed
from tuner.bench import opened
from tuner.bench.backend import Options
from tuner.bench.gpu import opening
from tuner.bench.gpu.opening import allows_several, library_of, open_gpus
from tuner.bench.gpu.rendezvous import ALONE, RankAddress, Rendezvous
from tuner.scenario import Scenario
from tuner.times.measured.header import Header, Noted
from tuner.times.measured.samples import Measurements


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

    def gpus(*given: Any, **libraries: Any) -> str:
        opened.append((*given, libraries))
        return "the GPUs"

    monkeypatch.setattr(opening, "GpuBackend", gpus)
    monkeypatch.setattr(opening, "Nccl", lambda *given, **errors: (*given, errors))
    assert open_gpus(Options(2, library)) == "the GPUs"
    ((where, devices, options, libraries),) = opened
    assert (where, devices, options.library) == (met, [0, 0, 1, 1], library)
    assert libraries["forcing"] == "the forcing plugin"
    assert libraries["nccl"]({"NCCL_DEBUG": "INFO"}) == (library, {"NCCL_DEBUG": "INFO"}, {"cuda_error": str})
    assert not met.closed


def test_another_rank_serves_until_rank_0_is_done(monkeypatch: pytest.MonkeyPatch, met: Met, library: Path) -> None:
    served: list[str] = []
    there = RankAddress(1, 2, 1, "torchrun")
    monkeypatch.setattr(opening, "own_address", lambda: there)
    monkeypatch.setattr(
        opening, "GpuBackend", lambda *given, **libraries: SimpleNamespace(serve=lambda: served.append("to the end"))
    )
    assert open_gpus(Options(library=library)) is None
    assert served == ["to the end"]


def test_what_fails_leaves_the_other_ranks(monkeypatch: pytest.MonkeyPatch, met: Met, library: Path) -> None:
    def fails(*given: Any, **libraries: Any) -> None:
        raise MeasuringFailed("ncclCommInitRank returned 2")

    monkeypatch.setattr(opening, "GpuBackend", fails)
    with pytest.raises(MeasuringFailed, match="ncclCommInitRank"):
        open_gpus(Options(library=library))
    assert met.closed


def test_a_libnccl_that_knows_no_shared_gpus(met: Met, tmp_path: Path) -> None:
    older = tmp_path / "older.so"
    older.write_bytes(b"\x7fELF ... NCCL_ALGO\0")
    assert not allows_several(older)
    with pytest.raises(BadInput, match=r"older\.so refuses several ranks on one GPU: set ranks_per_gpu= 1"):
        open_gpus(Options(2, older))


def test_the_library_is_the_given_one_else_that_of_a_wheel(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, library: Path
) -> None:
    with pytest.raises(BadInput, match=r"none\.so does not exist: name a libnccl\.so\.2"):
        library_of(Options(library=tmp_path / "none.so"))
    monkeypatch.setattr(
        opening, "distribution", lambda wheel: SimpleNamespace(locate_file=lambda member: tmp_path / wheel)
    )
    with pytest.raises(BadInput, match="no libnccl: none of "):
        library_of(Options())
    last = tmp_path / opening.WHEELS[-1]
    last.write_bytes(library.read_bytes())
    assert library_of(Options()) == last


HEADER = Header(
    backend="gpu",
    scenario=Scenario("2.28.9", 1, topology=Path("/run/topology.xml"), environment={}),
    ranks=2,
    ranks_per_gpu=2,
    graphs_below_bytes=1 << 20,
    noted=Noted(library=Path("/lib/libnccl.so.2")),
)


def again(monkeypatch: pytest.MonkeyPatch, found: Any) -> tuple[Any, list[Options]]:
    asked: list[Options] = []

    def fresh(options: Options) -> Any:
        asked.append(options)
        return found

    monkeypatch.setattr(opened, "fresh", fresh)
    return opened.again(Path("run.jsonl"), Measurements(HEADER, ())), asked


def test_gpus_are_opened_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    same = SimpleNamespace(describe=lambda: replace(HEADER, noted=Noted(date="later", library=Path("/lib/elsewhere"))))
    backend, asked = again(monkeypatch, same)
    assert backend is same
    library, topology = Path("/lib/libnccl.so.2"), Path("/run/topology.xml")
    assert asked == [Options(2, library, topology, graphs_below_bytes=1 << 20, registered=False)]


def test_other_gpus_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    other = SimpleNamespace(describe=lambda: replace(HEADER, ranks=4), close=lambda: None)
    with pytest.raises(BadMeasurement, match="ranks"):
        again(monkeypatch, other)


def test_another_rank_has_served(monkeypatch: pytest.MonkeyPatch) -> None:
    assert again(monkeypatch, None)[0] is None


def test_a_backend_that_nobody_knows() -> None:
    measurements = Measurements(Header(backend="abacus"), ())
    with pytest.raises(
        BadMeasurement, match=r"^run\.jsonl: unknown backend 'abacus'; valid: gpu, double, simulated, no_gate="
    ):
        opened.again(Path("run.jsonl"), measurements)
