"""Sizes as nccl-tests gives them, and picks as comma-separated values."""

import csv
import io
import json
from pathlib import Path

import pytest

from tests.support.command_line import run
from tuner.base.errors import BadInput
from tuner.base.sizes import about, human_bytes, size_list
from tuner.emulator import fitted_constants
from tuner.emulator.fitted_constants import FittedConstants

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
    answers = json.loads(run(*words, "--json").stdout)
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


@pytest.mark.parametrize("words", [("allreduce", "--csv", "--json"), ("alltoall", "--csv")])
def test_values_of_what_has_none_are_refused(words: tuple[str, ...]) -> None:
    assert run("pick", *words, *ON, code=2).stderr.startswith("nccl-tuner: --csv ")


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
    (plain,) = json.loads(run("pick", "allreduce", *one, "--json").stdout)
    (by_fitted,) = json.loads(run("pick", "allreduce", *one, "--constants", str(constants), "--json").stdout)
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
    assert "times: by the fitted constants" in shown
    assert "fitted" not in json.loads(run(*words, "--json").stdout)["sizes"][0]
