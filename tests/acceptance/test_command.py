"""``nccl-tuner accept`` as a user meets it: formats, exit codes, JUnit, and results that are broken."""

import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support import nccl_tests_text
from tests.support.command_line import run
from tuner.base.errors import BadInput
from tuner.base.names import Collective, DataType, Op
from tuner.emulator.request import Request
from tuner.scenario.describe import describe
from tuner.times import measured
from tuner.times.acceptance.curves import CurveKind, Exchange
from tuner.times.acceptance.expected import Expectation
from tuner.times.acceptance.faults import Fault, Resource
from tuner.times.measured.header import Header, MeasuredRun
from tuner.times.measured.samples import Measurements, SampleBlock
from tuner.times.placement import ConfiguredShape

TABLE = measured.load("h100-8x__2.29.2__aiconfigurator")
HEALTHY = replace(
    TABLE,
    blocks=tuple(
        row for row in TABLE.blocks if row.gpus_per_node == 8 and row.point.name in ("allreduce", "allgather")
    ),
)
OTHER = [row for row in measured.load("a100-8x__2.27.3__aiconfigurator").blocks if row.gpus_per_node == 8]
ALL_REDUCE = [
    (row.point.bytes, row.median_us)
    for row in HEALTHY.blocks
    if row.point.name == "allreduce" and row.point.dtype is DataType.float16
]
MACHINE = ("--machine", "dgx-h100")


def accepted(tmp_path: Path, table: Measurements, *options: str, code: int = 0) -> dict[str, Any]:
    measured.write(tmp_path / "given.csv", table)
    found: dict[str, Any] = json.loads(
        run("accept", str(tmp_path / "given.csv"), *MACHINE, *options, "--json", code=code).stdout
    )
    assert found["pass"] is (code == 0)
    return found


def timed(change: Callable[[int, SampleBlock], float]) -> Measurements:
    rows = (replace(row, times_us=(change(at, row),)) for at, row in enumerate(HEALTHY.blocks))
    return replace(HEALTHY, blocks=tuple(rows))


def headed(**change: Any) -> Measurements:
    header: Header = replace(HEALTHY.header, **change)
    return replace(HEALTHY, header=header)


def problem(found: dict[str, Any], kind: str) -> dict[str, Any]:
    return next(each for each in found["problems"] if each["kind"] == kind)


def test_a_shipped_table_is_taken_by_name() -> None:
    found = json.loads(run("accept", TABLE.name, *MACHINE, "--json").stdout)
    assert found["pass"]
    assert {size["file"] for size in found["sizes"]} == {TABLE.name}
    assert len(found["sizes"]) == len(TABLE.blocks)
    assert found["skipped"] == {}
    exchanges = [size for size in found["sizes"] if size["collective"] == "AllToAll"]
    assert len(exchanges) == sum(row.point.name == "alltoall" for row in TABLE.blocks) > 0
    assert {(size["pick"], size["time"]) for size in exchanges} == {("-", "calibrated")}


def test_the_machine_of_a_shipped_table_need_not_be_named() -> None:
    named = json.loads(run("accept", TABLE.name, *MACHINE, "--json").stdout)
    assert json.loads(run("accept", TABLE.name, "--json").stdout) == named


def test_a_degraded_run_of_a_table_is_judged_apart_from_the_healthy_one() -> None:
    """gb10-1x-2n__2.28.9__mprg: two DGX Spark by a switch, and by a cable whose port has no error correction."""
    text = run("accept", "gb10-1x-2n__2.28.9__mprg", "--json", code=1).stdout
    found = json.loads(text)
    verdicts: dict[str, set[str]] = {}
    for size in found["sizes"]:
        verdicts.setdefault(size["file"].rpartition(", ")[2], set()).add(size["verdict"])
    assert verdicts == {"switch": {"pass"}, "cable": {"too slow"}}
    codes = {each["code"]: each["facts"] for each in found["findings"]}
    assert "accept.may_be_port" in codes
    assert all("TCP" not in each["resource"] for each in found["diagnosis"])  # the table says RoCE
    assert codes["accept.slow_from"]["smaller"] is None  # its first size is the smallest that was measured


@pytest.mark.parametrize("several", [False, True])
def test_a_loss_names_its_nodes_and_gpus_where_results_have_several(tmp_path: Path, several: bool) -> None:
    rows = [row for row in TABLE.blocks if row.point.name == "allreduce" and (several or row.gpus_per_node == 8)]
    slow = replace(TABLE, blocks=tuple(replace(row, times_us=(row.median_us * 3,)) for row in rows))
    measured.write(tmp_path / "given.csv", slow)
    said = run("accept", str(tmp_path / "given.csv"), *MACHINE, code=1).stdout
    assert ("(on 1 x 8 GPUs)" in said) is several
    assert ("(on 1 x 4 GPUs)" in said) is several


def test_slow_exchanges_fail(tmp_path: Path) -> None:
    rows = [row for row in TABLE.blocks if row.point.name == "alltoall" and row.gpus_per_node == 8]
    assert accepted(tmp_path, replace(TABLE, blocks=tuple(rows)))["pass"]
    slow = replace(
        TABLE, blocks=tuple(replace(row, times_us=(2.5 * row.median_us,)) for row in rows if row.point.bytes > 1 << 20)
    )
    found = accepted(tmp_path, slow, code=1)
    assert {size["verdict"] for size in found["sizes"] if size["bytes"] > 1 << 24} == {"too slow"}


def test_exchanges_without_a_calibration_are_not_judged(tmp_path: Path) -> None:
    path = tmp_path / "given.csv"
    rows = [f"{collective},half,8,67108864,900" for collective in ("alltoall", "allreduce")]
    path.write_text("\n".join(["collective,dtype,gpus,bytes,time_us", *rows]) + "\n", "utf-8")
    said = run("accept", str(path), "--machine", "pcie-l40s", "--nccl", "2.28.9", "--json", code=1).stdout
    found = json.loads(said)
    assert [size["collective"] for size in found["sizes"]] == ["AllReduce"]
    assert list(found["skipped"]) == [
        "no time of AllToAll is known here: no calibration has one, and NCCL's model has none"
    ]


