"""Sizes as nccl-tests gives them, picks as comma-separated values, variables as NCCL reads them."""

import csv
import io
import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from tests.support.available_releases import HERE
from tests.support.command_line import run
from tuner import release
from tuner.base.errors import BadInput
from tuner.base.sizes import about, human_bytes, size_list
from tuner.cli import everything
from tuner.emulator import fitted_constants
from tuner.emulator.fitted_constants import FittedConstants
from tuner.oracle import library
from tuner.release.variables import ignored
from tuner.scenario import notes

ON = ("--machine", "dgx-h100", "--nodes", "2", "--nccl", "2.28.9")


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("8..64*2", [8, 16, 32, 64]),
        ("8..64", [8, 16, 32, 64]),
        ("8..63*2", [8, 16, 32]),
        ("1M..4M+1M", [1 << 20, 2 << 20, 3 << 20, 4 << 20]),
        ("1K..1K", [1024]),
        ("1K..1M*4,3,1G", [1 << 10, 1 << 12, 1 << 14, 1 << 16, 1 << 18, 1 << 20, 3, 1 << 30]),
    ],
)
def test_ranges_of_sizes(text: str, sizes: list[int]) -> None:
    assert size_list(text) == sizes


@pytest.mark.parametrize(
    "text", ["8..4", "8..64*1", "8..64*x", "8..64*0", "8..", "..8", "8..64+0", "1..1T+1", "8...64"]
)
def test_ranges_that_are_none(text: str) -> None:
    with pytest.raises(BadInput, match="size"):
        size_list(text)


def test_a_range_is_what_its_sizes_are() -> None:
    listed = run("pick", "allreduce", *ON, "--bytes", "8,32,128,512", "--json").stdout
    assert run("pick", "allreduce", *ON, "--bytes", "8..512*4", "--json").stdout == listed


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (1, "1 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (1968826, "1.88 MiB"),
        (11586590, "11 MiB"),
        (203894, "199 KiB"),
        (1 << 40, "1 TiB"),
    ],
)
def test_a_reading_of_bytes(nbytes: int, text: str) -> None:
    assert about(nbytes) == text


@pytest.mark.parametrize(("nbytes", "text"), [(0, "0 B"), (5, "5 B"), (3 << 20, "3 MiB"), ((1 << 20) + 1, "1048577 B")])
def test_an_exact_reading_of_bytes(nbytes: int, text: str) -> None:
    assert human_bytes(nbytes) == text


def test_picks_as_comma_separated_values_are_those_of_json() -> None:
    words = ("pick", "allreduce", *ON, "--bytes", "8..1G*8")
    rows = list(csv.DictReader(io.StringIO(run(*words, "--csv").stdout)))
    answers = json.loads(run(*words, "--json").stdout)["picks"]
    assert [int(row["bytes"]) for row in rows] == [answer["bytes"] for answer in answers]
    for row, answer in zip(rows, answers, strict=True):
        pick = answer["pick"]
        own = {name: str(pick[name]) for name in ("algorithm", "protocol", "channels", "threads", "time_us")}
        assert own.items() <= row.items()
        assert (row["nccl"], row["collective"], row["calibrated_us"]) == ("2.28.9", "AllReduce", "")


def test_calibrated_times_are_in_the_values_too() -> None:
    text = run("pick", "allreduce", *ON, "--bytes", "1M", "--time", "both", "--csv").stdout
    (row,) = csv.DictReader(io.StringIO(text))
    assert float(row["calibrated_low_us"]) < float(row["calibrated_us"]) < float(row["calibrated_high_us"])


@pytest.mark.parametrize(
    "words", [("allreduce", "--csv", "--json"), ("allreduce", "--csv", "--launch"), ("alltoall", "--csv")]
)
def test_values_of_what_has_none_are_refused(words: tuple[str, ...]) -> None:
    said = run("pick", *words, *ON, code=2).stderr
    assert "--csv" in said
    assert said.endswith(": remove it\n")


@pytest.mark.parametrize("given", ["99", "9.9", "12", "80,99"])
def test_a_compute_capability_that_no_gpu_has_is_refused(given: str) -> None:
    log = Path(__file__).parents[2] / "docs" / "examples" / "nccl.log"
    done = run("log", "--check", str(log), "--comp-cap", given, code=2)
    assert "valid: 3.5, 3.7, 5.0" in done.stderr


def test_a_dry_run_with_fitted_constants_shows_what_nccl_itself_picks_and_what_the_table_saves(tmp_path: Path) -> None:
    """Constants by which Ring is far slower than NCCL thinks: its own pick stays, at the fitted time."""
    table, constants = tmp_path / "my.table", tmp_path / "fitted.toml"
    table.write_text("nccl-tuner-table 1\nallreduce -> tree/ll\n# rows: 1\n")
    slower = {"base_latency_us": {"ring": {"ll": 500.0, "ll128": 500.0, "simple": 500.0}}}
    fitted_constants.write(constants, FittedConstants("2.28.9", slower, {}))
    one = ("--machine", "dgx-h100", "--nccl", "2.28.9", "--bytes", "1M")
    (plain,) = json.loads(run("pick", "allreduce", *one, "--json").stdout)["picks"]
    given = run("pick", "allreduce", *one, "--constants", str(constants), "--json").stdout
    (by_fitted,) = json.loads(given)["picks"]
    assert plain["pick"]["algorithm"] == "Ring" != by_fitted["pick"]["algorithm"]
    words = ("plugin", "dry-run", str(table), "allreduce", *one)
    (size,) = json.loads(run(*words, "--constants", str(constants), "--json").stdout)["sizes"]
    own = size["fitted"]
    assert (own["algorithm"], own["protocol"]) == (plain["pick"]["algorithm"], plain["pick"]["protocol"])
    assert own["time_us"] == by_fitted["cost_us"][f"{own['algorithm']}/{own['protocol']}"]
    assert own["saved_percent"] == pytest.approx(100 * (1 - size["table"]["time_us"] / own["time_us"]))
    assert own["saved_percent"] > 50
    shown = run(*words, "--constants", str(constants)).stdout
    assert f"{own['saved_percent']:.1f} %" in shown
    assert "times are by the fitted constants" in shown
    assert "fitted" not in json.loads(run(*words, "--json").stdout)["sizes"][0]


