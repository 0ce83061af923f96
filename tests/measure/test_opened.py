"""The backend that a file of GPUs was measured with, once more."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tuner.base.errors import BadMeasurement
from tuner.bench import opened
from tuner.bench.backend import Options
from tuner.scenario import Scenario
from tuner.times.measured.header import Header, Noted
from tuner.times.measured.samples import Measurements

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
        BadMeasurement, match=r"^run\.jsonl: unknown backend 'abacus'; valid: gpu, double, simulated, `no_gate`"
    ):
        opened.again(Path("run.jsonl"), measurements)
