"""Decides which table a job gets, or none: once per job, from facts that are the same on all ranks.

No rank decides by itself: if it used its host, its clock or a random number, the ranks of a job would disagree.
"""

import errno
import hashlib
import os
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput
from tuner.base.expressions import expression
from tuner.base.files import read_bytes, write_text
from tuner.base.records import sha256

JOB_VARIABLES = ("SLURM_JOB_ID", "TORCHELASTIC_RUN_ID", "PBS_JOBID", "LSB_JOBID")
NAMESPACE = "nccl-tuner"  # namespace of signatures by ssh-keygen
SWITCHED = expression(rb"[ \t]*(?:(?:off|on)[ \t]+\d{1,19}[ \t]*)?(?:#.*)?")  # a line of a switch
TIME = expression(rb"[ \t]*(?:off|on)[ \t]+(\d{1,19})[ \t]*(?:#.*)?$")  # a line that switches
MOST_SWITCH_BYTES = 4 << 20
MEND = "`nccl-tuner plugin switch FILE mend`"
NEW_LINE = "\n"
LEAST_MARGIN_S = 120  # time until each node sees a changed file, and by which clocks may differ


@dataclass(frozen=True, slots=True)
class Canary:
    """A table that only some jobs get: listed jobs, jobs whose hosts are all listed, and ``percent`` % of the rest."""

    table: Path
    percent: float = 0.0
    jobs: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()


def job_name(environment: Mapping[str, str]) -> str | None:
    """The job's number, read from the variables of Slurm, torchrun, PBS or LSF; None if none is set."""
    return next((environment[name] for name in JOB_VARIABLES if environment.get(name)), None)


def gets_canary(canary: Canary, job: str, hosts: Sequence[str] = ()) -> str | None:
    """The reason why a job on ``hosts`` gets the canary's table; None if it does not get it. ``job`` is the job's
    number, which is the same on all ranks and after a restart.

    A hash of the table and the job's number decides whether a job is in the percentage, so that different tables are
    tried on different jobs. BadInput if the table cannot be read, and for an invalid percentage.
    """
    if not 0 <= canary.percent <= 100:
        raise BadInput(f"{canary.percent} is not a percentage from 0 to 100")
    if job in canary.jobs:
        return f"job {job} is in the list"
    if canary.hosts and hosts and set(hosts) <= set(canary.hosts):
        return f"all {len(hosts)} hosts of job {job} are in the list"
    place = 100 * int.from_bytes(hashlib.sha256(f"{sha256(canary.table)} {job}".encode()).digest()[:8]) / 2**64
    return f"job {job} is among {canary.percent:g} %" if place < canary.percent else None


def names(path: Path) -> tuple[str, ...]:
    """The names of jobs or hosts in a file, one or several per line; text after # is a comment. BadInput if the file
    cannot be read."""
    lines = read_bytes(path, BadInput).decode(errors="replace").splitlines()
    return tuple(word for line in lines for word in line.partition("#")[0].split())


def switch(path: Path, off: bool, margin_s: int = LEAST_MARGIN_S, why: str = "") -> int:
    """Appends a line to the switch, a file that all ranks read, and returns the time in s from which the line counts.

    It counts for jobs that begin at this time or later.

    Jobs that began earlier keep their state, even for communicators that they create later: ranks that read the file at
    different moments have to agree. The line's time is never before that of the last line, as the plugin refuses a file
    whose times are not in order (a fast clock may have written the last one). BadInput if ``margin_s`` is too short for
    all nodes to see the file, if the reason has more than one line, and if the file does not exist or is not a switch,
    such as a table. If the line cannot be written completely, the file stays as it was.
    """
    if margin_s < LEAST_MARGIN_S:
        raise BadInput(f"{margin_s} s are too few for all nodes to see the file: give {LEAST_MARGIN_S} or more")
    if not why.isprintable():
        raise BadInput("the reason has to be one line of printable text")
    before = _switch_lines(path)
    wrong = next((number for number, line in enumerate(before, 1) if not SWITCHED.fullmatch(line)), None)
    if wrong is not None:
        raise BadInput(
            f"{path} is not a switch: line {wrong} is not 'off SECONDS' or 'on SECONDS': use another file, or {MEND}"
        )
    times = [int(found[1]) for line in before if (found := TIME.match(line))]
    if times != sorted(times):
        raise BadInput(f"{path}: its lines are not in the order of their times, so the plugin refuses it: {MEND}")
    since_s = max(int(time.time()) + margin_s, *times, 0)
    line = f"{'off' if off else 'on'} {since_s}{f' # {why}' if why else ''}\n"
    unended = before and before[-1] != b"" and not _ends(path)
    _append(path, f"{NEW_LINE if unended else ''}{line}".encode())
    return since_s


