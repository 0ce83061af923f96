"""Readers on files that are damaged in many ways, each in a process of its own whose memory and time are measured."""

import gzip
import json
import os
import random
import re
import resource
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

from tuner import cli

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
TABLES = Path(__file__).parents[2] / "csrc" / "plugin" / "check" / "seeds" / "table"
MOST_MB, MOST_S = 500, 20  # as in tests/unit/test_bounds.py, less what Python and the package take themselves
FOLDERS = {"job": "job", "preflight": "preflight"}  # of which one file is damaged
PICK = ("pick", "allreduce", "--machine", "dgx-h100", "--nodes", "2", "--bytes", "1M")
GPUS = ("--gpu", "h100-sxm", "--nic-gbps", "400")
READERS: dict[str, tuple[str, ...]] = {
    "diagnose": ("diagnose", "{}"),
    "diagnose on a machine, as JSON": ("diagnose", "{}", "--machine", "dgx-h100", "--json"),
    "diagnose, redacted": ("diagnose", "{}", "--redact"),
    "log": ("log", "{}"),
    "log --check": ("log", "{}", "--check", "--topology", str(EXAMPLES / "node.xml")),
    "accept": ("accept", "{}", "--machine", "dgx-h100"),
    "accept --like": ("accept", str(EXAMPLES / "all_reduce.log"), "--like", "{}", "--machine", "dgx-h100"),
    "verify": ("verify", "{}", "--machine", "dgx-h100"),
    "measured": ("measured", "{}"),
    "budget": ("budget", "{}", "--machine", "dgx-h100", "--nodes", "2"),
    "check": ("check", "{}", "--machine", "dgx-h100"),
    "machines": ("machines", "{}", *GPUS),
    "pick --topology": ("pick", "allreduce", "--topology", "{}", "--bytes", "1M"),
    "pick --log": ("pick", "allreduce", "--log", "{}", "--bytes", "1M", "--comp-cap", "9.0"),
    "pick --topo-graphs": ("pick", "allreduce", "--topology", str(EXAMPLES / "node.xml"), "--topo-graphs", "{}"),
    "pick --constants": (*PICK, "--constants", "{}"),
    "pick --tuner": (*PICK, "--tuner", "table:{}"),
    "pick with a file of graphs": (*PICK, "--env", "NCCL_GRAPH_FILE={}"),
    "pick with a nccl.conf": (*PICK, "--env", "NCCL_CONF_FILE={}"),
    "plugin lint": ("plugin", "lint", "{}"),
    "plugin convert": ("plugin", "convert", "{}", "--out", "{}.made"),
    "plugin dry-run": ("plugin", "dry-run", "{}", "allreduce", "--machine", "dgx-h100"),
    "plugin stats": ("plugin", "stats", "{}"),
    "plugin env": ("plugin", "env", "--nccl", "2.28.9", "--table", "{}"),
    "plugin compile": (
        "plugin",
        "compile",
        "--machine",
        "dgx-h100",
        "--nodes",
        "2",
        "--measured",
        "{}",
        "--out",
        "{}.made",
    ),
    "fit constants": ("fit", "constants", "{}", "--machine", "dgx-h100"),
    "fit accuracy": ("fit", "accuracy", "{}", "--machine", "dgx-h100"),
    "cost report": ("cost", "report", "{}", "--machine", "dgx-h100"),
    "decide": ("decide", "{}", "--machine", "dgx-h100", "--out", "{}.made"),
    "preflight check": ("preflight", "check", "{folder}", "--machine", "dgx-h100"),
    "job read": ("job", "read", "{folder}"),
    "job plan": ("job", "plan", "{folder}"),
}
_NUMBER = re.compile(rb"\d+")
_WORD = re.compile(rb"[A-Za-z]{3,}")
_NUMBERS = (b"-1", b"0", b"1e400", b"nan", b"9" * 30, b"9" * 5000, b"18446744073709551616", b"4294967295", b"1.5", b"")


def _cut(content: bytes, draw: random.Random) -> bytes:
    return content[: draw.randrange(len(content) + 1)]


def _turned(content: bytes, draw: random.Random) -> bytes:
    turned = bytearray(content)
    for _ in range(draw.choice((1, 10, 200))):
        if turned:
            turned[draw.randrange(len(turned))] ^= 1 << draw.randrange(8)
    return bytes(turned)


def _with(pattern: re.Pattern[bytes], others: tuple[bytes, ...]) -> Callable[[bytes, random.Random], bytes]:
    """One, some or all of what matches becomes one of the others."""

    def changed(content: bytes, draw: random.Random) -> bytes:
        share, to = draw.choice((0.0, 0.05, 0.5, 1.0)), draw.choice(others)
        chosen = draw.randrange(max(1, len(pattern.findall(content))))
        number = -1

        def replaced(match: re.Match[bytes]) -> bytes:
            nonlocal number
            number += 1
            return to if number == chosen or draw.random() < share else match[0]

        return pattern.sub(replaced, content)

    return changed


