"""Words as people write them: near misses get a suggestion, other spellings are taken."""

import json
from pathlib import Path

import pytest

from tests.support.command_line import run
from tuner import release
from tuner.base.errors import BadInput, UnknownRelease
from tuner.base.names import TYPE_ALIASES, Collective, DataType, by_name

PICK = ("pick", "allreduce", "--machine", "dgx-h100", "--bytes", "1M")


@pytest.mark.parametrize(
    ("words", "suggests"),
    [
        (("pik", "allreduce"), "pick"),
        (("plugin", "lnit"), "lint"),
        (("pick", "allredcue", "--machine", "dgx-h100"), "AllReduce"),
        (("edges", "reduce-scater", "--machine", "dgx-h100"), "ReduceScatter"),
        ((*PICK, "--dtype", "bflaot16"), "bfloat16"),
    ],
    ids=lambda words: words[-1] if isinstance(words, tuple) else words,
)
def test_a_near_miss_is_answered_with_what_was_meant(words: tuple[str, ...], suggests: str) -> None:
    done = run(*words, code=2)
    assert f"; did you mean {suggests}?; " in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "suggests"),
    [
        ((*PICK, "--env", "NCCL_ALG=Ring"), "NCCL_ALGO"),
        ((*PICK, "--env", "NCCL_P2P_DISABL=1"), "NCCL_P2P_DISABLE"),
        (("graphs", "--machine", "dgx-h100", "--env", "NCCL_CROS_NIC=1"), "NCCL_CROSS_NIC"),
    ],
    ids=lambda words: words[-1] if isinstance(words, tuple) else words,
)
def test_a_variable_that_nccl_does_not_read_is_noted_with_what_was_meant(words: tuple[str, ...], suggests: str) -> None:
    assert f" does not read it; did you mean {suggests}?\n" in run(*words).stderr


@pytest.mark.parametrize(
    "text",
    ["2.28.9", "v2.28.9", "2.28.9-1", "v2.28.9-1", "V2.28.9-1", " 2.28.9 ", "2.28.9+cuda13.0"],
)
def test_a_release_is_taken_by_its_tag(text: str) -> None:
    assert release.named(text) == "2.28.9"
    assert release.load(text) is release.load("2.28.9")


@pytest.mark.parametrize("text", ["", "2", "2.2", "2.28.", "2.99.1", "3.0", "2.28.9.1", "v", "x2.28.9", "2.28.9-"])
def test_what_names_no_release_is_refused(text: str) -> None:
    with pytest.raises(
        UnknownRelease, match=r"; valid: 2\.\d+\.\d+, .* and \d+ more \(all: nccl-tuner doctor\), or a libnccl"
    ):
        release.named(text)


@pytest.mark.parametrize("short", ["2.28", "v2.28", "2.29", "2.18"])
def test_a_short_release_is_its_newest_and_said(short: str) -> None:
    bare = short.removeprefix("v")
    newest = [name for name in release.names() if name.startswith(f"{bare}.")][-1]
    for words in (("--nccl", short), ("--nccl", "2.22.3", "--change", f"nccl={short}")):
        verb = PICK if len(words) == 2 else ("diff", "allreduce", "--machine", "dgx-h100")
        done = run(*verb, *words)
        assert (
            f"note: NCCL {short} is taken as {newest}, the newest {short} release that is known here\n" in done.stderr
        )
        assert f"NCCL {newest}" in done.stdout


def test_a_release_is_said_once_and_a_whole_one_is_not() -> None:
    done = run("diff", "allreduce", "--machine", "dgx-h100", "--nccl", "2.22", "v2.28.9-1")
    assert done.stderr == "note: NCCL 2.22 is taken as 2.22.3, the newest 2.22 release that is known here\n"
    assert "NCCL 2.28.9" in done.stdout