def test_more_gpus_than_the_machine_has_are_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "given.csv"
    path.write_text("collective,dtype,gpus,bytes,time_us\nallreduce,half,16,67108864,300\n", "utf-8")
    said = run("accept", str(path), *MACHINE, "--nccl", "2.29.2", code=2).stderr
    says = "1 row with up to 16 GPUs a node, and the machine has 8: give --machine of the machine that was measured"
    assert said == f"nccl-tuner: {path}:2: {says}\n"


@pytest.mark.parametrize("placed", [0, 5])
def test_a_file_in_another_unit_is_one_error_and_a_row_in_one_fails(tmp_path: Path, placed: int) -> None:
    path = tmp_path / "given.csv"
    measured.write(path, timed(lambda _, row: row.median_us / 1e4))
    said = run("accept", str(path), *MACHINE, code=2).stderr
    assert said.startswith(f"nccl-tuner: {path}:")
    assert "milliseconds for microseconds?" in said
    one = accepted(tmp_path, timed(lambda at, row: row.median_us / (1e4 if at == placed else 1)), code=1)
    assert problem(one, "times too short")["lines"]


def test_a_healthy_machine_passes(tmp_path: Path) -> None:
    found = accepted(tmp_path, HEALTHY)
    assert len(found["sizes"]) == len(HEALTHY.blocks)
    for size in found["sizes"]:
        assert size["low_us"] < size["expected_us"] < size["high_us"]
        assert size["time"] == "calibrated"
        assert size["nccl"] == "2.29.2"  # the file's
    assert found["diagnosis"] == []


def test_a_slow_machine_fails_with_rows_and_floors(tmp_path: Path) -> None:
    found = accepted(tmp_path, timed(lambda _, row: row.median_us * (2 if row.point.bytes > 1 << 22 else 1)), code=1)
    slow = [size for size in found["sizes"] if size["verdict"] == "too slow"]
    assert {size["bytes"] for size in slow} == {1 << power for power in range(23, 30)}
    for size in slow:
        assert size["busbw_gbs"] < size["floor_gbs"]
        assert [HEALTHY.blocks[line - found["sizes"][0]["lines"][0]].point.bytes for line in size["lines"]] == [
            size["bytes"]
        ]
    assert found["diagnosis"][0]["resource"] == "NVLinks"


@pytest.mark.parametrize(
    ("factor", "kind", "says"),
    [
        (1 / 8, "above the links", "bits for bytes"),
        (8.0, "all times off alike", "bits for bytes"),
        (1000.0, "all times off alike", "milliseconds, microseconds"),
        (1 / 1.75, "all times off alike", "the factor of the bus bandwidth"),
    ],
)
def test_slips_of_units_fail_and_are_named(tmp_path: Path, factor: float, kind: str, says: str) -> None:
    found = accepted(tmp_path, timed(lambda _, row: row.median_us * factor), code=1)
    those = [each for each in found["problems"] if each["kind"] == kind and says in each["text"]]
    assert those
    assert those[0]["lines"]
    assert found["diagnosis"] == []  # of no use where the unit is wrong


def test_a_floor_of_small_messages_is_named(tmp_path: Path) -> None:
    """Beyond what ways of launching differ by, and nothing at large sizes."""
    table = timed(lambda _, row: row.median_us + (150 if row.point.bytes < 1 << 19 else 0))
    found = accepted(tmp_path, table, code=1)
    assert [each["resource"] for each in found["diagnosis"]] == ["small-message floor"]
    assert "150 us longer" in found["diagnosis"][0]["what"]


def test_times_that_no_link_allows_are_too_fast(tmp_path: Path) -> None:
    found = accepted(tmp_path, timed(lambda _, row: row.median_us / 8), code=1)
    assert {size["verdict"] for size in found["sizes"] if size["bytes"] > 1 << 26} == {"too fast"}


def test_mixed_machines(tmp_path: Path) -> None:
    runs = {"a": MeasuredRun("NVIDIA H100"), "b": MeasuredRun("NVIDIA B200")}
    first = tuple(replace(row, run="a") for row in HEALTHY.blocks)
    second = tuple(replace(row, run="b") for row in HEALTHY.blocks)
    table = replace(headed(gpu="", runs=runs), blocks=(*first, *second))
    said = problem(accepted(tmp_path, table, code=1), "mixed machines")
    assert len(said["lines"]) == 2


def test_another_gpu_than_the_machines(tmp_path: Path) -> None:
    found = accepted(tmp_path, headed(gpu="A100-SXM4-80GB"), code=1)
    assert "dgx-h100 has H100" in problem(found, "mixed machines")["text"]
    assert found["sizes"] == []


@pytest.mark.parametrize("gpu", ["H100 PCIe", "H100 NVL", "H100 80GB HBM3 MIG 3g.40gb", "H800", "GH200 480GB"])
def test_a_gpu_with_a_like_name_is_another(gpu: str, tmp_path: Path) -> None:
    assert problem(accepted(tmp_path, headed(gpu=gpu), code=1), "mixed machines")


def test_a_gpu_that_its_driver_does_not_know_is_no_other_machine(tmp_path: Path) -> None:
    found = accepted(tmp_path, headed(gpu="Graphics Device"), code=0)
    assert found["pass"]


