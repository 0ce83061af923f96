"""The command line: one module per group of commands, loaded when it is called. Commands only format records."""

import contextlib
import gc
import io
import os
import sys
from collections.abc import Iterator
from typing import Any, NoReturn, TextIO

import click

from tuner.base import extras
from tuner.base.errors import CannotBeJudged, OracleFailed, TunerError
from tuner.base.interrupts import interruptible, sigterm_interrupts
from tuner.base.printable import PrintableStream
from tuner.cli.command import CURE, Group

SECTIONS = {
    "What NCCL picks, and why": {
        "pick": "algorithm, protocol, channels and time that NCCL picks, by size",
        "explain": "how NCCL computes a pick, step by step, and why not another one",
        "edges": "the exact sizes, or numbers of nodes, at which the pick changes",
        "diff": "how picks change with a release, a setting, hardware or nodes",
        "order": "the order in which values are added; whether bits stay the same",
        "table": "NCCL's table of latencies and bandwidths, laid out as NCCL does",
    },
    "How long it takes": {
        "budget": "how long a job's collectives take, and where the time goes",
        "accept": "whether a cluster is as fast as it should be; minimum bandwidths",
        "fit": "fits constants, alpha and beta, or a calibration to measured times",
        "cost": "textbook models: alpha-beta, bandwidths, training steps",
    },
    "Machines, topologies and logs": {
        "diagnose": "finds what is wrong from any log, topology, result or trace",
        "machines": "lists the known machines; prints or completes a topology",
        "graphs": "the channels that NCCL's search finds on a topology",
        "memory": "the device memory and the SMs that a communicator takes",
        "log": "shows what a NCCL log says, and whether the emulator agrees",
        "preflight": "checks before a job starts that all ranks will choose the same",
    },
    "Compare with the real NCCL": {
        "check": "compares the emulator with libnccl, or with what a job ran",
        "oracle": "runs the real libnccl on simulated GPUs; learns new releases",
        "fetch-nccl": "downloads a release's libnccl for the commands that need it",
    },
    "Measure, and change the pick": {
        "measure": "measures algorithms, protocols and channels, on GPUs or simulated",
        "measured": "lists tables of measured times: shipped ones and your own",
        "verify": "compares NCCL's picks with the measured best: regret, crossovers",
        "decide": "makes a decision table from measurements, and tests its gains",
        "plugin": "the tuner plugin and its tables: load, lint, dry-run, convert",
        "job": "times the collectives of a running job; plans choices to try in it",
    },
    "Pictures, pages and files": {
        "plot": "draws picks, changes and measured times; writes an HTML page",
        "export": "writes picks, times and schedules as files for other programs",
    },
    "For agents": {
        "mcp": "serves the commands as tools (Model Context Protocol)",
    },
    "This installation": {
        "doctor": "checks which parts of nccl-tuner are installed and work",
        "cache": "lists and removes what is cached: libnccl, graphs, checksums",
        "completion": "prints the script that lets a shell complete commands and names",
    },
}
# Python looks for garbage after each 700 new objects: while modules load that is often, and there is none.
OBJECTS_BETWEEN_COLLECTIONS = 100_000
LONGEST_MESSAGE = 3000  # letters: what is valid takes some hundreds, a broken file's own words any number
BROKEN_PIPE = 141  # 128 + SIGPIPE
MODULES = dict.fromkeys(("doctor", "completion", "fetch-nccl"), "installation")
ALSO = {"predict": "pick", "upgrade": "diff", "compare": "diff", "tune": "decide"}  # words that people look for
VERBS = {name: says for verbs in SECTIONS.values() for name, says in verbs.items()}


class NobodyReads(Exception):
    """Standard output is a pipe whose reader, such as ``head``, has ended."""


class Everything(Group):
    """The group of all commands. A broken pipe raises :class:`NobodyReads`: click would exit with 1, a "no" here."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parses the arguments; also accepts ``help COMMAND``, ``version``, and other names of commands (``ALSO``)."""
        if args and args[0] in ALSO:
            args = [ALSO[args[0]], *args[1:]]
        if args[:1] == ["help"]:
            args = [*args[1:], "--help"]
        elif args == ["version"]:
            args = ["--version"]
        return super().parse_args(ctx, args)

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        """Makes the context, without colours if NO_COLOR is set, with colours if FORCE_COLOR is set."""
        said = False if os.environ.get("NO_COLOR") else True if os.environ.get("FORCE_COLOR") else None
        with _reader_may_go():
            return super().make_context(*args, **{"color": said, **extra})

    def invoke(self, ctx: click.Context) -> Any:
        with _reader_may_go():
            return super().invoke(ctx)


@contextlib.contextmanager
def _reader_may_go() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError as error:
        raise NobodyReads from error


# Not called `group`: tuner.cli.group is the module of that verb once it is loaded.
@click.command(
    name="nccl-tuner",
    cls=Everything,
    verbs=VERBS,
    sections=SECTIONS,
    modules=MODULES,
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True},
)
@click.version_option(package_name="nccl-tuner")
def everything() -> None:
    """Answer what NCCL picks, why, and whether it is best.

    \b
    nccl-tuner pick allreduce --machine dgx-h100 --nodes 2 --bytes 8,1K,64MiB
    """