@pytest.mark.parametrize(
    ("word", "dtype"),
    [
        ("bf16", DataType.bfloat16),
        ("half", DataType.float16),
        ("fp16", DataType.float16),
        ("fp32", DataType.float32),
        ("float", DataType.float32),
        ("double", DataType.float64),
        ("fp8", DataType.float8e4m3),
        ("float8_e4m3fn", DataType.float8e4m3),
        ("fp8_e5m2", DataType.float8e5m2),
        ("torch.bfloat16", DataType.bfloat16),
        ("torch.half", DataType.float16),
        ("int", DataType.int32),
        ("char", DataType.int8),
        ("BF16", DataType.bfloat16),
    ],
)
def test_types_by_other_names(word: str, dtype: DataType) -> None:
    assert by_name(DataType, word, "type") is dtype


def test_aliases_of_types_are_of_types_alone_and_none_is_another_types_name() -> None:
    assert not TYPE_ALIASES.keys() & {dtype.name for dtype in DataType}
    with pytest.raises(BadInput):
        by_name(Collective, "half", "collective")


def test_a_type_answers_as_its_own_name_does() -> None:
    own, other = (json.loads(run(*PICK, "--dtype", word, "--json").stdout) for word in ("bfloat16", "bf16"))
    assert own == other


TRACE = ("budget", "docs/examples/trace.json", "--machine", "dgx-a100", "--nodes", "2")


def test_a_trace_that_is_priced_with_another_release_is_said_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])
    (of,) = json.loads(Path(TRACE[1]).read_text())["distributedInfo"]["nccl_version"].split()
    other = "2.28.9" if of != "2.28.9" else "2.22.3"
    said = run(*TRACE, "--ranks", "16", "--nccl", other).stderr
    assert f"{TRACE[1]} is from NCCL {of}, but is priced with {other}; add --nccl {of} to have what ran priced" in said
    assert "priced with" not in run(*TRACE, "--ranks", "16", "--nccl", f"{other},{of}").stderr


def test_a_trace_is_priced_with_its_own_release_where_none_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])
    (of,) = json.loads(Path(TRACE[1]).read_text())["distributedInfo"]["nccl_version"].split()
    done = run(*TRACE, "--ranks", "16")
    assert f"note: priced with NCCL {of}, from which the files are; choose another release with --nccl" in done.stderr
    assert f"8 GPUs each, NCCL {of}: " in done.stdout
    assert done.stdout == run(*TRACE, "--ranks", "16", "--nccl", of).stdout


def test_settings_that_harm_are_said_of_a_budgets_columns_and_of_logs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])
    said = "NCCL_CHUNK_SIZE=1048576 may destroy data: above the 131072 bytes of a step"
    assert f"note: {said}" in run(*TRACE, "--ranks", "16", "--setting", "NCCL_CHUNK_SIZE=1048576").stderr
    lines = Path("docs/examples/nccl.log").read_text().splitlines()
    first = next(line for line in lines if "NCCL INFO" in line).partition("NCCL INFO")[0]
    file = tmp_path / "nccl.log"
    own = f"{first}NCCL INFO NCCL_CHUNK_SIZE set by environment to 1048576."
    file.write_text("\n".join([*lines, own, ""]))
    assert f"log: {said}" in run("log", str(file)).stdout
    assert f"note: {said}" in run("budget", str(file), "--machine", "dgx-h100", "--nodes", "2").stdout


def test_names_as_nccl_writes_them_are_taken() -> None:
    own = run("pick", "ncclAllReduce", *PICK[2:], "--dtype", "ncclFloat16", "--op", "ncclMax", "--json").stdout
    assert own == run(*PICK, "--dtype", "float16", "--op", "max", "--json").stdout


def test_a_machine_among_the_words_of_diff_is_said() -> None:
    assert "dgx-h100 is a machine; valid: --machine dgx-h100" in run("diff", "dgx-h100", "2.22.3", code=2).stderr


def test_two_releases_are_before_and_after() -> None:
    words = ("diff", "allreduce", "--machine", "dgx-h100", "--json")
    assert run(*words, "2.22.3", "2.28.9").stdout == run(*words, "--nccl", "2.22.3", "2.28.9").stdout
    assert "more than two releases: 2.22.3, 2.28.9, 2.29.2" in run(*words, "2.22.3", "2.28.9", "2.29.2", code=2).stderr
