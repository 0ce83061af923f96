"""Files that are damaged: one line that says so, and where; never a traceback, nor numbers that nothing can be."""

import json
import time
from pathlib import Path

import pytest

from tests.support.command_line import run

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
DGX = ("--machine", "dgx-h100")
MANY_DIGITS = "1" * 5000  # more than Python reads as a whole number
DEEP = {"list": "[" * 100_000, "object": '{"a":' * 100_000}
STATS = {
    "nccl_tuner_stats": 1,
    "host": "node0",
    "pid": 12,
    "commId": "0x1234",
    "ranks": 16,
    "nodes": 2,
    "table": "/etc/nccl/pod.table",
    "sha256": "abc",
    "calls": 100,
    "decided": 50,
    "could_not_run": 1,
    "costed": 0,
    "rows": [{"line": 4, "decided": 50, "could_not_run": 1}],
    "costs": [],
    "never_matched": [[5, 6], [7, 9]],
    "undecided": [],
}
READERS = (
    ("verify", "FILE", *DGX),
    ("accept", "FILE", *DGX),
    ("fit", "constants", "FILE"),
    ("measured", "FILE"),
    ("fit", "calibration", "FILE", *DGX, "-o", "/dev/null"),
    ("fit", "accuracy", "FILE"),
    ("budget", "FILE", *DGX),
    ("check", "FILE", *DGX),
    ("plugin", "stats", "FILE"),
    ("plugin", "lint", "FILE"),
    ("pick", "@FILE", *DGX),
    ("pick", "allreduce", *DGX, "--calibration", "FILE"),
)


def refusal(words: tuple[str, ...], file: Path) -> str:
    """What a command says of a file that it refuses: one line of letters that a terminal shows."""
    (said,) = run(*(word.replace("FILE", str(file)) for word in words), code=2).stderr.splitlines()
    assert said.isprintable()
    assert len(said) < 4000
    return said


CR_ALONE = {
    "all_reduce.log": ("accept", "FILE", *DGX),
    "step.csv": ("budget", "FILE", *DGX),
    "nccl.log": ("log", "FILE"),
    "topo.txt": ("machines", "--like", "FILE", "--gpu", "h100-sxm"),
    "deepspeed.log": ("budget", "FILE", *DGX),
}


@pytest.mark.parametrize("name", CR_ALONE)
def test_lines_may_end_in_cr_alone(name: str, tmp_path: Path) -> None:
    content = (EXAMPLES / name).read_bytes()
    answers = []
    for end in (b"\n", b"\r"):
        (file := tmp_path / name).write_bytes(content.replace(b"\n", end))
        words = [word.replace("FILE", str(file)) for word in CR_ALONE[name]]
        answers.append(run(*words, code=1 if words[0] == "accept" else 0).stdout)
    assert answers[0] == answers[1]


@pytest.mark.parametrize("deep", DEEP)
@pytest.mark.parametrize("words", READERS, ids=" ".join)
def test_json_that_is_nested_too_deep(words: tuple[str, ...], deep: str, tmp_path: Path) -> None:
    (file := tmp_path / "deep.json").write_text(DEEP[deep])
    assert str(file) in refusal(words, file)


@pytest.mark.parametrize("deep", DEEP)
def test_a_record_of_preflight_that_is_nested_too_deep(deep: str, tmp_path: Path) -> None:
    (tmp_path / "host-node01.json").write_text(DEEP[deep])
    assert "host-node01.json" in refusal(("preflight", "check", "FILE", *DGX), tmp_path)


@pytest.mark.parametrize(
    ("was", "is_now", "code"),
    [
        ("Rank  1", f"Rank  {MANY_DIGITS}", 0),
        ("nccl-library=", f"nccl-library={MANY_DIGITS}", 1),  # the release is then not known
        ("22.27", "22..27", 0),
    ],
)
def test_numbers_that_nccl_tests_never_prints_are_none(was: str, is_now: str, code: int, tmp_path: Path) -> None:
    text = (EXAMPLES / "all_reduce.log").read_text()
    assert was in text
    (file := tmp_path / "all_reduce.log").write_text(text.replace(was, is_now, 1))
    assert run("measured", str(file), code=code).stdout


def test_a_count_of_wrong_results_without_end_is_wrong(tmp_path: Path) -> None:
    text = (EXAMPLES / "all_reduce.log").read_text()
    (file := tmp_path / "all_reduce.log").write_text(text.replace("2.57      0", "2.57    inf", 1))
    assert run("measured", str(file)).stdout == (
        f"nothing is wrong with the rows that can be read\n{file}: left out: 1 results that were wrong\n"
    )
    (said,) = json.loads(run("measured", str(file), "--json").stdout)["problems"]
    assert said["text"] == "1 results that were wrong"


