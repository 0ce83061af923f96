"""Layers: read strictly, written exactly, and used by the emulator alone."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from tuner import release
from tuner.answers import picks as answer
from tuner.base.errors import BadInput, BadLayer
from tuner.base.names import Collective, DataType, Op
from tuner.cli import everything as cli
from tuner.emulator import fitted_constants as layer
from tuner.emulator.fitted_constants import Layer
from tuner.emulator.model import tables
from tuner.emulator.request import Request
from tuner.emulator.selection import Selection
from tuner.scenario import Scenario

NCCL = "2.28.9"
CONSTANTS = {
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
LAYER = Layer(NCCL, CONSTANTS, PROVENANCE)


def test_what_is_written_reads_back_with_the_same_bits(tmp_path: Path) -> None:
    path = tmp_path / "a.layer"
    layer.write(path, LAYER)
    assert layer.read(path) == replace(LAYER, file=str(path))
    assert layer.to_text(layer.read(path)) == path.read_text()


def test_a_layer_changes_the_tables_as_the_changed_release_does() -> None:
    nccl = release.load(NCCL)
    names = {key: [*nccl.table["rules"]["bandwidth"][key], "measured_efficiency"] for key in CONSTANTS["efficiency"]}
    by_hand = release.changed(nccl, {**CONSTANTS, "rules": {"bandwidth": names}})
    scenario = Scenario(NCCL, 2, machine="dgx-h100")
    ours, own = replace(scenario, layer=LAYER).communicator(), scenario.communicator()
    expected, plain = tables(replace(own, release=by_hand)), tables(own)
    for name in ("latency_us", "bandwidth_gbs"):
        assert np.array_equal(getattr(tables(ours), name), getattr(expected, name)), name
        assert not np.array_equal(getattr(tables(ours), name), getattr(plain, name)), name
    request, sizes = Request(Collective.AllReduce, DataType.float32, Op.sum), [1 << power for power in range(3, 31)]
    picks = [Selection(each).pick(request, sizes) for each in (ours, replace(own, release=by_hand), own)]
    for name in ("algorithm", "protocol", "time_us", "channels", "threads"):
        assert np.array_equal(getattr(picks[0], name), getattr(picks[1], name)), name
    assert not np.array_equal(picks[0].algorithm, picks[2].algorithm)
    share = tables(ours).bandwidth_gbs[Collective.AllReduce, 5, 2] / plain.bandwidth_gbs[Collective.AllReduce, 5, 2]
    assert share < 0.25  # the cap and the efficiency


@pytest.mark.parametrize("name", release.names())
def test_an_efficiency_scales_every_bandwidth_of_its_algorithm_alone(name: str) -> None:
    scenario = Scenario(name, 2, machine="dgx-a100")
    halved = Layer(name, {"efficiency": {"ring": {"ll": 0.5}}}, {})
    own, ours = tables(scenario.communicator()), tables(replace(scenario, layer=halved).communicator())
    expected = own.bandwidth_gbs.copy()
    expected[:, 1, 0] *= np.float32(0.5)
    assert np.array_equal(ours.bandwidth_gbs, expected)
    assert np.array_equal(ours.latency_us, own.latency_us)


def test_an_empty_layer_is_nccl() -> None:
    scenario = Scenario(NCCL, 2, machine="dgx-h100")
    request = Request(Collective.AllReduce, DataType.float32, Op.sum)
    (own,), (ours,) = (
        answer.from_emulator(each, request, [1 << 20])
        for each in (scenario, replace(scenario, layer=Layer(NCCL, {}, {})))
    )
    assert own == {key: value for key, value in ours.items() if key != "layer"}
    assert ours["layer"]["nccl"] == NCCL


WRONG = {
    "version = 1\n[layer": "not TOML",
    "": "not a layer: no version = 1",
    "[layer]\nversion = 2": "not a layer: no version = 1",
    "layer = 3": "not a layer",
    '[layer]\nversion = 1\nnccl = "2.99.1"': "layer.nccl: no table for NCCL 2.99.1; valid: 2.18.1",
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
def test_a_bad_layer_is_one_line_with_file_and_key(text: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.layer"
    path.write_text(text)
    with pytest.raises(BadLayer) as error:
        layer.read(path)
    message = str(error.value)
    assert message.startswith(f"{path}: {WRONG[text]}")
    assert "\n" not in message


def test_any_bytes_are_a_layer_or_one_line(tmp_path: Path) -> None:
    path = tmp_path / "bytes.layer"
    whole = layer.to_text(LAYER).encode()
    rng = np.random.default_rng(3)
    for content in (b"\xff\xfe", b"a = " + b"[" * 5000, *(whole[:end] for end in rng.integers(0, len(whole), 60))):
        path.write_bytes(content)
        message = ""
        try:
            layer.read(path)
        except BadLayer as error:
            message = str(error)
        assert "\n" not in message
    with pytest.raises(BadLayer, match="No such file"):
        layer.read(tmp_path / "none.layer")


def test_a_layer_is_for_its_release_and_its_machine() -> None:
    with pytest.raises(BadInput, match=r"fitted to NCCL 2\.28\.9, not 2\.27\.7; valid: 2\.28\.9"):
        Scenario("2.27.7", 2, machine="dgx-h100", layer=LAYER).communicator()
    with pytest.raises(BadInput, match="measured on dgx-h100, not dgx-a100"):
        Scenario(NCCL, 2, machine="dgx-a100", layer=LAYER).communicator()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    layer.write(tmp_path / "a.layer", LAYER)
    return tmp_path / "a.layer"


SHAPE = ["--machine", "dgx-h100", "--nodes", "2"]


def test_answers_name_the_layer_they_were_made_with(path: Path) -> None:
    run = CliRunner()
    own = ["--nccl", NCCL]
    for verb in (["pick", "allreduce", "--bytes", "64M"], ["group", "allreduce:64M*2"], ["table"]):
        with_layer = run.invoke(cli, [*verb, *SHAPE, "--layer", str(path)], catch_exceptions=False).output
        assert f"layer {path}" in " ".join(with_layer.split()), verb
        made = json.loads(run.invoke(cli, [*verb, *SHAPE, "--layer", str(path), "--json"]).output)
        plain = json.loads(run.invoke(cli, [*verb, *SHAPE, *own, "--json"]).output)
        record, plain_record = (each if isinstance(each, dict) else each[0] for each in (made, plain))
        assert record["layer"] == {"file": str(path), "nccl": NCCL, **PROVENANCE}
        assert "layer" not in plain_record
        assert made != plain


def test_what_libnccl_answers_takes_no_layer(path: Path) -> None:
    for verb in (["check", "allreduce"], ["oracle", "table"], ["oracle", "pick", "allreduce"], ["oracle", "graphs"]):
        result = CliRunner().invoke(cli, [*verb, *SHAPE, "--layer", str(path)])
        assert isinstance(result.exception, BadInput), verb
        assert "libnccl computes with its own constants" in str(result.exception)