@pytest.mark.parametrize(
    ("words", "gpus", "code"), [(("dgx-h100", "--nodes", "2"), 8, 0), (("gb200-nvl72", "--trays", "2"), 4, 1)]
)
def test_results_that_do_not_name_their_ranks_are_of_all_gpus(
    tmp_path: Path, words: tuple[str, ...], gpus: int, code: int
) -> None:
    file = nccl_tests_text.write(tmp_path / "all_reduce.log", ALL_REDUCE, nccl=22902, in_place=1)
    file.write_text("".join(line for line in file.read_text().splitlines(True) if "  Rank " not in line))
    assert f"add --nodes N ({gpus} GPUs each)" in run("accept", str(file), "--machine", words[0], code=2).stderr
    found = json.loads(run("accept", str(file), "--machine", *words, "--json", code=code).stdout)
    assert {(size["nodes"], size["gpus_per_node"]) for size in found["sizes"]} == {(2, gpus)}


def test_files_of_another_machine_are_refused_and_no_verdict_counts_sizes_that_are_none(tmp_path: Path) -> None:
    measured.write(tmp_path / "given.csv", headed(gpu="A100-SXM4-80GB"))
    first = run("accept", str(tmp_path / "given.csv"), *MACHINE, code=1).stdout.splitlines()[0]
    assert first == "refused for the reasons that are given for the files below; nothing in them is judged"


def test_results_of_amd_are_said_to_be_no_nccl(tmp_path: Path) -> None:
    file = nccl_tests_text.write(tmp_path / "rccl.log", ALL_REDUCE, in_place=1)
    file.write_text(file.read_text().replace("NVIDIA H100", "AMD Instinct MI325X"))
    for words in ((), MACHINE):
        assert "AMD's library RCCL" in " ".join(run("accept", str(file), *words, code=3).stderr.split())


def test_times_that_links_cannot_do_have_no_rank_among_public_runs(tmp_path: Path) -> None:
    times_us = [(1 << power, (1 << power) / 2.5e5) for power in range(29, 34)]
    for factor, ranks, code in ((1.0, 1, 0), (1e-3, 0, 1)):  # milliseconds
        pairs = [(size, factor * us) for size, us in times_us]
        file = nccl_tests_text.write(tmp_path / "h100.log", pairs, nodes=2, in_place=1)
        found = json.loads(run("accept", str(file), *MACHINE, "--json", code=code).stdout)
        assert min(len(found["comparisons"]), 1) == ranks


@pytest.mark.parametrize(("slower", "says"), [(1.1, "cannot be judged: "), (1.9, "cannot be judged, but looks slow: ")])
def test_a_run_that_cannot_be_judged_says_where_it_looks_slow(tmp_path: Path, slower: float, says: str) -> None:
    """Nine racks of 18 trays: of so many there are runs of one site alone."""
    expectation = Expectation(describe("gb200-nvl72", nccl="2.28.9", nodes=9))
    sizes = np.array([1 << power for power in range(28, 34)], np.uint64)
    kind = CurveKind(ConfiguredShape(162, 4), Request(Collective.AllReduce, DataType.float32, Op.sum))
    times_us = slower * expectation.times(kind, sizes).time_us
    pairs = list(zip(sizes.tolist(), times_us.tolist(), strict=True))
    file = nccl_tests_text.write(tmp_path / "racks.log", pairs, nodes=162, gpus=4, in_place=1)
    file.write_text(file.read_text().replace("NVIDIA H100", "NVIDIA GB200"))
    assert run("accept", str(file), "--machine", "gb200-nvl72", code=3).stdout.startswith(says)


def test_a_machine_in_words_needs_adapters_for_results_of_several_nodes(tmp_path: Path) -> None:
    file = nccl_tests_text.write(tmp_path / "two.log", [(1 << 28, 90e3), (1 << 30, 350e3)], nodes=2, gpus=1)
    file.write_text(file.read_text().replace("NVIDIA H100", "NVIDIA GeForce RTX 5090"))
    said = " ".join(run("accept", str(file), code=2).stderr.split())
    assert "with your CPUs and adapters: 1xrtx-5090@1xmilan+1x100g" in said
    said = " ".join(run("accept", str(file), "--machine", "1xrtx-5090@1xmilan", code=2).stderr.split())
    assert "as in --machine 1xrtx-5090@1xmilan+1x100g" in said


def test_two_kinds_of_gpus_in_one_run(tmp_path: Path) -> None:
    file = nccl_tests_text.write(tmp_path / "all_reduce.log", ALL_REDUCE, nccl=22902, in_place=1)
    file.write_text(file.read_text().replace("NVIDIA H100", "NVIDIA A100", 1))
    found = json.loads(run("accept", str(file), *MACHINE, "--json", code=1).stdout)
    assert "the file says A100, H100" in problem(found, "mixed machines")["text"]


def test_rows_of_another_machine_among_them(tmp_path: Path) -> None:
    """Unsaid; the points that both measured disagree."""
    found = accepted(tmp_path, replace(headed(gpu=""), blocks=(*HEALTHY.blocks, *OTHER)), code=1)
    assert "several machines" in problem(found, "repeated rows disagree")["text"]


def test_wrong_release_labels(tmp_path: Path) -> None:
    measured.write(tmp_path / "given.csv", headed(nccl="2.99.1"))
    done = run("accept", str(tmp_path / "given.csv"), *MACHINE, code=3)
    assert "given.csv: NCCL 2.99.1 is no release that is known here" in done.stderr
    measured.write(tmp_path / "given.csv", HEALTHY)
    done = run("accept", str(tmp_path / "given.csv"), *MACHINE, "--nccl", "2.28.9", code=2)
    assert "says NCCL 2.29.2, but --nccl says 2.28.9" in done.stderr