@pytest.mark.parametrize("size", ["-1", "0", "9" * 20, "1e999"])
def test_samples_of_sizes_that_no_call_has(size: str, tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl"
    run("measure", "allreduce", "--backend", "simulated", *DGX, "--bytes", "1M", "--out", str(file))
    file.write_text(file.read_text().replace('"bytes":1048576', f'"bytes":{size}', 1))
    assert "run.jsonl:2: not a sample block" in refusal(("fit", "constants", "FILE"), file)


def test_a_table_of_one_long_line_is_refused_at_once(tmp_path: Path) -> None:
    (file := tmp_path / "a.table").write_text("<a>" * 1_000_000)
    before_s = time.process_time()
    assert "begins no format" in refusal(("plugin", "lint", "FILE"), file)
    assert time.process_time() - before_s < 5


@pytest.mark.parametrize(
    "damage",
    [
        {"calls": "x"},
        {"calls": -1},
        {"ranks": {}},
        {"rows": [{"line": 4, "decided": "x", "could_not_run": 1}]},
        {"costs": [{"line": 4, "calls": float("nan")}]},
        {"never_matched": [[1, "x"]]},
        {"undecided": [dict.fromkeys(("collective", "reason", "least_bytes", "most_bytes", "calls", "bytes"), 1)]},
    ],
    ids=str,
)
def test_statistics_with_values_that_the_plugin_never_writes(damage: dict[str, object], tmp_path: Path) -> None:
    (file := tmp_path / "stats").write_text(json.dumps(STATS | damage))
    assert f"{file}:1: not a line of the plugin's statistics" in refusal(("plugin", "stats", "FILE"), file)


def test_statistics_with_rows_beyond_any_table_end(tmp_path: Path) -> None:
    lines = [STATS, STATS | {"never_matched": [[6, 7], [9, 10**15]]}]
    (file := tmp_path / "stats").write_text("\n".join(map(json.dumps, lines)))
    (table,) = json.loads(run("plugin", "stats", str(file), "--json").stdout)["tables"]
    assert table["never_matched"] == [[6, 7], [9, 9]]


@pytest.mark.parametrize("calls", ["1e308", "1e16", MANY_DIGITS, "-1", "nan"])
def test_more_calls_than_there_can_be(calls: str, tmp_path: Path) -> None:
    (file := tmp_path / "job.csv").write_text(f"collective,bytes,calls\nallreduce,1M,{calls}\n")
    assert "calls: give a number from 0 to 1e+15" in refusal(("budget", "FILE", *DGX), file)


@pytest.mark.parametrize("size", [MANY_DIGITS, "9" * 400])
def test_a_size_that_deepspeed_never_prints(size: str, tmp_path: Path) -> None:
    text = (EXAMPLES / "deepspeed.log").read_text()
    (file := tmp_path / "deepspeed.log").write_text(text.replace("256.0 MB", f"{size} MB", 1))
    assert size in file.read_text()
    assert "where DeepSpeed prints a number" in refusal(("budget", "FILE", *DGX), file)


@pytest.mark.parametrize("took", [10**400, float("nan"), float("inf"), "12", None, -5, [1]])
def test_durations_that_are_none_are_left_out(took: object, tmp_path: Path) -> None:
    trace = json.loads((EXAMPLES / "trace.json").read_text())
    for event in trace["traceEvents"]:
        event["dur"] = took
    dump = json.loads((EXAMPLES / "flight-recorder.json").read_text())
    for entry in dump["entries"]:
        entry["duration_ms"] = took
    for name, value in (("trace.json", trace), ("dump.json", dump)):
        (file := tmp_path / name).write_text(json.dumps(value))
        out = run("budget", str(file), *DGX, "--nodes", "2").stdout
        assert "nan" not in out
        assert "inf " not in out


@pytest.mark.parametrize("key", ["type", "op"])
@pytest.mark.parametrize("value", ["", 0, False, [], {}])
def test_calls_of_a_group_with_a_type_or_operation_that_is_none(key: str, value: object, tmp_path: Path) -> None:
    (file := tmp_path / "group.json").write_text(json.dumps([{"call": "allreduce", "bytes": 1024, key: value}]))
    assert "unknown" in refusal(("pick", "@FILE", *DGX), file)


def test_what_a_file_says_neither_moves_a_terminal_nor_floods_it(tmp_path: Path) -> None:
    (file := tmp_path / "job.csv").write_text(f'collective,bytes\n"all\x1b[31m\nreduce{"x" * 50_000}",1M\n')
    said = refusal(("budget", "FILE", *DGX), file)
    assert "\\x1b[31m" in said
    assert said.endswith("AllReduce")  # what is valid stays


@pytest.mark.parametrize("lanes", [1 << 16, 2**31 - 1])
def test_lanes_that_overflow_in_nccl(lanes: int, tmp_path: Path) -> None:
    text = (EXAMPLES / "node.xml").read_text()
    assert 'link_width="16"' in text
    (file := tmp_path / "node.xml").write_text(text.replace('link_width="16"', f'link_width="{lanes}"'))
    said = refusal(("pick", "allreduce", "--topology", "FILE"), file)
    assert f"link_width='{lanes}' is out of range; valid: 0 to 65535" in said


def test_a_skeleton_with_a_number_that_is_none_is_named(tmp_path: Path) -> None:
    text = (EXAMPLES / "skeleton.xml").read_text()
    assert 'link_width="16"' in text
    (file := tmp_path / "skeleton.xml").write_text(text.replace('link_width="16"', 'link_width="many"'))
    said = refusal(("pick", "allreduce", "--topology", "FILE", "--gpu", "h100-sxm", "--nic-gbps", "400"), file)
    assert f"{file}, completed:" in said
    assert "link_width='many' is not a whole number" in said


def test_a_listing_that_is_empty_is_none(tmp_path: Path) -> None:
    (file := tmp_path / "topo.txt").write_text("")
    said = refusal(("machines", "FILE", "--gpu", "h100-sxm", "--cpu", "GenuineIntel:6:143"), file)
    assert f"complete what nvidia-smi topo -m or lstopo --of xml printed, which {file} is not" in said