PICK = ("pick", "allreduce", "--machine", "dgx-h100", "--nodes", "2", "--bytes", "1K,1M,64M")


@pytest.mark.parametrize(
    ("nccl", "variable"),
    [
        ("2.22.3", "NCCL_PAT_ENABLE=1"),
        ("2.24.3", "NCCL_CTA_POLICY=1"),
        ("2.25.1", "NCCL_LL128_C2C=0"),
        ("2.28.9", "NCCL_MULTI_RANK_GPU_ENABLE=1"),
    ],
)
def test_a_variable_of_other_releases_changes_nothing_and_is_said(nccl: str, variable: str) -> None:
    plain = run(*PICK, "--nccl", nccl, "--json")
    done = run(*PICK, "--nccl", nccl, "--json", "--env", variable)
    assert done.stderr == f"note: {variable.partition('=')[0]}: NCCL {nccl} does not read it\n"
    assert json.loads(done.stdout) == json.loads(plain.stdout)


@pytest.mark.live
@pytest.mark.parametrize("nccl", HERE)
def test_what_a_release_ignores_is_not_in_its_library(nccl: str) -> None:
    """NCCL's variables are texts in it, as every one that the release reads shows."""
    read, content = release.load(nccl), Path(library.find(nccl).path).read_bytes()
    everywhere = {name for one in release.names() for name in release.load(one).listed_variables}
    # All texts in one pass: a search of each name in 400 MB takes a hundred times longer.
    texts = {text.decode() for text in re.findall(rb"NCCL_\w+(?=\0)", content)}
    assert all(name.startswith("NCCL_") for name in everywhere)
    assert texts.isdisjoint(ignored(read, everywhere))
    assert "NCCL_ALGO" in texts


@pytest.mark.parametrize(
    ("variable", "says"),
    [
        ("NCCL_NTHREADS=abc", "reads it as 0, which counts as not set"),
        ("NCCL_NTHREADS=-5", "counts it as not set"),
        ("NCCL_NTHREADS=100", "counts it as 512"),
        ("NCCL_NTHREADS=32", "counts it as 64"),
        ("NCCL_NTHREADS=0100", "reads it as 64"),
        ("NCCL_NTHREADS=99999999999999999999", "ignores it, as it is no whole number of 64 bits"),
        ("NCCL_MIN_NCHANNELS=-5", "counts it as no minimum"),
        ("NCCL_MIN_NCHANNELS=99", "counts it as 64"),
        ("NCCL_MAX_NCHANNELS=0", "counts it as 1"),
        ("NCCL_CROSS_NIC=yes", "reads it as 0"),
    ],
)
def test_a_value_that_nccl_takes_for_another_is_said(variable: str, says: str) -> None:
    done = run(*PICK, "--nccl", "2.28.9", "--env", variable)
    assert done.stderr == f"note: {variable}: NCCL 2.28.9 {says}\n"


@pytest.mark.parametrize(
    "variable",
    [
        *(
            "NCCL_NTHREADS=256",
            "NCCL_NTHREADS=512",
            "NCCL_NTHREADS=64",
            "NCCL_NTHREADS=0x100",
            "NCCL_NTHREADS=",
            "NCCL_MIN_NCHANNELS=4",
            "NCCL_MAX_NCHANNELS=-2",
        ),
        *("NCCL_P2P_LEVEL=NVL", "NCCL_ALGO=Ring", "NCCL_NET_GDR_LEVEL=PHB", "NCCL_DEBUG=INFO", "NCCL_IB_HCA=mlx5"),
    ],
)
def test_a_value_that_is_taken_as_it_stands_is_not(variable: str) -> None:
    assert run(*PICK, "--nccl", "2.28.9", "--env", variable).stderr == ""


def test_without_a_digit_newer_releases_take_their_default() -> None:
    newest = release.load(release.names()[-1])
    (said,) = notes.of_variables(newest, {"NCCL_NTHREADS": "abc"})
    assert said == f"NCCL_NTHREADS=abc: NCCL {newest.name} ignores it, as it is no whole number of 64 bits"


def test_one_variable_has_one_value() -> None:
    done = run(*PICK, "--nccl", "2.28.9", "--env", "NCCL_ALGO=Ring", "--env", "NCCL_ALGO=Tree", code=2)
    assert (
        done.stderr == "nccl-tuner: --env NCCL_ALGO=Ring and NCCL_ALGO=Tree contradict each other: give one of them\n"
    )


def test_the_answer_comes_before_its_notes_and_a_refusal_after_them() -> None:
    asked = ["pick", "allreduce", "--machine", "p5.48xlarge", "--nccl", "2.28"]
    answered = CliRunner().invoke(everything, [*asked, "--bytes", "1M"])
    assert answered.exit_code == 0
    assert answered.output.startswith("AllReduce on 1 x aws-p5-rdma")
    assert "\nnote: NCCL 2.28 is taken as 2.28.9" in answered.output
    refused = CliRunner().invoke(everything, [*asked, "--ranks", "99"])
    assert refused.output.startswith("note: NCCL 2.28 is taken as 2.28.9")
    assert refused.exit_code != 0