def test_releases_that_would_explain_the_times_are_named(tmp_path: Path) -> None:
    """Of 2 H100, whose release nobody noted, slow alike: no release explains that they take so long."""
    table = measured.load("h100-8x-2n__unknown__mghpcc")
    rows = [replace(row, times_us=(row.median_us * 2,)) for row in table.blocks if row.nodes == 1]
    measured.write(tmp_path / "given.csv", replace(table, blocks=tuple(rows)))
    words = ("accept", str(tmp_path / "given.csv"), *MACHINE, "--json", "--nccl", "2.27.7")
    assert json.loads(run(*words, code=1).stdout)["passes_as"] == []


def test_the_release_that_the_times_fail_with_is_not_said_to_explain_them() -> None:
    """Some calls of this run took ten times as long as the others, whatever the release."""
    found = json.loads(run("accept", "h100-8x-2n__unknown__mghpcc", *MACHINE, "--json", code=1).stdout)
    assert found["passes_as"] == []


@pytest.mark.parametrize(
    ("machine", "gbs", "code", "second"),
    [
        ("hgx-h200", 320, 1, "AllReduce of 8 GiB: 320 GB/s, lowest of "),
        ("hgx-h200", 470, 0, "AllReduce of 8 GiB: 470 GB/s, rank "),
        ("dgx-b200", 390, 1, "AllReduce of 8 GiB: 390 GB/s, lowest of "),
    ],
)
def test_one_size_between_nodes_is_judged_by_its_class(
    machine: str, gbs: float, code: int, second: str, tmp_path: Path
) -> None:
    time_us = (8 << 30) * 1.875 / gbs / 1000
    head = "collective,dtype,nodes,gpus_per_node,bytes,time_us"
    (path := tmp_path / "given.csv").write_text(f"{head}\nallreduce,float32,2,8,{8 << 30},{time_us}\n", "utf-8")
    said = run("accept", str(path), "--machine", machine, "--nodes", "2", "--nccl", "2.29.2", code=code).stdout
    assert said.splitlines()[1].startswith(second)


def test_a_release_that_nobody_noted_is_not_guessed(tmp_path: Path) -> None:
    """The same node: from 64 KiB to 1 MiB releases pick differently, so that these sizes cannot be judged."""
    table = measured.load("h100-8x-2n__unknown__mghpcc")
    measured.write(tmp_path / "given.csv", replace(table, blocks=tuple(row for row in table.blocks if row.nodes == 1)))
    found = json.loads(run("accept", str(tmp_path / "given.csv"), *MACHINE, "--json").stdout)
    assert found["pass"]
    left_open = [size["bytes"] for size in found["sizes"] if size["verdict"] == "cannot be judged"]
    assert {1 << power for power in range(16, 21)} <= set(left_open)
    assert not {1 << power for power in range(21, 34)} & set(left_open)
    slow = [replace(row, times_us=(row.median_us * 2,)) for row in table.blocks if row.nodes == 1]
    measured.write(tmp_path / "slow.csv", replace(table, blocks=tuple(slow)))
    assert not json.loads(run("accept", str(tmp_path / "slow.csv"), *MACHINE, "--json", code=1).stdout)["pass"]


def test_non_monotone_curves_and_repeated_rows_are_said(tmp_path: Path) -> None:
    found = accepted(tmp_path, timed(lambda at, row: row.median_us * (2 if at % 21 == 15 else 1)))
    assert problem(found, "not monotone")["lines"]
    twice = tuple(replace(row, times_us=(row.median_us * 1.6,)) for row in HEALTHY.blocks)
    found = accepted(tmp_path, replace(HEALTHY, blocks=(*HEALTHY.blocks, *twice)), code=1)
    assert len(problem(found, "repeated rows disagree")["lines"]) == 2 * len(HEALTHY.blocks)


def test_times_that_drift_are_said(tmp_path: Path) -> None:
    rows = (
        replace(row, times_us=(row.median_us * (1 + 0.05 * round),)) for round in range(8) for row in HEALTHY.blocks
    )
    found = accepted(tmp_path, replace(HEALTHY, blocks=tuple(rows)), code=1)
    assert "throttled" in problem(found, "times drift")["text"]


def test_single_calls_that_drift_in_json_of_nccl_tests(tmp_path: Path) -> None:
    def body(time_us: float) -> dict[str, object]:
        return {"time": time_us, "alg_bw": 1.0, "bus_bw": 1.0, "nwrong": "0"}

    def row(size: int, time_us: float, growth: float) -> dict[str, object]:
        times = [time_us * (1 + growth * at / 20) for at in range(20)]
        both = {"out_of_place": body(time_us), "in_place": body(time_us)}
        calls = {"times_us": times}
        return {"size": size, "type": "half", "redop": "sum", **both, "out_of_place_per_iter": calls}

    devices = [{"hostname": "a", "device_info": "NVIDIA H100"}] * 8
    record = {"nccl_version": 22902, "args": ["all_reduce_perf"], "config": {"devices": devices}}
    for growth, drifts in ((0.0, False), (0.6, True)):
        given = {**record, "results": [row(size, time_us, growth) for size, time_us in ALL_REDUCE]}
        (tmp_path / "given.json").write_text(json.dumps(given))
        # Calls that take 1.6 times as long in the end are too slow as well.
        found = json.loads(run("accept", str(tmp_path / "given.json"), *MACHINE, "--json", code=int(drifts)).stdout)
        assert ("times drift" in {each["kind"] for each in found["problems"]}) is drifts


def test_a_run_of_measure_with_forced_combinations(tmp_path: Path) -> None:
    """Each is predicted as forced; NVLS off cannot be what they point to, where NVLS ran."""
    file = tmp_path / "run.jsonl"
    sizes = ("--bytes", "1M,16M,256M", "--rounds", "3")
    run("measure", "allreduce", "--backend", "simulated", *MACHINE, "--nccl", "2.28.9", *sizes, "--out", str(file))
    found = json.loads(run("accept", str(file), *MACHINE, "--json").stdout)
    forced = {size["settings"].get("NCCL_ALGO") for size in found["sizes"]}
    assert {"Ring", "NVLS"} <= forced
    assert "NVLS" not in {each["resource"] for each in found["diagnosis"]}
    assert len(found["start_extra"]) == 1


