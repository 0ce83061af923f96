"""Exports: what other programs read says what the emulator says, in their form, and whose times they are."""

import csv
import io
import itertools
import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import tuner
from tuner.base.names import Collective
from tuner.cli import everything

MIB = 1 << 20
NODE = ["--machine", "dgx-h100", "--nccl", "2.28.9"]


def exported(*words: str) -> str:
    result = CliRunner().invoke(everything, ["export", *words])
    assert result.exit_code == 0, result.output
    return result.stdout


def refused(*words: str) -> str:
    result = CliRunner().invoke(everything, ["export", *words])
    assert result.exit_code != 0
    return str(result.exception)


def parsed(text: str) -> dict[str, list[Any]]:
    """A text proto: every field's values, messages as dictionaries of their own."""
    words = iter(re.findall(r'"[^"]*"|[{}:]|[^\s{}:]+', re.sub(r"^#.*$", "", text, flags=re.M)))

    def message() -> dict[str, list[Any]]:
        fields: dict[str, list[Any]] = {}
        for name in words:
            if name == "}":
                break
            mark = next(words)
            assert mark in "{:", (name, mark)
            fields.setdefault(name, []).append(message() if mark == "{" else next(words).strip('"'))
        return fields

    return message()


@pytest.mark.parametrize("kind", ["xla", "xla-iota"])
def test_xla(kind: str) -> None:
    text = exported("--format", kind, *NODE, "--nodes", "2", "--bytes", "1M,64M")
    assert text.startswith("# 2 x dgx-h100, 8 GPUs each, NCCL 2.28.9; times predicted by NCCL's own model\n")
    (of_device,) = parsed(text)["entries"]
    assert of_device["key"] == ["sm_90"]
    entries = of_device["value"][0]["entries"]
    group = tuner.communicator("dgx-h100", nodes=2, nccl="2.28.9")
    opcodes = {"all-reduce": 16, "all-gather": 16, "reduce-scatter": 1}  # the output's part of the array, in ranks
    names = {"all-reduce": "allreduce", "all-gather": "allgather", "reduce-scatter": "reducescatter"}
    assert [entry["instruction"][0]["opcode"][0] for entry in entries] == [name for name in opcodes for _ in range(2)]
    for entry, size in zip(entries, [MIB, 64 * MIB] * 3, strict=True):
        (instruction,) = entry["instruction"]
        opcode = instruction["opcode"][0]
        assert int(instruction["shape"][0]["dimensions"][0]) * 4 * 16 == size * opcodes[opcode]
        assert ("dimensions" in instruction) == (opcode != "all-reduce")
        (devices,) = instruction["collective_device_list" if kind == "xla" else "iota_collective_device_list"]
        if kind == "xla":
            (devices,) = devices["iota_replica_group_list"]
        assert devices["num_devices_per_group"] == ["16"]
        time_us = tuner.estimate(names[opcode], size, group)
        assert int(entry["network_throughput_bytes_per_sec"][0]) == pytest.approx(size / time_us * 1e6, rel=1e-6)


def test_xla_of_calibrated_times_says_so() -> None:
    text = exported("allreduce", "--format", "xla", *NODE, "--bytes", "1M", "--time", "calibrated")
    assert "times calibrated to measured times, dgx-h100" in text.splitlines()[0]
    assert "valid" in refused("broadcast", "--format", "xla", *NODE)
    assert "valid" in refused("--format", "xla", *NODE, "--dtype", "float16")
    assert "--time both" in refused("--format", "xla", *NODE, "--time", "both")


def test_choices(tmp_path: Path) -> None:
    file = tmp_path / "choices.json"
    words = ["allreduce", "--format", "choices", *NODE, "--from", "1K", "--to", "1M"]
    assert exported(*words, "--out", str(file)) == ""
    found = json.loads(file.read_text())
    assert found == json.loads(exported(*words))
    assert (found["nccl"], found["ranks"], found["times"]) == ("2.28.9", 8, "predicted by NCCL's own model, in us")
    ranges = found["collectives"]["AllReduce"]
    assert (ranges[0]["from_bytes"], ranges[-1]["to_bytes"]) == (1024, MIB)
    assert all(a["to_bytes"] + 1 == b["from_bytes"] for a, b in itertools.pairwise(ranges))
    group = tuner.communicator("dgx-h100", nccl="2.28.9")
    for one in ranges:
        picks = group.pick("allreduce", [one["from_bytes"], one["to_bytes"]])
        assert picks.channels.tolist() == [one["channels"]] * 2
        assert picks.time_us.tolist() == pytest.approx(one["time_us"], rel=1e-6)
    assert "choices" in refused(*words, "--time", "calibrated")


def test_choices_of_other_buffers() -> None:
    words = ["allgather", "--format", "choices", *NODE, "--to", "4M"]
    plain, registered, window = (
        json.loads(exported(*words, "--buffers", kind)) for kind in ("plain", "registered", "window")
    )
    assert [each.get("buffers") for each in (plain, registered, window)] == [None, "registered", "window"]
    group = tuner.communicator("dgx-h100", nccl="2.28.9")
    edges = group.edges("allgather", high=4 * MIB, buffers="window")
    kernels = window["collectives"]["AllGather"]
    assert [one["from_bytes"] for one in kernels] == edges.from_bytes.tolist()
    assert [one["leaves_for"] for one in kernels] == list(edges.bypass_kernel)
    assert all(one["algorithm"] is None and one["time_us"][0] > 0 for one in kernels)
    assert all("leaves_for" not in one for one in registered["collectives"]["AllGather"])
    assert "valid with --buffers: choices" in refused("--format", "xla", *NODE, "--buffers", "registered")


def test_simai() -> None:
    text = exported("--format", "simai", *NODE, "--nvlink-gbs", "450", "--nics-gbs", "400")
    head, *rows = csv.reader(io.StringIO(text))
    assert head[:3] == ["Size", "1 Node(NVLinkx)", "2Node-16GPU(NIC)"]
    assert [int(row[0]) for row in rows] == [1 << power for power in range(24, 35)]
    assert {len(row) for row in rows} == {len(head)} == {13}
    for column, nodes, limit_gbs in ((1, 1, 450), (4, 8, 400)):
        group = tuner.communicator("dgx-h100", nodes=nodes, nccl="2.28.9")
        size = int(rows[6][0])
        busbw_gbs = size / tuner.estimate(Collective.AllReduce, size, group) / 1e3 * 2 * (group.ranks - 1) / group.ranks
        assert float(rows[6][column]) == pytest.approx(busbw_gbs / limit_gbs, abs=1e-4)
    assert "--nvlink-gbs" in refused("--format", "simai", *NODE)
    assert "more than 0" in refused("--format", "simai", *NODE, "--nvlink-gbs", "0", "--nics-gbs", "400")


def test_estimate() -> None:
    group = tuner.communicator("dgx-h100", nodes=2, nccl="2.28.9")
    assert tuner.estimate("allreduce", MIB, group) == group.pick("allreduce", MIB).time_us[0]
    assert tuner.estimate("allreduce", MIB, group, calibration=True) == group.calibrated("allreduce", MIB).time_us[0]
