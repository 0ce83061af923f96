"""Measuring files to answers, from Python: what the verbs verify, fit and decide print is what these return."""

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from tests.support.simulated_runs import measured
from tuner.base.errors import BadInput, BadMeasurement
from tuner.base.names import Collective
from tuner.base.records import to_json
from tuner.calibration.workflow import fit, fit_alpha_beta
from tuner.cli import everything as cli
from tuner.emulator import fitted_constants
from tuner.measure.decide import decide
from tuner.measure.decision.gate import GateSettings
from tuner.measure.records.samples import Writer
from tuner.measure.verify import verify
from tuner.plugin.table.parse import read as read_table


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "run.jsonl"
    found = measured(5).comparison.measurements
    with Writer(path, found.header) as writer:
        for block in found.blocks:
            writer.add(block)
    return path


def printed(*words: str) -> object:
    return json.loads(CliRunner().invoke(cli, [*words, "--json"], catch_exceptions=False).stdout)


def test_verify(file: Path) -> None:
    calls = {(Collective.AllReduce, 1 << 20): 10.0}
    found = verify(str(file), histogram=calls)
    assert found.regret_mean == pytest.approx(np.mean([one.regret for one in found.sizes]))
    (only,) = found.files
    assert only.histogram is not None
    assert only.histogram.calls == 10
    assert to_json(verify([file])) == printed("verify", str(file))
    frame = found.to_pandas()
    assert list(frame["bytes"]) == [one.bytes for one in found.sizes]
    assert frame["regret"].mean() == pytest.approx(found.regret_mean)
    with pytest.raises(BadMeasurement, match="No such file"):
        verify(file.with_name("none.jsonl"))
    with pytest.raises(BadInput, match="no files"):
        verify([])


def test_fit(file: Path, tmp_path: Path) -> None:
    out = tmp_path / "pod.toml"
    found = fit(file, out=out)
    assert fitted_constants.read(out).constants == found.fit.tables
    assert "command" not in fitted_constants.read(out).provenance
    assert list(found.to_pandas()["name"]) == [one.name for one in found.fit.constants]
    assert 0 < len(found.fitted) < len(found.fit.constants)
    assert to_json(fit([file])).keys() == {*printed("fit", str(file))}


def test_fit_alpha_beta(file: Path, tmp_path: Path) -> None:
    out = tmp_path / "ab.table"
    found = fit_alpha_beta([file], cost_table=out)
    assert len(read_table(out).costs) == sum(one.known for one in found.fits) > 0
    assert to_json(found) == printed("fit", str(file), "--model", "alpha-beta")
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