def test_rows_that_do_not_say_whether_they_are_in_place(tmp_path: Path) -> None:
    table = replace(
        HEALTHY, blocks=tuple(replace(row, point=replace(row.point, in_place=None)) for row in HEALTHY.blocks)
    )
    assert problem(accepted(tmp_path, table), "in place or not unknown")["lines"]


def test_text_of_nccl_tests_and_junit(tmp_path: Path) -> None:
    file, junit = tmp_path / "all_reduce.log", tmp_path / "accept.xml"
    nccl_tests_text.write(file, ALL_REDUCE, nccl=22902, in_place=1)
    out = run("accept", str(file), *MACHINE, "--junit", str(junit)).stdout
    assert out.splitlines()[0] == "pass: 0 of 21 sizes fail"
    root = ET.parse(junit).getroot()
    assert (root.get("tests"), root.get("failures")) == ("43", "0")

    nccl_tests_text.write(file, [(size, 3 * time) for size, time in ALL_REDUCE], nccl=22902, in_place=1)
    out = run("accept", str(file), *MACHINE, "--junit", str(junit), code=1).stdout
    assert "FAIL: " in out
    root = ET.parse(junit).getroot()
    failures = root.findall("testsuite/testcase/failure")
    assert root.get("failures") == str(len(failures))
    assert any("too slow" in str(failure.get("message")) for failure in failures)


def test_what_ran_by_nccls_log_is_said_where_a_healthy_machine_picks_otherwise(tmp_path: Path) -> None:
    """With NCCL's log between the rows: a call that a machine without NVLS makes."""
    file = nccl_tests_text.write(tmp_path / "all_reduce.log", ALL_REDUCE, nccl=22902, in_place=1)
    head = "node0:1:1 [0] NCCL INFO "
    chosen = f"{head}AllReduce: {1 << 29} Bytes -> Algo RING proto SIMPLE channel{{Lo..Hi}}={{0..23}}\n"
    file.write_text(f"{chosen}{file.read_text()}")
    out = run("accept", str(file), *MACHINE).stdout
    assert "at 1 of 21 sizes something else ran than a healthy machine would pick" in " ".join(out.split())
    assert "AllReduce of 512 MiB ran Ring/Simple where NCCL would pick NVLS/Simple" in " ".join(out.split())


def test_wrong_results_fail(tmp_path: Path) -> None:
    file = tmp_path / "all_reduce.log"
    nccl_tests_text.write(file, ALL_REDUCE, nccl=22902, in_place=1)
    content = file.read_text()
    file.write_text(content.replace(" 1.00 1.00 0 ", " 1.00 1.00 5 ", 1))
    found = json.loads(run("accept", str(file), *MACHINE, "--json", code=1).stdout)
    assert found["wrong_results"] == 1


def test_floors(tmp_path: Path) -> None:
    found = json.loads(run("accept", "--floors", *MACHINE, "--nccl", "2.28.9", "--bytes", "64M,1G", "--json").stdout)
    assert {(each["collective"], each["bytes"]) for each in found["floors"]} >= {("AllReduce", 1 << 30)}
    for each in found["floors"]:
        assert 0 < each["floor_gbs"] < each["expected_busbw_gbs"]
    assert "AllReduce" in run("accept", "--floors", *MACHINE, "--nccl", "2.28.9").stdout


def test_there_are_no_floors_by_times_of_other_links() -> None:
    words = "accept", "--floors", "--machine", "hgx-h800", "--nccl", "2.28.9", "--bytes", "1G"
    said = run(*words, code=3).stderr
    assert (
        "no times were measured with this number of NVLinks: a GPU has 8 here, and 18 on dgx-h100: give --calibration"
        in said
    )
    assert run(*words, "--calibration", "dgx-h100").stdout.count("1 GiB") == 5


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (MACHINE, "no RESULTS"),
        (("--floors", "some.log", *MACHINE), "judges no run"),
        (("absent.log", *MACHINE), "No such file"),
        (("--floors", "--node", "dgx-h100", "--node", "dgx-a100"), "nodes that differ"),
        (("--floors", *MACHINE, "--calibration", "absent"), "no calibration 'absent'"),
    ],
)
def test_bad_input(words: tuple[str, ...], says: str) -> None:
    assert says in run("accept", *words, code=2).stderr


def test_rows_of_other_nodes_are_left_out(tmp_path: Path) -> None:
    measured.write(tmp_path / "given.csv", HEALTHY)
    done = run("accept", str(tmp_path / "given.csv"), *MACHINE, "--nodes", "2", code=3)
    assert done.stderr.startswith("nccl-tuner: cannot be judged: ")
    assert "84 rows: of 1 x 8 GPUs" in done.stderr


@pytest.mark.parametrize(("nodes", "gpus"), [(2, 72), (36, 4), (9, 4), (1, 8), (5, 2), (32, 4)])
def test_results_of_nvlink_domains_count_domains_or_hosts(nodes: int, gpus: int) -> None:
    expectation = Expectation(describe("gb200-nvl72", nccl="2.28.9", nodes=2))
    found = expectation.selection(ConfiguredShape(nodes, gpus)).communicator
    assert found.ranks == nodes * gpus
    assert found.nodes == (2 if found.ranks > 72 else 1)
    request, sizes = Request(Collective.AllReduce, DataType.float32, Op.sum), np.array([1 << 30], np.uint64)
    fault = Fault(Resource.nvlinks, "half of the NVLinks", intra=0.5)
    healthy, slower = (
        expectation.times(CurveKind(ConfiguredShape(nodes, gpus), request), sizes, each) for each in (None, fault)
    )
    assert slower.time_us > healthy.time_us