def mend(path: Path) -> list[str]:
    """Repairs a switch that the plugin refuses, and drops lines with a time far in the future; returns what changed.

    An invalid line becomes a comment; a time before that of the line above is set to that time. The file is replaced.
    BadInput if the file has no line of a switch at all (a table, for example), or cannot be written.
    """
    read, changes, made, last, now = _switch_lines(path), list[str](), list[str](), 0, int(time.time())
    lines = [line.rstrip(b"\r") for line in read]
    if lines and not any(TIME.match(line) for line in lines) and any(not SWITCHED.fullmatch(line) for line in lines):
        raise BadInput(f"{path} is not a switch: no line is 'off SECONDS' or 'on SECONDS': use another file")
    for number, line in enumerate(lines, 1):
        text = "".join(each if " " <= each <= "~" else "?" for each in line.decode("ascii", "replace"))
        found = TIME.match(line) if SWITCHED.fullmatch(line) else None
        if found is None and not SWITCHED.fullmatch(line):
            changes.append(f"line {number} was none: now a comment")
            made.append(f"# {text}")
        elif found is not None and int(found[1]) > now + 2 * LEAST_MARGIN_S:
            changes.append(f"line {number} was of a time far ahead: now a comment")
            made.append(f"# {text}")
        elif found is not None and int(found[1]) < last:
            changes.append(f"line {number} was before the line above: now of its time")
            made.append(f"{text.split()[0]} {last} # {text}")
        else:
            last = int(found[1]) if found is not None else last
            made.append(text)
    if lines != read:
        changes.append("lines ended in CR LF: now in LF")
    if lines and not _ends(path):
        changes.append("the last line did not end: now it does")
    if changes:
        write_text(path, "".join(f"{line}\n" for line in made))
    return changes


def _switch_lines(path: Path) -> list[bytes]:
    """The lines of a switch, split as the plugin splits them. BadInput if the file is missing or not a regular file."""
    if path.exists() and not path.is_file():
        raise BadInput(f"{path} is not a regular file")
    lines = read_bytes(path, BadInput, MOST_SWITCH_BYTES).split(b"\n")
    return lines[:-1] if lines[-1] == b"" else lines


def _ends(path: Path) -> bool:
    return read_bytes(path, BadInput, MOST_SWITCH_BYTES).endswith(b"\n")


def _append(path: Path, line: bytes) -> None:
    """Appends the whole line, or leaves the file as it was."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND)
        try:
            size = os.fstat(descriptor).st_size
            try:
                if os.write(descriptor, line) != len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                os.fsync(descriptor)
            except OSError:
                os.ftruncate(descriptor, size)
                raise
        finally:
            os.close(descriptor)
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}") from error


def verify(table: Path, signature: Path, signers: Path, identity: str | None) -> str | None:
    """Checks a signature with the tool that made it, ``ssh-keygen -Y`` or minisign. Returns what is wrong with it, or
    None.

    ``signers`` is a file of allowed signers (see ssh-keygen(1)) or minisign's public key. Raises BadInput if the tool
    is not installed, or a file cannot be read.
    """
    content, head = read_bytes(table, BadInput), read_bytes(signature, BadInput)
    read_bytes(signers, BadInput)
    if head.startswith(b"-----BEGIN SSH SIGNATURE-----"):
        if identity is None:
            raise BadInput(f"{signature}: say whose signature it has to be, with the public key")
        words: list[str | Path] = [
            "ssh-keygen",
            "-Y",
            "verify",
            "-f",
            signers,
            "-I",
            identity,
            "-n",
            NAMESPACE,
            "-s",
            signature,
        ]
    elif head.startswith(b"untrusted comment:"):
        words = ["minisign", "-V", "-m", table, "-x", signature, "-p", signers]
    else:
        raise BadInput(f"{signature} was made neither by ssh-keygen -Y nor by minisign")
    return _failure(words, content)


def _failure(words: Sequence[str | Path], content: bytes) -> str | None:
    if not shutil.which(str(words[0])):
        raise BadInput(f"{words[0]}, which checks this signature, is not installed")
    done = subprocess.run([*words], input=content, capture_output=True, check=False)
    if done.returncode == 0:
        return None
    return (done.stderr or done.stdout).decode(errors="replace").strip().splitlines()[-1]
