"""``nccl-tuner verify`` of several arms of one machine, as a user meets it."""

import json
import re
from pathlib import Path

from tests.support import nccl_tests_text
from tests.support.command_line import run

MIB = 1 << 20
B200 = ("verify", "--table", "b200-8x-64n__2.29.7__together")


def log(path: Path, factor: float) -> Path:
    times = [(MIB << power, 100 * factor * 2**power) for power in range(6, 12)]
    return nccl_tests_text.write(path, times, nodes=2)


def test_arms_are_judged_and_the_row_is_printed(tmp_path: Path) -> None:
    files = [f"default={log(tmp_path / 'a.log', 1.2)}", f"Ring/Simple={log(tmp_path / 'b.log', 1.0)}"]
    words = ("verify", "--arm", files[0], "--arm", files[1], "--machine", "dgx-h100", "--noise", "3")
    printed = run(*words).stdout
    assert "allreduce bytes=64M..2G ranks=16 nodes=2 -> ring/simple" in printed
    assert "not best at 12 of 12 sizes beyond the noise; a time may be off by 3.0 % (stated)" in printed
    answer = json.loads(run(*words, "--json").stdout)
    keys = {"machine", "nccl", "sizes", "agreement", "splits", "rows", "skipped", "simulated", "stand_in"}
    assert {"nccl_tuner_json", *keys} == {*answer}
    first = answer["sizes"][0]
    assert (first["pick"], first["best"], first["verdict"]) == ("NVLSTree/Simple", "Ring/Simple", "loses")
    assert first["low"] < first["regret"] < first["high"]


def test_the_default_alone_is_unknown(tmp_path: Path) -> None:
    plain = log(tmp_path / "a.log", 1.0)
    printed = run("verify", "--arm", f"default={plain}", "--machine", "dgx-h100").stdout
    assert "regret: unknown at all 12 sizes" in printed
    assert "0.00 %" not in printed


def test_what_to_force_next_is_listed_with_its_variables() -> None:
    printed = run(*B200, "--nodes", "4", "--next").stdout
    assert "NCCL_ALGO=Ring NCCL_PROTO=LL128" in printed
    assert "calls that tell most about this cluster" in printed
    assert "NCCL_ALGO=Ring NCCL_PROTO=Simple" not in printed
    answer = json.loads(run(*B200, "--nodes", "4", "--next", "--json").stdout)
    assert {"combination", "possible_gain", "low_us", "pick_us", "measured"} <= set(answer["next"]["runs"][0])


def test_where_there_are_no_calibrated_times_the_reason_is_said() -> None:
    printed = run("verify", "--table", "v100-8x__2.27.5__dgx1", "--next").stdout
    assert "not known what to force next: no calibration exists for Volta GPUs" in printed


def test_nothing_is_judged_where_all_results_were_wrong(tmp_path: Path) -> None:
    right, wrong = log(tmp_path / "a.log", 1.0), tmp_path / "wrong.log"
    lines = (re.sub(r"(?<=\.\d\d) +0(?= |$)", "  12", line) for line in right.read_text().splitlines())
    wrong.write_text("".join(f"{line}\n" for line in lines))
    for words in ((), ("--machine", "dgx-h100")):
        said = run("verify", str(wrong), *words, code=3).stderr
        assert said.startswith("nccl-tuner: cannot be judged: ")
    assert "12 rows: results that were wrong" in said


def test_bad_input_is_one_line(tmp_path: Path) -> None:
    for words, hint in (
        (("--arm", "Ring"), "expected NAME=FILE"),
        (("--arm", f"Rong={log(tmp_path / 'a.log', 1)}", "--machine", "dgx-h100"), "give default"),
        (("--table", "nowhere"), "b200-8x-64n__2.29.7__together"),
        (("--table", B200[2], "--plot", "x.png"), "without --arm"),
        (("--table", B200[2], "--calibration", "dgx-b200"), "only applies with --next"),
        ((), "FILE"),
    ):
        done = run("verify", *words, code=2)
        assert hint in done.stderr
        assert done.stdout == ""