def test_trays_and_nodes_count_the_hosts_of_all_racks(tmp_path: Path) -> None:
    times_us = [(1 << power, 40 + (1 << power) / 4e5) for power in range(28, 34)]
    file = nccl_tests_text.write(tmp_path / "racks.log", times_us, nodes=32, gpus=4, nccl=22807, in_place=1)
    file.write_text(file.read_text().replace("NVIDIA H100", "NVIDIA GB300"))
    words = ("--machine", "gb300-nvl72", "--trays", "16", "--nodes", "2")
    found = json.loads(run("accept", str(file), *words, "--json").stdout)
    assert {(size["nodes"], size["gpus_per_node"]) for size in found["sizes"]} == {(32, 4)}


def test_all_to_all_of_a_whole_nvlink_domain_is_no_faster_than_its_links() -> None:
    expectation = Expectation(describe("gb300-nvl72", nccl="2.28.7", trays=16))
    sizes = np.array([1 << 28, 1 << 30, 1 << 34], np.uint64)
    time_us = expectation.times(CurveKind(ConfiguredShape(16, 4), Exchange(DataType.float32)), sizes).time_us
    nvlink_gbs = 900  # of a GPU, in one direction; public runs of such domains reach 667 GB/s
    assert np.all(time_us > sizes * (63 / 64) / (nvlink_gbs * 1e3))


def test_runs_on_different_hosts_in_one_file_are_not_judged(tmp_path: Path) -> None:
    file = nccl_tests_text.write(tmp_path / "two.log", ALL_REDUCE, nccl=22902, in_place=1)
    one = file.read_text()
    file.write_text(one + one)  # the same run again
    run("accept", str(file), *MACHINE)
    file.write_text(one + one.replace("on node0", "on other"))
    said = run("accept", str(file), *MACHINE, code=2).stderr
    begins = len(one.splitlines()) + 1
    assert "runs on different hosts" in said
    assert f"tail -n +{begins} " in " ".join(said.split())


def test_results_that_no_nvlink_domains_have_are_refused() -> None:
    expectation = Expectation(describe("gb200-nvl72", nccl="2.28.9"))
    for shape in (ConfiguredShape(19, 4), ConfiguredShape(1, 76), ConfiguredShape(1, 6)):
        with pytest.raises(BadInput, match="cannot be divided into equal NVLink domains of up to 18 trays with 4 GPUs"):
            expectation.selection(shape)


def test_a_row_whose_time_is_negative_is_named_and_ends_nothing(tmp_path: Path) -> None:
    lines = (Path(__file__).parents[2] / "docs" / "examples" / "all_reduce.log").read_text("utf-8").splitlines()
    number = next(at for at, line in enumerate(lines, 1) if line.split()[:1] == ["268435456"])
    words = lines[number - 1].split()
    lines[number - 1] = " ".join([*words[:5], f"-{words[5]}", *words[6:]])
    (tmp_path / "run.log").write_text("\n".join(lines) + "\n", "utf-8")
    found = json.loads(run("accept", str(tmp_path / "run.log"), "--machine", "dgx-h100", "--json", code=1).stdout)
    assert found["skipped"][f"whose numbers cannot be times (lines {number})"] == 1
    assert (268435456, False) not in {(size["bytes"], size["in_place"]) for size in found["sizes"]}


def test_a_run_that_ended_within_a_row_does_not_pass_by_the_sizes_before(tmp_path: Path) -> None:
    """Its large sizes, which are missing, are those that fail."""
    whole = (Path(__file__).parents[2] / "docs" / "examples" / "all_reduce.log").read_text("utf-8")
    cut, unended = tmp_path / "cut.log", tmp_path / "unended.log"
    cut.write_text(whole[: whole.index("524288 ") + 40], "utf-8")
    said = run("accept", str(cut), "--machine", "dgx-h100", code=3).stdout
    assert said.startswith("cannot be judged: 0 of 6 sizes fail, but the rest of ")
    unended.write_text(whole.rstrip(), "utf-8")  # pasted without the end of its last line, a comment
    assert run("accept", str(unended), "--machine", "dgx-h100", code=1).stdout.startswith("FAIL: 5 of 18 sizes fail")


def test_a_run_between_nodes_is_ranked_among_those_of_its_class(tmp_path: Path) -> None:
    """Two nodes of a site whose own table is left out."""
    table, words = measured.load("h100-8x-2n__2.21.5__oci"), ("--machine", "dgx-h100", "--nccl", "2.21.5", "--json")
    for slower, code in ((1.0, 0), (1.5, 1), (2.0, 1)):
        rows = tuple(replace(row, times_us=(row.median_us * slower,)) for row in table.blocks)
        given = replace(table, header=replace(table.header, machine="dgx-h100", site=""), blocks=rows)
        measured.write(tmp_path / f"{table.name}.csv", given)
        found = json.loads(run("accept", str(tmp_path / f"{table.name}.csv"), *words, code=code).stdout)
        ranked = next(each for each in found["findings"] if each["code"] in ("accept.rank", "accept.lowest"))
        assert ranked["facts"]["runs"] >= len(ranked["facts"]["tables"]) >= 8
        assert ranked["facts"]["own_gbs"] == pytest.approx(464.6 / slower, rel=0.01)
        assert (ranked["code"] == "accept.lowest") or slower == 1
        if slower > 1:
            assert ranked["facts"]["below_percent"] > 30
            assert found["findings"][0]["code"] == "accept.fails"


