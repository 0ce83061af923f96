"""Logs of serving engines: which implementations are off, and what NCCL carries instead, on a known machine."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.diagnoses import diagnosed
from tuner.base import findings, tables
from tuner.engines import log_lines, releases
from tuner.oracle import serving

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "vllm.log"
TABLE: dict[str, Any] = tables.toml(tables.folder() / releases.FOLDER / log_lines.TABLE)
ROWS = [(kind, row) for kind in ("enabled", "fact", "missing") for row in TABLE[kind]]
MISSING = TABLE["missing"]
NOISE = 'INFO:     127.0.0.1:40000 - "POST /v1/completions HTTP/1.1" 200 OK\n'


def of_file(file: Path, *options: str) -> dict[str, Any]:
    """What the diagnosis says of an engine's log, its findings by their codes."""
    answer: list[dict[str, Any]] = json.loads(diagnosed(file, *options, "--json").output)["files"]
    (one,) = (each for each in answer if each["kind"] == "log of a serving engine")
    return one | {"by_code": {each["code"]: each for each in one["findings"]}}


def written(tmp_path: Path, *lines: str) -> Path:
    file = tmp_path / "engine.log"
    file.write_text(NOISE + "".join(f"(Worker_TP0 pid=7) {line}\n" for line in lines) + NOISE)
    return file


@pytest.mark.parametrize(("kind", "row"), ROWS, ids=[row["pattern"][:40] for _, row in ROWS])
def test_each_row_finds_its_example_and_names_what_there_is(kind: str, row: dict[str, Any]) -> None:
    assert row["mark"] in row["example"]
    assert re.search(row["pattern"], row["example"])
    newest = releases.load(row["engine"])
    if kind == "missing":
        assert f"engine_log.{row['code']}" in findings.codes()
        assert set(row["implementations"]) <= {each.name for each in newest.implementations}
        assert row.get("unasked") is None or row["unasked"] in newest.variables
    if kind == "fact" and row["of"] not in ("release", "ranks", "dtype", "nccl", "hidden_size"):
        assert row["of"] in {**newest.variables, **newest.arguments}


@pytest.mark.parametrize("row", MISSING, ids=[f"{row['engine']}-{row['code']}-{i}" for i, row in enumerate(MISSING)])
def test_each_line_is_a_finding_with_words(row: dict[str, Any], tmp_path: Path) -> None:
    found = of_file(written(tmp_path, row["example"]))
    finding = found["by_code"][f"engine_log.{row['code']}"]
    assert finding["severity"] == row["severity"]
    assert finding["facts"]["line"] == 2
    assert "{" not in finding["text"]


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_the_engines_files_print_these_lines(engine: str) -> None:
    """Of rows whose file is in the cache: the words of the mark are in the file, or the row is of no use."""
    release = releases.load(engine)
    if not serving.is_fetched(release):
        pytest.skip(f"{release.name} is not in the cache")
    folder, compared = serving.folder_of(release), 0
    for _, row in ROWS:
        files = [file for name in row["source"].split(", ") for file in folder.rglob(Path(name).name)]
        if row["engine"] == engine and files:
            text = " ".join(re.sub(r'"\s*\n\s*f?"', "", file.read_text("utf-8")) for file in files)
            mark = row["mark"].replace("CustomAll", "{cls_name} is disabled")
            assert mark in text or mark.removesuffix("=") in text, row
            compared += 1
    assert compared >= 5


def test_without_a_machine_the_log_says_what_is_off_and_what_would_help() -> None:
    found = of_file(EXAMPLE)
    assert found["severity"] == "unlike"
    assert found["findings"][0]["code"] == "engine_log.multicast"
    assert found["by_code"]["engine_log.engine"]["facts"] == {
        "engine": "vllm",
        "ranks": 8,
        "release": "0.33.0",
        "table": None,
    }
    assert "engine_log.moves_unknown" in found["by_code"]
    assert found["nccl"] == "2.30.7"


def test_on_a_machine_that_has_it_a_loss_is_a_fault_with_the_sizes_that_move() -> None:
    found = of_file(EXAMPLE, "--machine", "dgx-h100")
    assert found["severity"] == "fault"
    moved = [each["facts"] for each in found["findings"] if each["code"] == "engine_log.moves"]
    assert [(each["low"], each["high"], each["now"]) for each in moved] == [
        ((512 << 10) + 16, (8 << 20) - 16, "vLLM's custom AllReduce"),
        (8 << 20, 64 << 20, "NCCL"),
    ]


def test_a_backend_that_flashinfer_fell_back_to_moves_sizes_as_well() -> None:
    found = of_file(EXAMPLE, "--machine", "dgx-b200")
    moved = [each["facts"] for each in found["findings"] if each["code"] == "engine_log.moves"]
    assert moved[-1] == {
        "dtype": "bfloat16",
        "low": 8 << 20,
        "high": 128 << 20,
        "before": "FlashInfer",
        "now": "NCCL",
    }


def test_what_a_machine_never_has_is_no_fault(tmp_path: Path) -> None:
    said = [row["example"] for row in MISSING if (row["engine"], row["code"]) == ("vllm", "pcie")]
    found = of_file(written(tmp_path, "tensor_parallel_size=4, x", *said), "--machine", "8xl40s@2xturin")
    assert found["severity"] == "note"
    assert found["by_code"]["engine_log.as_it_should_be"]["facts"]["ranks"] == 4
    assert "engine_log.moves" not in found["by_code"]
    on_nvlink = of_file(written(tmp_path, "tensor_parallel_size=4, x", *said), "--machine", "dgx-a100")
    assert on_nvlink["severity"] == "fault"
    assert on_nvlink["by_code"]["engine_log.moves"]["facts"]["high"] == (8 << 20) - 16


def test_an_implementation_that_is_missing_without_a_word_is_named(tmp_path: Path) -> None:
    lines = [line for line in EXAMPLE.read_text().splitlines() if "SymmMem" not in line and "FlashInfer" not in line]
    found = of_file(written(tmp_path, *lines), "--machine", "dgx-h100")
    assert found["by_code"]["engine_log.lost"]["facts"]["what"] == ["torch symmetric memory"]
    switched_off = [line.replace("disable_custom_all_reduce=False", "disable_custom_all_reduce=True") for line in lines]
    more = of_file(written(tmp_path, *switched_off), "--machine", "dgx-h100")
    assert more["by_code"]["engine_log.not_expected"]["facts"]["what"] == ["vLLM's custom AllReduce"]


def test_more_ranks_than_the_machine_takes_is_said(tmp_path: Path) -> None:
    lines = ["tensor_parallel_size=3, x", MISSING[0]["example"]]
    found = of_file(written(tmp_path, *lines), "--machine", "dgx-h100")
    assert "3 ranks neither divide" in found["by_code"]["engine_log.not_placed"]["text"]


def test_lines_of_nccl_beside_are_read_as_well(tmp_path: Path) -> None:
    file = written(tmp_path, MISSING[0]["example"])
    file.write_text(file.read_text() + "h0:1:1 [0] NCCL INFO NCCL version 2.30.7+cuda13.0\n")
    kinds = {each["kind"] for each in json.loads(diagnosed(file, "--json").output)["files"]}
    assert kinds == {"log of NCCL", "log of a serving engine"}


def test_other_programs_logs_are_none_of_an_engine() -> None:
    assert log_lines.read(b"Custom collectives are nice\ntensor_parallel_size is 8\n") is None
    assert log_lines.read(b"") is None
    assert log_lines.read(b"\xff\xfe Custom allreduce is disabled \x00") is None
