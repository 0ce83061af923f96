"""Measuring files to answers, from Python: what the verbs verify, fit and decide print is what these return."""

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import tuner
from tests.support.simulated_runs import measured
from tuner.api import measure
from tuner.base.errors import BadInput, BadMeasurement
from tuner.base.names import Collective
from tuner.base.records import to_json
from tuner.bench.decide import decide
from tuner.bench.decision.gate import GateSettings
from tuner.cli import everything as cli
from tuner.emulator import fitted_constants
from tuner.plugin.table.parse import read as read_table
from tuner.times.calibration.workflow import fit, fit_alpha_beta
from tuner.times.measured.samples import Writer
from tuner.times.verify import verify


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "run.jsonl"
    found = measured(5).comparison.measurements
    with Writer(path, found.header) as writer:
        for block in found.blocks:
            writer.add(block)
    return path


def printed(*words: str) -> dict[str, object]:
    """The record as the command prints it, without the version of the form."""
    found: dict[str, object] = json.loads(CliRunner().invoke(cli, [*words, "--json"], catch_exceptions=False).stdout)
    assert found.pop("nccl_tuner_json") == 1
    return found


def test_measure(tmp_path: Path) -> None:
    own, verbs = tmp_path / "own.jsonl", tmp_path / "verbs.jsonl"
    machine = tuner.communicator("dgx-h100", nodes=2, nccl="2.28.9")
    found = measure(
        "allreduce",
        out=own,
        simulated=machine,
        sizes=[1 << 16, 1 << 20],
        algorithms=["ring"],
        protocols=["LL", "Simple"],
        channels=[4],
        precision_percent=2,
        rounds=3,
        repeats=4,
        warmup=2,
        seed=7,
    )
    assert found is not None
    words = "allreduce --backend simulated --machine dgx-h100 --nodes 2 --nccl 2.28.9 --bytes 64K,1M --algorithms ring"
    more = "--protocols ll,simple --channels 4 --precision 2 --rounds 3 --repeats 4 --warmup 2 --seed 7"
    answer = printed("measure", *words.split(), *more.split(), "--out", str(verbs))
    assert own.read_bytes() == verbs.read_bytes()
    assert to_json(found) == {**answer, "file": str(own)}
    assert found.new_blocks == found.blocks > 0
    assert found.ended in ("precise", "rounds")
    assert list(found.results.to_pandas()["bytes"]) == [one.bytes for one in found.results]
    again = measure(["AllReduce"], out=str(own), simulated=machine, sizes=[1 << 16], rounds=3, seed=7)
    assert again is not None
    assert again.new_blocks == again.blocks - found.blocks
    assert {one.bytes for one in again.results} == {1 << 16}
    with pytest.raises(BadMeasurement, match="measured otherwise: seed 7 there, 8 now"):
        measure("allreduce", out=own, simulated=machine, seed=8)


@pytest.mark.parametrize(
    ("how", "complaint"),
    [
        ({"sizs": [8]}, "unknown sizs; valid: sizes, dtype"),
        ({"algorithms": ["three"]}, "unknown algorithm 'three'; did you mean Tree\\?; valid: Tree"),
        ({"rounds": 0}, "rounds 0: valid: 1 or more"),
        ({"precision_percent": 0}, "precision_percent 0: valid: 1e-06 or more"),
        ({"seed": -1}, "seed -1: valid: 0 or more"),
    ],
)
def test_measure_refuses(how: dict[str, object], complaint: str, tmp_path: Path) -> None:
    machine = tuner.communicator("dgx-h100", nodes=2, nccl="2.28.9")
    with pytest.raises(BadInput, match=complaint):
        measure("allreduce", out=tmp_path / "run.jsonl", simulated=machine, **how)  # type: ignore[arg-type]
    assert not (tmp_path / "run.jsonl").exists()


@pytest.mark.slow
def test_verify(file: Path) -> None:
    calls = {(Collective.AllReduce, 1 << 20): 10.0}
    found = verify(str(file), histogram=calls)
    assert found.regret_mean == pytest.approx(np.mean([one.regret for one in found.sizes]))
    (only,) = found.files
    assert only.histogram is not None
    assert only.histogram.calls == 10
    assert to_json(verify([file])) == printed("verify", str(file))
    frame = found.to_pandas()
    assert list(frame["bytes"]) == [one.call.bytes for one in found.sizes]
    assert frame["regret"].mean() == pytest.approx(found.regret_mean)
    with pytest.raises(BadMeasurement, match="No such file"):
        verify(file.with_name("none.jsonl"))
    with pytest.raises(BadInput, match="no files"):
        verify([])


@pytest.mark.slow
def test_fit(file: Path, tmp_path: Path) -> None:
    out = tmp_path / "pod.toml"
    found = fit(file, out=out)
    assert fitted_constants.read(out).constants == found.fit.tables
    assert "command" not in fitted_constants.read(out).provenance
    assert list(found.to_pandas()["name"]) == [one.name for one in found.fit.constants]
    assert 0 < len(found.fitted) < len(found.fit.constants)
    assert to_json(fit([file])).keys() == {*printed("fit", "constants", str(file))}


def test_fit_alpha_beta(file: Path, tmp_path: Path) -> None:
    out = tmp_path / "ab.table"
    found = fit_alpha_beta([file], cost_table=out)
    assert len(read_table(out).costs) == sum(one.known for one in found.fits) > 0
    assert to_json(found) == printed(
        "fit",
        "alpha-beta",
        str(file),
    )
    frame = found.to_polars()
    assert frame["alpha_us"].to_list() == [one.alpha_us for one in found.fits]
    assert frame["known"].to_list() == [one.known for one in found.fits]


def test_decide(file: Path, tmp_path: Path) -> None:
    out = tmp_path / "pod.table"
    found = decide(file, out=out, gate=GateSettings(rounds=6))
    assert found.kept
    assert len(read_table(out).decisions) == len(found.kept)
    assert "command" not in read_table(out).provenance
    assert found.regret_after < found.regret_before
    assert len(found.to_pandas()) == len(found.kept) + len(found.dropped)
    (tmp_path / "pod.table.ab.jsonl").unlink()
    assert to_json(found) == printed("decide", str(file), "--out", str(out), "--rounds", "6")
    assert decide(file, out=out, gate=None).kept[0].gain is None