def test_a_cluster_with_half_its_adapters_fails_and_the_same_with_all_does_not() -> None:
    """Four nodes of B200, measured with faults of the network, without variables that it wants, and repaired."""
    found = json.loads(
        run("accept", "b200-8x-4n__2.30.7__flapping-slow", "--machine", "dgx-b200", "--json", code=1).stdout
    )
    assert {each["verdict"] for each in found["sizes"] if each["busbw_gbs"] < 250} == {"too slow"}
    assert json.loads(run("accept", "b200-8x-4n__2.30.7__flapping", "--machine", "dgx-b200", "--json").stdout)["pass"]


def test_a_calibration_of_times_that_fail_says_so(tmp_path: Path) -> None:
    example = Path(__file__).parents[2] / "docs" / "examples" / "all_reduce.log"
    done = run("fit", "calibration", str(example), "--machine", "dgx-h100", "-o", str(tmp_path / "own.json"))
    assert "'nccl-tuner accept' fails this run, as 5 of 18 sizes" in " ".join(done.stderr.split())


def test_results_without_a_machine_are_refused_with_those_that_have_such_gpus() -> None:
    said = run("accept", "docs/examples/all_reduce.log", code=2).stderr
    assert said.startswith(
        "nccl-tuner: name the machine that docs/examples/all_reduce.log was measured on: --machine NAME"
    )
    assert said.rstrip().endswith(
        "these machines have 8 x H100 80GB HBM3 a node: aws-p5, aws-p5-rdma, azure-nd-h100-v5, dgx-h100, gcp-a3-high, "
        "gcp-a3-mega, hgx-h100-amd, oci-h100"
    )


def test_what_a_loss_points_to_comes_right_after_the_verdict() -> None:
    said = run("accept", "docs/examples/all_reduce.log", *MACHINE, code=1).stdout.splitlines()
    assert said[:2] == ["FAIL: 5 of 18 sizes fail", "points to NVLS: the NVSwitches do not reduce"]


def test_a_run_of_ones_own_is_kept_compared_with_and_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    file = nccl_tests_text.write(tmp_path / "healthy.log", ALL_REDUCE, nccl=22902, in_place=1)
    words = ("measured", str(file), *MACHINE, "--keep", "pod7")
    assert "--source TEXT" in run(*words, code=2).stderr
    assert "kept 2 curves" in run(*words, "--source", "pod 7").stdout
    assert "there is a run 'pod7' already" in run(*words, "--source", "pod 7", code=2).stderr
    assert any(line.split()[:1] == ["pod7"] for line in run("measured").stdout.splitlines())
    found = json.loads(run("accept", str(file), *MACHINE, "--json").stdout)
    assert {(size["time"], size["runs"]) for size in found["sizes"]} == {("public runs", 1)}
    slow = nccl_tests_text.write(
        tmp_path / "slow.log", [(size, 1.3 * time) for size, time in ALL_REDUCE], nccl=22902, in_place=1
    )
    run("accept", str(slow), *MACHINE, code=1)
    text = run("measured", str(slow), *MACHINE, "--source", "a", "--keep", "slow", code=2).stderr
    assert "a run that fails is not kept" in text
    assert run("measured", "--forget", "pod7").stdout.startswith("pod7: forgotten")
    assert "no kept run 'pod7'" in run("measured", "--forget", "pod7", code=2).stderr


def test_wrong_results_are_said_first_with_counts_sizes_and_placements(tmp_path: Path) -> None:
    file = nccl_tests_text.write(tmp_path / "all_reduce.log", ALL_REDUCE, nccl=22902, in_place=1)
    lines = file.read_text("utf-8").splitlines()
    for at, line in enumerate(lines):
        if line.split()[:1] == [str(1 << 20)]:
            lines[at] = " ".join([*line.split()[:-1], "7"])
    file.write_text("\n".join([*lines, "# Out of bounds values : 1 FAILED"]) + "\n", "utf-8")
    found = json.loads(run("accept", str(file), *MACHINE, "--json", code=1).stdout)
    first = found["findings"][0]
    assert first["code"] == "accept.wrong_results"
    assert (first["facts"]["calls"], first["facts"]["sizes"], first["facts"]["most"]) == (1, [1 << 20], 7)
    assert first["facts"]["where"] == "1 in place"


def test_wrong_results_are_said_whatever_else_can_be_judged(tmp_path: Path) -> None:
    """Without a machine, on GPUs that NCCL does not run on, of two jobs, and cut: none of these is judged otherwise."""
    file = nccl_tests_text.write(tmp_path / "all_reduce.log", ALL_REDUCE, nccl=22902, in_place=1)
    right = file.read_text("utf-8")
    wrong = right.replace(" 1.00 1.00 0", " 1.00 1.00 3", 1)
    assert wrong != right
    two_jobs = right.replace("node0", "other") + wrong + "# Out of bounds values : 1 FAILED\n"
    only_the_end = "\n".join(line for line in right.splitlines() if not line.split()[0].isdigit())
    cases = {
        "no machine": (wrong, ()),
        "no such machine": (wrong, ("--machine", "dgx-h1000")),
        "no GPU of NCCL's": (wrong.replace("NVIDIA H100", "AMD Instinct MI300X"), MACHINE),
        "two jobs": (two_jobs, MACHINE),
        "no row": (only_the_end + "\n# Out of bounds values : 3 FAILED\n", MACHINE),
    }
    for name, (text, words) in cases.items():
        file.write_text(text, "utf-8")
        found = json.loads(run("accept", str(file), *words, "--json", code=1).stdout)
        assert (found["pass"], found["judged"], found["sizes"]) == (False, True, []), name
        codes = [each["code"] for each in found["findings"]]
        assert (codes[0], codes[-1]) == ("accept.wrong_results", "accept.times_not_judged"), name
        assert run("accept", str(file), *words, code=1).stdout.startswith("wrong results: "), name
        first = json.loads(
            run("diagnose", str(file), *([] if name == "no such machine" else words), "--json", code=1).stdout
        )
        assert first["files"][0]["findings"][0]["code"] in ("accept.wrong_results", "diagnose.out_of_bounds"), name
    file.write_text(right, "utf-8")
    assert "name the machine" in run("accept", str(file), code=2).stderr


