"""Logs that are read in pieces: what is left out of them changes no finding, and what is no log is said at once."""

import gzip
import random
import tracemalloc
from pathlib import Path

import pytest

from tests.support.planted_endings import RELEASES, healthy, planted, wrapped
from tuner.base.findings import Finding, Severity
from tuner.jobs.diagnosis import kinds
from tuner.jobs.diagnosis.diagnose import diagnose
from tuner.jobs.diagnosis.records import DiagnosisOptions, FileKind
from tuner.scenario.logs import reader, thinned
from tuner.scenario.logs.lines import Lines
from tuner.scenario.logs.thinned import read_thinned

CALL = (
    "host0:{pid}:{pid} [0] NCCL INFO AllReduce: opCount {number:x} sendbuff 0x7f{address:010x} recvbuff 0x1 count 1024 "
    "datatype 7 op 0 root 0 comm 0xabc{rank} [nranks=8] stream 0x2\n"
)


def found(path: Path) -> tuple[Finding, ...]:
    (one,) = diagnose([path], DiagnosisOptions())
    return one.findings


def with_calls(release: str, calls: int) -> str:
    drawn = random.Random(release)
    log = healthy(release, "dgx-h100", 1, drawn)
    text = "".join(f"{line}\n" for _, line in log.lines[: log.complete])
    for number in range(calls):
        for rank in range(8):
            text += CALL.format(pid=10 + rank, rank=rank, number=number, address=drawn.getrandbits(40))
        text += f"step {number} loss {drawn.random():.4f}\n"
    return text


def test_of_a_log_with_many_calls_the_last_of_each_rank_is_known(tmp_path: Path) -> None:
    text = with_calls("2.28.9", 2000)
    late = CALL.format(pid=13, rank=3, number=2000, address=1)
    (tmp_path / "run.log").write_text(text + late, "utf-8")
    lines = read_thinned(tmp_path / "run.log", reader.sort_of)
    kept = list(lines.raw())
    assert len(kept) < 0.2 * text.count("\n")
    last = {thread.pid - 10: call.number for (thread, _), call in reader.parse(lines).last_calls.items()}
    assert last == {rank: 2000 if rank == 3 else 1999 for rank in range(8)}
    (differ,) = (each for each in found(tmp_path / "run.log") if each.code == "diagnose.ranks_at_different_calls")
    assert (differ.facts["ahead"], differ.facts["behind"]) == ([3], [0, 1, 2, 4, 5, 6, 7])