def _mixed(content: bytes, draw: random.Random) -> bytes:
    lines = content.split(b"\n")
    for _ in range(draw.choice((1, 5, 50))):
        at, other = draw.randrange(len(lines)), draw.randrange(len(lines))
        match draw.randrange(4):
            case 0:
                lines[at], lines[other] = lines[other], lines[at]
            case 1:
                lines.insert(at, lines[other])
            case 2 if len(lines) > 1:
                del lines[at]
            case _:
                lines[at] += lines[other]
    return b"\n".join(lines)


def _repeated(content: bytes, draw: random.Random) -> bytes:
    return content * min(draw.choice((2, 20, 2000)), (20 << 20) // max(1, len(content)) + 1)


def _nested(content: bytes, draw: random.Random) -> bytes:
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        return draw.choice((b"[", b'{"a":', b"(", b"<a>")) * draw.choice((100, 100_000)) + content
    text = json.dumps(value)
    keys = sorted(set(re.findall(r'"[^"]+": ', text)))
    if not keys:
        return text.encode()
    other = draw.choice(
        ("null", "[]", "{}", '"x"', "-1", "1e400", "true", "[" * 500 + "]" * 500, "9" * 5000, '{"a": {}}')
    )
    key = draw.choice(keys)
    return re.sub(rf"{re.escape(key)}(?:\"[^\"]*\"|[-\d.e+]+|true|false|null)", f"{key}{other}", text).encode()


DAMAGES: dict[str, Callable[[bytes, random.Random], bytes]] = {
    "cut": _cut,
    "bits turned": _turned,
    "numbers": _with(_NUMBER, _NUMBERS),
    "words": _with(_WORD, (b"", b"\x1b[2J", b"\0", b"\xff\xfe", b"%s%n", b"=cmd", b"../../etc", b"x" * 70_000, b"\n")),
    "lines": _mixed,
    "repeated": _repeated,
    "nested": _nested,
    "packed": lambda content, draw: gzip.compress(_repeated(content, draw)),
    "cut when packed": lambda content, draw: _cut(gzip.compress(content), draw),
    "UTF-16": lambda content, draw: content.decode("utf-8", "replace").encode("utf-16"),
}


@dataclass(frozen=True)
class HostileRun:
    """A reader on a damaged file; ``says`` what was wrong with it, nothing where all was well."""

    reader: str
    file: Path
    damage: str
    mb: float
    seconds: float
    says: str


def files() -> list[Path]:
    """Examples of all that is read, and decision tables."""
    of_folders = [path for folder in FOLDERS.values() for path in sorted((EXAMPLES / folder).iterdir())]
    return [*sorted(path for path in EXAMPLES.iterdir() if path.is_file()), *sorted(TABLES.iterdir()), *of_folders]


def runs(count: int, seed: int, kept: Path) -> Iterator[HostileRun]:
    """So many runs; the files of those that go wrong are kept in a folder. Every reader comes as often as any other."""
    cli.everything.list_commands(None)  # type: ignore[arg-type]
    draw, there, readers = random.Random(seed), files(), list(READERS)
    _load_all()
    for number in range(count):
        reader, file, damage = readers[number % len(readers)], draw.choice(there), draw.choice(list(DAMAGES))
        if "{folder}" in READERS[reader]:
            file = draw.choice([each for each in there if each.parent.name in FOLDERS.values()])
        content = DAMAGES[damage](file.read_bytes(), draw)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / file.name
            if file.parent.name in FOLDERS.values():
                shutil.copytree(file.parent, folder, dirs_exist_ok=True)
            path.write_bytes(content)
            words = [word.format(path, folder=folder) for word in READERS[reader]]
            mb, seconds, says = measured(words)
            if says:
                kept.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, kept / f"{number}-{file.name}")
        yield HostileRun(reader, file, damage, mb, seconds, says)


def _load_all() -> None:
    """So that no run takes the time of a start: each begins as a copy of this process."""
    for words in (("diagnose", str(EXAMPLES / "nccl.log")), PICK):
        with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
            _run(list(words))


def _run(words: list[str]) -> int:
    with patch.object(sys, "argv", ["nccl-tuner", *words]):
        try:
            cli.main()
        except SystemExit as end:
            return int(end.code or 0)
    return 0


def measured(words: list[str]) -> tuple[float, float, str]:
    """MB and CPU seconds that a command takes beyond this process, and what is wrong with how it ended."""
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        os.close(read)
        _in_child(words, write)
    os.close(write)
    with os.fdopen(read, "rb") as said:
        at_start, _, text = said.read().decode(errors="replace").partition("\n")
    _, status, used = os.wait4(child, 0)
    mb, seconds = (used.ru_maxrss - int(at_start)) / 1024, used.ru_utime + used.ru_stime
    code = os.waitstatus_to_exitcode(status)
    if text:
        return mb, seconds, text
    if code not in (0, 1, 2, 3):
        return mb, seconds, f"ended with {code}"
    if mb > MOST_MB or seconds > MOST_S:
        return mb, seconds, f"{mb:.0f} MB, {seconds:.1f} s"
    return mb, seconds, ""


def _in_child(words: list[str], write: int) -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (2 * MOST_S, 2 * MOST_S))
    code = 99
    os.write(write, b"%d\n" % resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    try:
        os.chdir(tempfile.gettempdir())
        with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
            code = _run(words)
    except BaseException:
        os.write(write, traceback.format_exc()[-3000:].encode())
    finally:
        os._exit(code)