def test_diagnose_says_wrong_results_before_slow_ones(tmp_path: Path) -> None:
    file = nccl_tests_text.write(
        tmp_path / "slow.log", [(size, 3 * time) for size, time in ALL_REDUCE], nccl=22902, in_place=1
    )
    file.write_text(file.read_text("utf-8").replace(" 1.00 1.00 0", " 1.00 1.00 3", 1), "utf-8")
    (found,) = json.loads(run("diagnose", str(file), *MACHINE, "--json", code=1).stdout)["files"]
    assert [each["code"] for each in found["findings"][:2]] == ["accept.wrong_results", "diagnose.times_fail"]


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (
            "#       size",
            "#        (B)    (elements)      (ms)  (GB/s)\n#       size",
            r":\d+: columns are in ms, so nothing of the file",
        ),
        ("nThread 1 nGpus 1", "nThread 1 nGpus 9", r":4: a process lists 8 ranks, but line 3 says 9 "),
    ],
)
def test_what_a_file_says_of_units_and_ranks_has_to_fit(old: str, new: str, says: str, tmp_path: Path) -> None:
    file = nccl_tests_text.write(tmp_path / "run.log", ALL_REDUCE, in_place=1)
    file.write_text(file.read_text("utf-8").replace(old, new, 1), "utf-8")
    said = run("accept", str(file), *MACHINE, code=2).stderr
    assert re.search(f"run.log{says}", said), said
    assert said.count("\n") == 1


def test_bandwidths_that_contradict_all_times_alike_are_one_error(tmp_path: Path) -> None:
    file = nccl_tests_text.write(tmp_path / "run.log", ALL_REDUCE, in_place=1)
    text = file.read_text("utf-8")
    for slip, code in ((1.0, 0), (1e-3, 2), (1e3, 2)):
        for size, time_us in ALL_REDUCE:
            gbs = size / time_us / 1000
            text = re.sub(rf"(?m)^( +{size} .* -1) .*$", rf"\1 {slip * time_us:.6g} {gbs:.2f} 1.00 0", text)
        file.write_text(text, "utf-8")
        done = run("accept", str(file), *MACHINE, code=code)
        assert ("Nothing of the file is judged" in done.stderr) is (code == 2)


def test_sends_and_receives_that_nobody_measured_say_what_is_missing(tmp_path: Path) -> None:
    """A size that takes far longer than the links need fails all the same; a kept run of one's own decides later."""
    times = [(1 << size, 20 + (1 << size) / 48e3) for size in range(20, 32)]
    file = nccl_tests_text.write(tmp_path / "sendrecv.log", times, nodes=2, program="sendrecv_perf", in_place=1)
    said = run("accept", str(file), *MACHINE, code=3).stdout
    assert said.startswith("cannot be judged: for 12 of 12 sizes no measured run is similar enough to compare with")
    assert "--like" in said
    assert "--keep NAME" in said
    slow = [(size, (200 if size == 1 << 30 else 1) * us) for size, us in times]
    nccl_tests_text.write(file, slow, nodes=2, program="sendrecv_perf", in_place=1)
    found = json.loads(run("accept", str(file), *MACHINE, "--json", code=1).stdout)
    assert {each["bytes"] for each in found["sizes"] if each["verdict"] == "too slow"} == {1 << 30}
    assert "accept.beyond_links" in {each["code"] for each in found["findings"]}


def test_a_kept_run_is_compared_with_a_later_file_of_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    times = [(1 << size, 20 + (1 << size) / 48e3) for size in range(20, 32)]
    file = nccl_tests_text.write(tmp_path / "pod7.log", times, nodes=2, program="sendrecv_perf", in_place=1)
    run("measured", str(file), *MACHINE, "--source", "a day", "--keep", "pod7")
    run("accept", str(file), *MACHINE)
    nccl_tests_text.write(file, [(size, 3 * us) for size, us in times], 2, program="sendrecv_perf", in_place=1)
    run("accept", str(file), *MACHINE, code=1)
    run("measured", "--forget", "pod7")
    run("accept", str(file), *MACHINE, code=3)


def test_a_cause_that_the_log_in_the_file_refutes_is_not_named(tmp_path: Path) -> None:
    """Slow enough for TCP sockets; once NCCL's log says where data go, they are named or they are not."""
    times = [(1 << size, 20 + (1 << size) / 4e3) for size in range(13, 33)]
    named = {}
    for way in ("NET/IB/0/GDRDMA", "NET/Socket/0"):
        file = nccl_tests_text.write(tmp_path / "run.log", times, nodes=2, nccl=22902, in_place=1)
        line = f"node0:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via {way}\n"
        file.write_text(line + file.read_text("utf-8"), "utf-8")
        found = json.loads(run("accept", str(file), *MACHINE, "--json", code=1).stdout)
        causes = [each for each in found["findings"] if each["code"] in ("accept.cause", "accept.other_cause")]
        named[way] = {each["facts"]["resource"] for each in causes} | {each["code"] for each in found["findings"]}
    assert "TCP sockets" not in named["NET/IB/0/GDRDMA"]
    assert "accept.sockets_seen" in named["NET/Socket/0"]


def test_the_only_machine_with_such_gpus_is_taken_and_said(tmp_path: Path) -> None:
    file = nccl_tests_text.write(
        tmp_path / "run.log", [(1 << 30, 45_000.0), (1 << 31, 89_500.0)], nodes=2, gpus=1, nccl=22809, in_place=1
    )
    file.write_text(file.read_text("utf-8").replace("NVIDIA H100", "NVIDIA GB10"), "utf-8")
    done = run("accept", str(file))
    assert "assumed to be dgx-spark" in done.stderr