@pytest.mark.parametrize("kind", ["xid", "python_exception", "segmentation_fault", "kubernetes_out_of_memory"])
@pytest.mark.parametrize("shapes", [100_000, 50])
def test_a_failure_is_found_between_any_number_of_other_lines(
    kind: str, shapes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(thinned, "MOST_SHAPES", shapes)
    drawn = random.Random(kind)
    log = planted(kind, "srun --label", "after init", "2.28.9", 1)
    words = ["".join(drawn.choices("ghjkmnopqtwxyz", k=6)) for _ in range(4000)]
    noise = "".join(f"0: {' '.join(drawn.choices(words, k=9))}\n" for _ in range(5_000))
    (tmp_path / "run.log").write_text(noise + log.text + noise, "utf-8")
    first = found(tmp_path / "run.log")[0]
    assert (first.code, first.facts["rank"]) == (f"ending.{kind}", log.rank)
    assert first.facts["line"] > 5_000


@pytest.mark.parametrize("release", RELEASES)
def test_a_log_that_repeats_itself_is_judged_as_once(release: str, tmp_path: Path) -> None:
    log = healthy(release, "dgx-h100", 1, random.Random(1))
    text = "".join(wrapped("torchrun", at, line) for at, line in log.lines)
    (tmp_path / "once.log").write_text(text, "utf-8")
    (tmp_path / "often.log").write_text(200 * text, "utf-8")
    once, often = found(tmp_path / "once.log")[0], found(tmp_path / "often.log")[0]
    assert (once.code, once.severity) == (often.code, often.severity)
    assert len(list(read_thinned(tmp_path / "often.log", reader.sort_of).raw())) < 3 * text.count("\n")


ROW = "{size:12} {count:13} {dtype:>8}   sum   -1 {time:8.2f} {busbw:6.2f} {busbw:6.2f} {wrong:5} {time:8.2f} 1 1  0\n"
TABLE_HEAD = """# nThread 1 nGpus 8 minBytes 8 maxBytes 8589934592 step: 2(factor) warmup iters: 5 iters: 20
#  Rank  0 Group  0 Pid 10 on host0 device  0 [0000:1b:00] NVIDIA H100 80GB HBM3
# Collective test starting: all_reduce_perf
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
"""


@pytest.mark.parametrize("tag", ["", "[1,0]<stdout>:"])
@pytest.mark.parametrize("dtype", ["float", "bfloat16"])
def test_results_in_a_log_that_is_read_in_pieces_are_judged(
    dtype: str, tag: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows between millions of calls; of 300 sizes, more than of any other line that repeats is kept."""
    devices = "".join(
        f"#  Rank {rank:2} Group  0 Pid {10 + rank} on host0 device {rank:2} [0000:{27 + rank:02x}:00] NVIDIA H100\n"
        for rank in range(8)
    )
    head = TABLE_HEAD.replace(TABLE_HEAD.splitlines()[1] + "\n", devices)
    calls = "".join(CALL.format(pid=10 + rank, rank=rank, number=1, address=1) for rank in range(8))
    rows = "".join(
        calls + ROW.format(size=size, count=size // 4, dtype=dtype, time=99.0, busbw=1.0, wrong=int(size == 4 * 299))
        for size in (4 * step for step in range(1, 301))
    )
    tail = "# Out of bounds values : 1 FAILED\n# Avg bus bandwidth    : 1\n#\n"
    file = tmp_path / "run.log"
    text = with_calls("2.28.9", 10) + head + rows + tail
    file.write_text("".join(line if "NCCL" in line else tag + line for line in text.splitlines(keepends=True)), "utf-8")
    small = {each.kind: [found.code for found in each.findings] for each in diagnose([file], DiagnosisOptions())}
    monkeypatch.setattr(kinds, "LARGE_BYTES", 1000)
    large = {each.kind: [found.code for found in each.findings] for each in diagnose([file], DiagnosisOptions())}
    assert small == large
    assert FileKind.results in large
    assert "accept.wrong_results" in large[FileKind.results]


def test_a_log_without_results_has_none_when_it_is_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "run.log").write_text(with_calls("2.28.9", 10), "utf-8")
    monkeypatch.setattr(kinds, "LARGE_BYTES", 1000)
    (one,) = diagnose([tmp_path / "run.log"], DiagnosisOptions())
    assert one.kind is FileKind.log


def test_times_before_lines_do_not_make_more_threads(tmp_path: Path) -> None:
    """The last line of each thread is remembered, not of each thread and second."""
    line = "2026-11-28T10:{minute:02}:{second:02}.{ms:03} " + CALL
    text = "".join(
        line.format(minute=n // 60 % 60, second=n % 60, ms=n % 1000, pid=10 + n % 8, rank=n % 8, number=n, address=n)
        for n in range(4000)
    )
    (tmp_path / "run.log").write_text(text, "utf-8")
    kept = list(read_thinned(tmp_path / "run.log", reader.sort_of).raw())
    assert len(kept) <= thinned.MOST_ALIKE + 8


def test_memory_is_bounded_by_what_is_kept_not_by_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thinned, "MOST_LINES", 1000)
    monkeypatch.setattr(thinned, "MOST_SHAPES", 1000)
    with (tmp_path / "run.log").open("w", encoding="utf-8") as file:
        for number in range(50_000):
            file.write(
                f"h:1:{number} [0] NCCL INFO Channel {number % 32:02} : 0[0] -> 1[1] via P2P/{number:x}{'z' * 50}\n"
            )
    tracemalloc.start()
    lines = read_thinned(tmp_path / "run.log", reader.sort_of)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert lines.left_out
    assert peak < (tmp_path / "run.log").stat().st_size


def test_lines_without_an_end_are_taken_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thinned, "MOST_LINE_BYTES", 100)
    monkeypatch.setattr(thinned, "BLOCK_BYTES", 64)
    (tmp_path / "run.log").write_bytes(b"x" * 5000 + b"\nh:1:1 [0] NCCL INFO NCCL version 2.28.9+cuda13.0\nKilled")
    lines: Lines = read_thinned(tmp_path / "run.log", reader.sort_of)
    assert [each.number for each in lines] == [2, 3]


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("content", [random.Random(1).randbytes(300_000), b"a program said something\n" * 4000])
def test_what_is_no_log_says_so(content: bytes, large: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if large:
        monkeypatch.setattr("tuner.jobs.diagnosis.kinds.LARGE_BYTES", 1000)
    (tmp_path / "run.log").write_bytes(content)
    first = found(tmp_path / "run.log")[0]
    assert first.severity is Severity.UNKNOWN
    assert "the file has no line of NCCL" in first.as_json()["text"]


def test_a_packed_log_is_read(tmp_path: Path) -> None:
    log = planted("cuda_ecc", "torchrun", "after init", "2.25.1", 3)
    (tmp_path / "run.log.gz").write_bytes(gzip.compress(log.text.encode()))
    assert found(tmp_path / "run.log.gz")[0].code == "ending.cuda_ecc"