def main() -> None:
    """Runs a command. Exit codes: 0 answered, 1 the answer is "no", 2 bad input, 3 cannot be judged.

    An error is one line on stderr. Exit code 130 means interrupted, 141 that nobody read the output; shells report
    SIGINT and SIGPIPE like this.
    """
    gc.set_threshold(OBJECTS_BETWEEN_COLLECTIONS)
    _open_streams()
    streams = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = map(PrintableStream, streams)
    try:
        run()
    finally:
        sys.stdout, sys.stderr = streams
        gc.freeze()  # while a process ends Python looks through every object again, a fifth of the time of a pick


def run(words: list[str] | None = None) -> NoReturn:
    """Runs a command line, by default that of this process; ends with SystemExit and an exit code of :func:`main`."""
    try:
        with interruptible(), sigterm_interrupts():
            code = everything(words, prog_name=None if words is None else "nccl-tuner", standalone_mode=False) or 0
            sys.stdout.flush()  # where writing fails it fails here, not when nobody handles it any more
            sys.exit(code)
    except ModuleNotFoundError as error:
        if (missing := extras.missing(error.name, "this command")) is None:
            raise
        _end(2, str(missing))
    except CannotBeJudged as error:
        _end(3, str(error))
    except TunerError as error:
        says = f"NCCL itself fails here: {error}" if error.by_nccl else str(error)
        _end(1 if error.by_nccl or isinstance(error, OracleFailed) else 2, says, _instead(words, error))
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        sys.exit(error.exit_code)
    except click.ClickException as error:
        _end(2, " ".join(error.format_message().split()))
    except (click.Abort, KeyboardInterrupt) as error:
        if isinstance(error.__cause__, EOFError):  # click takes it for the end of what is typed, and nobody types here
            folder = sys.pycache_prefix or os.path.dirname(os.path.dirname(__file__))
            _end(2, f"a compiled Python file is cut off, as after a full disk; remove the *.pyc files below {folder}")
        _end(130, "interrupted")
    except (BrokenPipeError, NobodyReads):
        _give_up(sys.stdout)
        sys.exit(BROKEN_PIPE)
    except OSError as error:
        _give_up(sys.stdout)
        _end(2, f"{f'{error.filename}: ' if error.filename else ''}{error.strerror or error}")


def _open_streams() -> None:
    """Exits if standard output is closed. Opens other closed streams, so that no file gets their number."""
    answering = sys.stdout is not None  # Python's own for a closed one
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if stream is None:
            os.open(os.devnull, os.O_RDWR)  # the least number that is free
    if sys.stderr is None:
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="replace")  # an encoding that has no lines of tables
    if not answering:
        _end(2, "standard output is closed")


def _instead(words: list[str] | None, error: TunerError) -> str | None:
    """The command to suggest instead of this one, if the error has remedies; else None."""
    if not error.remedies:
        return None
    from tuner.cli import remedies

    return remedies.command(sys.argv[1:] if words is None else words, error.remedies)


def _end(code: int, says: str, instead: str | None = None) -> NoReturn:
    """Prints an error on stderr (folded on a terminal) and the suggested command ``instead``, and exits.

    If stderr cannot be written, either, only the exit code shows the error.
    """
    try:
        line = f"nccl-tuner: {_one_line(says)}"
        print(_for_terminal(line) if sys.stderr.isatty() else line, file=sys.stderr, flush=True)
        if instead is not None:
            print(f"{CURE}{instead}", file=sys.stderr, flush=True)
    except OSError:
        _give_up(sys.stderr)
    sys.exit(code)


def _for_terminal(line: str) -> str:
    """A line folded between words to the terminal's width; the text after a ``;`` starts a new line."""
    import shutil
    import textwrap

    width = shutil.get_terminal_size().columns
    if len(line) <= width:
        return line
    parts = line.split("; ")
    ended = [f"{each};" for each in parts[:-1]] + parts[-1:]
    fold = textwrap.TextWrapper(width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
    return "\n".join("\n".join(fold.wrap(f"{'  ' * (place > 0)}{each}")) for place, each in enumerate(ended))


def _one_line(says: str) -> str:
    """Makes a message safe to show on a terminal: text from files can neither move the cursor nor flood the screen."""
    words = " ".join(says.splitlines())
    shown = "".join(each if each.isprintable() else ascii(each)[1:-1] for each in words)
    half = LONGEST_MESSAGE // 2  # where it is and what is valid stand at the ends
    return shown if len(shown) <= LONGEST_MESSAGE else f"{shown[:half]} ... {shown[-half:]}"


def _give_up(stream: TextIO) -> None:
    """Drops output that was not written; otherwise Python would try again when it ends, and print an error."""
    with contextlib.suppress(OSError, ValueError):
        number = stream.fileno()  # first: a stream in memory has none, and nothing is to be left open
        os.dup2(os.open(os.devnull, os.O_WRONLY), number)
