"""Reads the files of a job's collectives, with a line on a terminal for large ones."""

from collections.abc import Callable, Sequence
from pathlib import Path

from tuner.base.errors import BadInput
from tuner.cli.command import F, Parsed, option, stacked
from tuner.cli.communicator_options import CommunicatorOptions, ranks_of
from tuner.cli.output import human_bytes, progress, say
from tuner.jobs.traces.calls import CallList
from tuner.jobs.traces.read import read
from tuner.scenario import Scenario

LARGE_BYTES = 16 << 20  # from which reading takes long enough to be said


def communicators_options(verb: str) -> Callable[[F], F]:
    """Options that select communicators in the files; ``verb`` says in help what is done with the calls of these
    communicators.
    """
    return lambda function: stacked(
        function,
        option(
            "--ranks",
            f"{verb} only calls of communicators with this number of ranks, or of the communicator of these ranks, "
            "such as 0-7:2. [default: all ranks of the described communicator]",
            type=Parsed("ranks", _ranks_or_count),
            metavar="COUNT|RANGES",
        ),
        option(
            "--communicator",
            "communicators",
            f"{verb} only calls of the communicator that FILE calls by this name; repeatable.",
            multiple=True,
            metavar="NAME",
        ),
    )


def _ranks_or_count(text: str) -> int | tuple[int, ...]:
    return int(text) if text.strip().isdecimal() and int(text) > 0 else ranks_of(text)


def count_or_part(ranks: int | tuple[int, ...] | None) -> tuple[int | None, tuple[int, ...] | None]:
    """Reads ``--ranks``: the number of ranks of calls' communicators, or the ranks that are members."""
    return (ranks, None) if isinstance(ranks, int) else (None, ranks)


def as_they_ran(
    lists: Sequence[CallList], communicator: CommunicatorOptions, described: Scenario, done: str
) -> Scenario:
    """The communicator with the release of the files, if neither the user nor a log names one.

    ``done``: what is done with the calls, for messages. A line on stderr says which release is used, or that it differs
    from that of the files.
    """
    from tuner.jobs.workload import job  # with all that prices calls

    said = job.release_of(lists)
    if communicator["nccl"] is None and communicator["log"] is None and said not in (None, described.nccl):
        try:
            described = communicator.scenario(nccl=said)
        except BadInput as error:
            say(f"note: the files are from NCCL {said}, but they are not {done} with it: {error}", err=True)
        else:
            say(
                f"note: {done} with NCCL {said}, from which the files are; choose another release with --nccl", err=True
            )
    for line in job.of_other_releases(lists, [described.nccl], done):
        say(f"note: {line}", err=True)
    return described


def read_files(files: Sequence[Path], ranks: int) -> list[CallList]:
    """Reads the calls of each file; ``ranks`` is used for files that do not say the number of ranks. Raises BadInput
    and BadMeasurement."""
    lists = []
    for number, path in enumerate(files, start=1):
        size = path.stat().st_size if path.is_file() else 0
        if size >= LARGE_BYTES:
            progress(f"reading {path}, {human_bytes(size)} (file {number} of {len(files)})")
        lists.append(read(path, ranks))
    return lists
