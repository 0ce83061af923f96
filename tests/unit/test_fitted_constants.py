"""Files of fitted constants: read strictly, written exactly, and used by the emulator alone."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from tuner import release
from tuner.answers import picks as answer
from tuner.base.errors import BadConstants, BadInput
from tuner.base.names import Collective, DataType, Op
from tuner.base.records import to_json
from tuner.cli import everything as cli
from tuner.emulator import fitted_constants
from tuner.emulator.build import with_release
from tuner.emulator.fitted_constants import FittedConstants
from tuner.emulator.model import tables
from tuner.emulator.request import Request
from tuner.emulator.selection import Selection
from tuner.release import ALGORITHM_KEYS
from tuner.scenario import Scenario

NCCL = "2.28.9"
CONSTANTS: dict[str, Any] = {
    "base_latency_us": {"ring": {"ll": 60.0}, "nvls_tree": {"simple": 0.1 + 0.2}},
    "hw_latency_us": {"net": {"tree": {"ll": 1 / 3, "simple": 20.0}}, "nvlink": {"nvls": {"simple": 5.0}}},
    "efficiency": {"tree": {"simple": 0.5, "ll128": 0.7}, "nvls_tree": {"simple": 0.25}},
    "ring_plateau": {"hopper": 1.7},
    "tree_correction": {"ll": [1 / (3 + index) for index in range(23)]},
    "cap_gbs": {"ll": {"volta": [38.0, 30.0, 20.0]}, "nvls_tree_per_channel": {"hopper": [0.0, 20.0, 10.0]}},
}
PROVENANCE = {
    "machine": "dgx-h100",
    "nodes": [1, 2],
    "command": 'nccl-tuner fit "a\\b" \x7f é',
    "holdout_mape_percent": 1 / 3,
    "measurements": [{"file": "a.jsonl", "sha256": "00"}],
}
HEAD = f'[layer]\nversion = 1\nnccl = "{NCCL}"\n'
FITTED = FittedConstants(NCCL, CONSTANTS, PROVENANCE)


def test_what_is_written_reads_back_with_the_same_bits(tmp_path: Path) -> None:
    path = tmp_path / "a.toml"
    fitted_constants.write(path, FITTED)
    assert fitted_constants.read(path) == replace(FITTED, file=str(path))
    assert fitted_constants.to_text(fitted_constants.read(path)) == path.read_text()


def test_fitted_constants_change_the_tables_as_the_changed_release_does() -> None:
    nccl = release.load(NCCL)
    names = {
        key: [*nccl.rules.bandwidth[ALGORITHM_KEYS[key]], "measured_efficiency"] for key in CONSTANTS["efficiency"]
    }
    by_hand = release.changed(nccl, {**CONSTANTS, "rules": {"bandwidth": names}})
    scenario = Scenario(NCCL, 2, machine="dgx-h100")
    ours, own = replace(scenario, fitted_constants=FITTED).communicator(), scenario.communicator()
    expected, plain = tables(with_release(own, by_hand)), tables(own)
    for name in ("latency_us", "bandwidth_gbs"):
        assert np.array_equal(getattr(tables(ours), name), getattr(expected, name)), name
        assert not np.array_equal(getattr(tables(ours), name), getattr(plain, name)), name
    request, sizes = Request(Collective.AllReduce, DataType.float32, Op.sum), [1 << power for power in range(3, 31)]
    picks = [Selection(each).pick(request, sizes) for each in (ours, with_release(own, by_hand), own)]
    for name in ("algorithm", "protocol", "time_us", "channels", "threads"):
        assert np.array_equal(getattr(picks[0], name), getattr(picks[1], name)), name
    assert not np.array_equal(picks[0].algorithm, picks[2].algorithm)
    share = tables(ours).bandwidth_gbs[Collective.AllReduce, 5, 2] / plain.bandwidth_gbs[Collective.AllReduce, 5, 2]
    assert share < 0.25  # the cap and the efficiency


@pytest.mark.parametrize("name", release.names())
def test_an_efficiency_scales_every_bandwidth_of_its_algorithm_alone(name: str) -> None:
    scenario = Scenario(name, 2, machine="dgx-a100")
    halved = FittedConstants(name, {"efficiency": {"ring": {"ll": 0.5}}}, {})
    own, ours = tables(scenario.communicator()), tables(replace(scenario, fitted_constants=halved).communicator())
    expected = own.bandwidth_gbs.copy()
    expected[:, 1, 0] *= np.float32(0.5)
    assert np.array_equal(ours.bandwidth_gbs, expected)
    assert np.array_equal(ours.latency_us, own.latency_us)


def test_no_constants_are_nccl() -> None:
    scenario = Scenario(NCCL, 2, machine="dgx-h100")
    request = Request(Collective.AllReduce, DataType.float32, Op.sum)
    (own,), (ours,) = (
        answer.from_emulator(each, request, [1 << 20])
        for each in (scenario, replace(scenario, fitted_constants=FittedConstants(NCCL, {}, {})))
    )
    made_with = to_json(ours)
    assert to_json(own) == {key: value for key, value in made_with.items() if key != "fitted"}
    assert made_with["fitted"]["nccl"] == NCCL


WRONG = {
    "version = 1\n[layer": "not TOML",
    "": "not fitted constants: no version = 1",
    "[layer]\nversion = 2": "not fitted constants: no version = 1",
    "layer = 3": "not fitted constants",
    '[layer]\nversion = 1\nnccl = "2.99.1"': "layer.nccl: no table for NCCL 2.99.1; valid: 2.",
    "[layer]\nversion = 1": "layer.nccl: no table for NCCL None",
    HEAD + "colour = 3": "layer.colour: unknown key; valid: version, nccl, machine",
    HEAD + "machine = 3": "layer.machine: 3; valid: str",
    HEAD + "[base_latency]\nring.ll = 1": "base_latency: unknown table; valid: base_latency_us",
    HEAD + "[base_latency_us]\nrong.ll = 1": "base_latency_us.rong: unknown key; valid: tree, ring",
    HEAD + "[base_latency_us]\nring.ll129 = 1": "base_latency_us.ring.ll129: unknown key; valid: ll, ll128, simple",
    HEAD + "[base_latency_us]\nring = 1": "base_latency_us.ring: 1; valid: a table of ll, ll128, simple",
    HEAD + "[hw_latency_us]\nring.ll = 1": "hw_latency_us.ring: unknown key; valid: nvlink, pci, net",
    HEAD + "[base_latency_us]\nring.ll = -1": "base_latency_us.ring.ll: -1; valid: a positive finite number",
    HEAD + "[base_latency_us]\nring.ll = 0": "base_latency_us.ring.ll: 0; valid: a positive",
    HEAD + "[base_latency_us]\nring.ll = nan": "base_latency_us.ring.ll: nan; valid",
    HEAD + "[base_latency_us]\nring.ll = inf": "base_latency_us.ring.ll: inf; valid",
    HEAD + "[base_latency_us]\nring.ll = 1e39": "base_latency_us.ring.ll: 1e+39; valid",
    HEAD + "[base_latency_us]\nring.ll = true": "base_latency_us.ring.ll: True; valid",
    HEAD + '[base_latency_us]\nring.ll = "6"': "base_latency_us.ring.ll: '6'; valid",
    HEAD + "[tree_correction]\nll = [1.0]": "tree_correction.ll: [1.0]; valid: a list of 23 numbers",
    HEAD + "[cap_gbs.ll]\nhopper = [1.0, 0.0, 1.0]": "cap_gbs.ll.hopper[1]: 0.0; valid",
    HEAD + "[cap_gbs.ll]\nhopper = 3": "cap_gbs.ll.hopper: 3; valid: a list of 3 numbers",
    HEAD + "[ring_plateau]\nfrom_bytes_per_channel_and_rank = 3": "ring_plateau.from_bytes_per_channel_and_rank: ",
    HEAD + "[rules]\npick = 3": "rules: unknown table",
    HEAD + "[efficiency]\nring.ll = 0.0": "efficiency.ring.ll: 0.0; valid",
}


@pytest.mark.parametrize("text", WRONG, ids=lambda text: WRONG[text][:40])
def test_a_bad_file_is_one_line_with_file_and_key(text: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(text)
    with pytest.raises(BadConstants) as error:
        fitted_constants.read(path)
    message = str(error.value)
    assert message.startswith(f"{path}: {WRONG[text]}")
    assert "\n" not in message


def test_any_bytes_are_constants_or_one_line(tmp_path: Path) -> None:
    path = tmp_path / "bytes.toml"
    whole = fitted_constants.to_text(FITTED).encode()
    rng = np.random.default_rng(3)
    for content in (b"\xff\xfe", b"a = " + b"[" * 5000, *(whole[:end] for end in rng.integers(0, len(whole), 60))):
        path.write_bytes(content)
        message = ""
        try:
            fitted_constants.read(path)
        except BadConstants as error:
            message = str(error)
        assert "\n" not in message
    with pytest.raises(BadConstants, match="No such file"):
        fitted_constants.read(tmp_path / "none.toml")


def test_constants_are_for_their_release_and_their_machine() -> None:
    with pytest.raises(BadInput, match=r"fitted to NCCL 2\.28\.9, not 2\.27\.7: use it with 2\.28\.9"):
        Scenario("2.27.7", 2, machine="dgx-h100", fitted_constants=FITTED).communicator()
    with pytest.raises(BadInput, match="measured on dgx-h100, not dgx-a100"):
        Scenario(NCCL, 2, machine="dgx-a100", fitted_constants=FITTED).communicator()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    fitted_constants.write(tmp_path / "a.toml", FITTED)
    return tmp_path / "a.toml"


SHAPE = ["--machine", "dgx-h100", "--nodes", "2"]


def test_answers_name_the_constants_they_were_made_with(path: Path) -> None:
    run = CliRunner()
    own = ["--nccl", NCCL]
    for verb in (["pick", "allreduce", "--bytes", "64M"], ["pick", "allreduce:64M*2"], ["table"]):
        with_constants = run.invoke(cli, [*verb, *SHAPE, "--constants", str(path)], catch_exceptions=False).output
        assert f"constants {path}" in " ".join(with_constants.split()), verb
        made = json.loads(run.invoke(cli, [*verb, *SHAPE, "--constants", str(path), "--json"]).output)
        plain = json.loads(run.invoke(cli, [*verb, *SHAPE, *own, "--json"]).output)
        several = next((key for key in ("picks", "cells") if key in made), None)
        record, plain_record = (each[several][0] if several else each for each in (made, plain))
        assert record["fitted"] == {"file": str(path), "nccl": NCCL, **PROVENANCE}
        assert "fitted" not in plain_record
        assert made != plain


def test_what_libnccl_answers_takes_no_constants(path: Path) -> None:
    for verb in (
        ["check", "allreduce"],
        ["table", "--libnccl"],
        ["pick", "allreduce", "--libnccl"],
        ["graphs", "--libnccl"],
    ):
        result = CliRunner().invoke(cli, [*verb, *SHAPE, "--constants", str(path)])
        assert isinstance(result.exception, BadInput), verb
        assert "libnccl computes with its own constants" in str(result.exception)
