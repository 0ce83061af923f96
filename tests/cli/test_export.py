"""Exports: what other programs read says what the emulator says, in their form, and whose times they are."""

import csv
import io
import itertools
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

import tuner
from tuner.answers.exports.choices import file_of, read_compiled
from tuner.base.errors import BadInput
from tuner.base.names import Collective
from tuner.cli import everything
from tuner.emulator.compiled import ROW, PickTable

MIB = 1 << 20
EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
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
    assert "remove --dtype" in refused("--format", "xla", *NODE, "--dtype", "float16")
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
    assert [one["bypass"] for one in kernels] == list(edges.bypass)
    assert all(one["algorithm"] is None and one["time_us"][0] > 0 for one in kernels)
    assert all("bypass" not in one for one in registered["collectives"]["AllGather"])
    assert "use --format choices" in refused("--format", "xla", *NODE, "--buffers", "registered")


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


PICKED_BYTES = [1, 4, 1000, 65536, 1 << 20, (1 << 30) + 7, 1 << 40]


@pytest.fixture(scope="module")
def compiled_picks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("picks") / "h100.picks"
    words = "export allreduce allgather --format compiled --machine dgx-h100 --nodes 2 --nccl 2.28.9 --out"
    exported(*words.split()[1:], str(out))
    return out


def expected_picks(collective: str) -> list[str]:
    picks = tuner.communicator("dgx-h100", nodes=2, nccl="2.28.9").pick(collective, PICKED_BYTES)
    columns = picks.bytes, picks.algorithm, picks.protocol, picks.channels, picks.threads, picks.time_us.astype(float)
    return [" ".join(map(str, row)) for row in zip(*(column.tolist() for column in columns), strict=True)]


def same_float32(line: str) -> str:
    *others, time_us = line.split()
    return " ".join([*others, str(float(np.float32(time_us)))])


def test_a_compiled_file_is_read_again(compiled_picks: Path) -> None:
    tables = read_compiled(compiled_picks)
    assert list(tables) == ["AllReduce", "AllGather"]
    found, _ = tables["AllReduce"].look_up(np.array(PICKED_BYTES, np.uint64))
    picks = tuner.communicator("dgx-h100", nodes=2, nccl="2.28.9").pick("allreduce", PICKED_BYTES)
    assert found.time_us.tolist() == picks.time_us.tolist()


def test_a_compiled_file_has_no_bytes_of_memory_in_it() -> None:
    dirty = np.frombuffer(b"\xff" * (16 * 5), ROW)  # as rows may be that NumPy has copied
    table = PickTable(np.arange(1, 7, dtype=np.uint64), dirty)
    content = np.frombuffer(file_of("", [("AllReduce", table)])[-16 * 5 :], np.uint8).reshape(5, 16)
    assert not content[:, 14:].any()
    assert (content[:, :14] == 0xFF).all()


@pytest.mark.parametrize("kept_bytes", [0, 7, 20, 40, 100, 3000])
def test_a_compiled_file_that_was_cut_off_is_refused(compiled_picks: Path, tmp_path: Path, kept_bytes: int) -> None:
    (tmp_path / "cut").write_bytes(compiled_picks.read_bytes()[:kept_bytes])
    with pytest.raises(BadInput, match=r"cut off|not a compiled file"):
        read_compiled(tmp_path / "cut")


@pytest.mark.parametrize("compiler", ["g++ -O1 -o", "rustc -o"])
def test_programs_of_the_page_read_a_compiled_file(compiled_picks: Path, tmp_path: Path, compiler: str) -> None:
    program, *words = compiler.split()
    if shutil.which(program) is None:
        pytest.skip(f"no {program}")
    source = EXAMPLES / ("read_picks.cc" if program == "g++" else "read_picks.rs")
    made = tmp_path / "read_picks"
    subprocess.run([program, *words, made, source], check=True, capture_output=True)
    for collective in ("AllReduce", "AllGather"):
        command = [made, compiled_picks, collective, *map(str, PICKED_BYTES)]
        printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        assert list(map(same_float32, printed.splitlines())) == expected_picks(collective)


def test_a_compiled_file_wants_a_name_and_a_table() -> None:
    assert "name the file to write with --out" in refused("allreduce", "--format", "compiled", *NODE)
    words = ["allreduce", "--format", "compiled", *NODE, "--buffers", "window", "--out", "never"]
    assert "a table of size ranges cannot hold the picks" in refused(*words)
