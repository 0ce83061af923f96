"""Commands and groups with a short and a long help, and errors that name options as the command line spells them.

The short help has the options that most calls need; ``--help-all`` shows the others under headings. cloup and
rich-click also group options, but neither has two kinds of help, and both take longer to load than a ``pick`` takes to
answer.
"""

import contextlib
import importlib
import inspect
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, ClassVar, Literal, TypeVar

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem

from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput, did_you_mean, one_of
from tuner.base.expressions import expression
from tuner.base.printable import styled
from tuner.base.spelling import Spelling, spelled_for

F = TypeVar("F", bound=Callable[..., Any])


class Parsed(click.ParamType):  # type: ignore[type-arg]
    """A click type: ``parse`` turns a text into a value, and help calls it ``name``. A value that is not a text is a
    default, and is kept."""

    def __init__(self, name: str, parse: Callable[[str], Any]) -> None:
        self.name = name
        self.parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return self.parse(value) if isinstance(value, str) else value
        except (ValueError, OverflowError):  # more digits than Python reads, or than a float has
            self.fail(f"{value[:20]}... is not a possible value: too large, or not a number", param, ctx)


# What else people call commands and options, where no letters lead to the right one.
OTHER_WORDS = {
    **dict.fromkeys(("changes", "regression", "regressions"), ("diff",)),
    **dict.fromkeys(("optimize", "optimise", "autotune"), ("decide", "measure")),
    **dict.fromkeys(("select", "choose", "algorithm"), ("pick",)),
    **dict.fromkeys(("why",), ("explain",)),
    **dict.fromkeys(("benchmark", "bench", "run"), ("measure",)),
    **dict.fromkeys(("debug", "analyze", "analyse", "hang"), ("diagnose",)),
    **dict.fromkeys(("topology", "topo"), ("machines", "graphs")),
    **dict.fromkeys(("validate", "test", "healthcheck"), ("accept", "preflight")),
    **dict.fromkeys(("crossover", "crossovers", "thresholds"), ("edges",)),
}
OTHER_OPTIONS = {
    **dict.fromkeys(("--size", "--sizes", "--message-size"), "--bytes"),
    **dict.fromkeys(("--gpus", "--ngpus", "--gpus-per-host", "--nproc-per-node", "--ppn"), "--gpus-per-node"),
    **dict.fromkeys(("--nnodes", "--num-nodes", "--hosts", "--node-count"), "--nodes"),
    **dict.fromkeys(("--version", "--release", "--nccl-version"), "--nccl"),
    **dict.fromkeys(("--topo", "--xml"), "--topology"),
    **dict.fromkeys(("--instance", "--instance-type", "--system"), "--machine"),
    **dict.fromkeys(("--algo", "--proto", "--variable"), "--env"),
    **dict.fromkeys(("--output", "--file"), "--out"),
}
MOST_OF_A_NUMBER = 1 << 64  # from here on no count of bytes, GPUs or seconds is
SHORT = 14  # options that a short help shows at most, as tests/cli holds
EXAMPLES = 3  # of a short help
NUMBERS = {"INTEGER RANGE": "N", "INTEGER": "N", "FLOAT RANGE": "NUMBER", "FLOAT": "NUMBER"}  # in click's words
BOUNDS = expression(r"  \[[\d.e+-]*<?=?x[<>=\d.e+-]*\]$")  # that click adds to them; an error says them
WIDTH = 80  # of examples, with their indent: a terminal's, and that of docs/commands.md
INDENT = 2
SIZES = expression(r"\d+(\.\d+)?([KMGTkmgt]i?)?[Bb]?(,.*)?")  # what a word without an option may be
RELEASE = expression(r"v?2\.\d+(\.\d+)?(-\d+)?")
VARIABLE = expression(r"NCCL_\w+=.*")
TOPOLOGY = expression(r".+\.xml")
NAME = expression(r"[a-z]+\w*[-.]?\w*[0-9][\w.-]*|\d+x[a-z].*", re.IGNORECASE)
_ALL = "tuner.cli.help_all"  # in click's context: whether every option is asked for


class Option(click.Option):
    """An option that may have a ``heading`` in the long help; one without a heading is in the short help."""

    def __init__(self, *declarations: Any, heading: str | None = None, **attributes: Any) -> None:
        super().__init__(*declarations, **attributes)
        self.heading = heading


def completing(names: Iterable[str], begun: str) -> list[CompletionItem]:
    """What a shell offers as completions: those of ``names`` that begin with the letters typed so far."""
    return [CompletionItem(name) for name in names if name.startswith(begun)]


def option(*words: str, cls: type[Option] = Option, **attributes: Any) -> Callable[[F], F]:
    """A ``click.option`` with a ``heading``; the last of ``words`` is its help, the others are its names."""
    *names, says = words
    return click.option(*names, cls=cls, help=says, **attributes)


def flag(*words: str, **attributes: Any) -> Callable[[F], F]:
    """An :func:`option` without a value."""
    return option(*words, is_flag=True, **attributes)


def file_option(*words: str, **attributes: Any) -> Callable[[F], F]:
    """An :func:`option` that names a file; the last but one of ``words`` is the file's placeholder in help."""
    *names, metavar, says = words
    return option(*names, says, type=FILE, metavar=metavar, **attributes)


def stacked(function: F, *options: Callable[[F], F]) -> F:
    """Adds all these options to the function; its help shows them in this order."""
    for each in reversed(options):
        function = each(function)
    return function


def packing(function: F, packed: Callable[[dict[str, Any]], Mapping[str, Any]], *options: Callable[[Any], Any]) -> F:
    """Adds all these options to the function, as :func:`stacked` does. ``packed`` takes their values out of the
    command's parameters, and returns the parameters that the function gets in their place.
    """

    @wraps(function)
    def with_packed(*arguments: Any, **given: Any) -> Any:
        instead = packed(given)
        return function(*arguments, **given, **instead)

    made: F = with_packed  # type: ignore[assignment]
    return stacked(made, *options)


def under(heading: str | None, *names: str) -> Callable[[F], F]:
    """Moves options that are already declared under ``heading`` of the long help; None: into the short help."""

    def decorated(function: F) -> F:
        found = [each for each in getattr(function, "__click_params__", ()) if set(names) & {*each.opts}]
        if len(found) != len(names):
            raise LookupError(f"{function.__name__}: not every one of {', '.join(names)} is an option")
        for each in found:
            vars(each)["heading"] = heading
        return function

    return decorated


class Help(click.Command):
    """A command or group whose examples are broken to the width; the short help shows only the first one."""

    SHOWS_ALL: ClassVar = "Show every option, and exit."

    @property
    def is_long(self) -> bool:
        """Whether the long help has more than the short one."""
        return any(map(_heading, self.params))

    def __init__(self, *arguments: Any, **attributes: Any) -> None:
        super().__init__(*arguments, **attributes)
        self.params.append(
            click.Option(
                ["--help-all"],
                is_flag=True,
                expose_value=False,
                is_eager=True,
                hidden=not self.is_long,
                callback=_show_all,
                help=self.SHOWS_ALL,
            )
        )

    def make_context(self, *arguments: Any, **attributes: Any) -> click.Context:
        with spelled_for(Spelling.COMMAND_LINE):
            return super().make_context(*arguments, **attributes)

    def invoke(self, ctx: click.Context) -> Any:
        with spelled_for(Spelling.COMMAND_LINE):
            return super().invoke(ctx)

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Writes the help text as click does, but breaks long examples as a shell allows."""
        text, shown = inspect.cleandoc(self.help or ""), 0
        lines: list[str] = []
        for line in text.splitlines():
            shown += is_example(line)
            if not is_example(line) or shown <= EXAMPLES or ctx.meta.get(_ALL) or not self.is_long:
                lines += _broken(line, WIDTH - INDENT)
        own, self.help = self.help, "\n".join(lines)
        try:
            super().format_help_text(ctx, formatter)
        finally:
            self.help = own


FILE = click.Path(path_type=Path)  # of options and arguments that name one
# Parameters that name files to write; for any other file - means standard input.
WRITTEN = frozenset({"cost_table", "dump", "junit_file", "nccl_log", "out", "parquet", "plot", "svg"})
STANDARD_INPUT = Path("/dev/stdin")
CURE = "try: "  # before the command that would answer, on the line after an error
PRINTED_WITHOUT_OUT = frozenset({"convert", "export", "machines"})  # commands that print what --out would write


Params = Mapping[str, Any]  # of a command, as click has them: before options are packed into records


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule on which options of a command go together. It applies if ``when`` is true for the parameters, and has one
    of three kinds.

    ``excludes``: these parameters have no meaning with ``words``. ``needs``: they only apply with ``words``. ``only``:
    no other parameters have a meaning with ``words``. ``words`` are spelled in the error. Only options that the user
    gave count, not defaults. ``instead``: what the error advises in place of removing the options.
    """

    kind: Literal["excludes", "needs", "only"]
    words: str
    names: tuple[str, ...]
    when: Callable[[Params], bool]
    instead: str | None = None

    def check(self, ctx: click.Context) -> None:
        """Raises BadInput if the command line breaks the rule."""
        if not self.when(ctx.params):
            return
        options = [each for each in ctx.command.params if isinstance(each, click.Option)]
        names = (*self.names, "json") if self.kind == "only" else self.names
        named = [each for each in options if each.name in names]
        given = [each for each in options if (each in named) is (self.kind != "only") and stands(ctx, each.name)]
        if not (said := [spelled_option(each) for each in given]):
            return
        words, them = ", ".join(said), "it" if len(said) == 1 else "them"
        if self.kind == "only":
            valid = ", ".join(map(spelled_option, named))
            raise BadInput(f"{words} cannot be used with {self.words}; these options can: {valid}")
        if self.kind == "needs":
            add = f"add {self.words}, or remove {them}" if self.words.startswith("-") else f"remove {them}"
            raise BadInput(f"{words} only {'applies' if len(said) == 1 else 'apply'} with {self.words}: {add}")
        raise BadInput(f"{words} cannot be used with {self.words}: {self.instead or f'remove {them}'}")


def _always(_: Params) -> bool:
    return True


def excludes(words: str, *names: str, when: Callable[[Params], bool] = _always, instead: str | None = None) -> Rule:
    """A rule: these parameters have no meaning with ``words``, if ``when`` is true; ``instead`` may say what to do."""
    return Rule("excludes", words, names, when, instead)


def needs(words: str, *names: str, when: Callable[[Params], bool] = _always) -> Rule:
    """A rule: these parameters only apply with ``words``, which are missing if ``when`` is true."""
    return Rule("needs", words, names, when)


def only(words: str, *names: str, when: Callable[[Params], bool] = _always) -> Rule:
    """A rule: only these parameters have a meaning with ``words``, if ``when`` is true."""
    return Rule("only", words, names, when)


def has(name: str) -> Callable[[Params], bool]:
    """A condition of a rule: the parameter has a value."""
    return lambda params: bool(params.get(name))


def lacks(name: str) -> Callable[[Params], bool]:
    """A condition of a rule: the parameter has no value."""
    return lambda params: not params.get(name)


def stands(ctx: click.Context, name: str | None) -> bool:
    """Whether the option of this parameter is on the command line."""
    return name is not None and ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE


def spelled_option(parameter: click.Parameter) -> str:
    """The longest name of an option."""
    return max(parameter.opts, key=len)


class Command(Help):
    """A command whose help shows the options without a heading, and all of them with ``--help-all``.

    ``rules`` say which options go together.
    """

    def __init__(self, *arguments: Any, rules: Sequence[Rule] = (), **attributes: Any) -> None:
        super().__init__(*arguments, **attributes)
        self.rules = tuple(rules)

    def invoke(self, ctx: click.Context) -> Any:
        """Runs the command. BadInput for options that break a rule, and for a number that is not possible for any
        quantity."""
        for each in self.params:
            given = ctx.params.get(each.name or "")
            for value in given if isinstance(given, (tuple, list)) else (given,):
                if isinstance(value, (int, float)) and not abs(value) < MOST_OF_A_NUMBER:  # NaN is not below
                    said = f"{value:.3g}" if isinstance(value, float) else f"a number of {len(str(value))} digits"
                    raise BadInput(
                        f"{each.get_error_hint(ctx)}: {said} is not a possible value: too large, or not a number"
                    )
        with spelled_for(Spelling.COMMAND_LINE):
            for rule in self.rules:
                rule.check(ctx)
        return super().invoke(ctx)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parses the arguments; ``-`` means standard input for each file that is read.

        UsageError names everything that is missing (click only names the first thing), and gives an example.
        """
        given = list(args)
        ctx.allow_extra_args = True  # refused below, with what the word may have been meant for
        try:
            rest = super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            own = OTHER_OPTIONS.get(error.option_name)
            if own is not None and any(own in each.opts for each in self.params):
                raise click.UsageError(f"no option {error.option_name}; did you mean {own}?", ctx) from None
            word = error.option_name.lstrip("-").replace("-", "_").upper()
            arguments = [each for each in self.params if isinstance(each, click.Argument)]
            if any(word in re.findall(r"\w+", each.make_metavar(ctx)) for each in arguments):
                said = f"no option {error.option_name}: write {word} alone, without an option"
                raise click.UsageError(f"{said}{_such_as(ctx)}", ctx) from None
            raise
        except click.MissingParameter:
            opts, _, _ = self.make_parser(ctx).parse_args(given)
            required = (each for each in self.params if each.required)
            missing = [each for each in required if each.value_is_missing(each.consume_value(ctx, opts)[0])]
            names = ", ".join(f"{each.param_type_name} {each.get_error_hint(ctx)}" for each in missing)
            raise missing_of(ctx, names) from None
        if rest and not ctx.resilient_parsing:
            raise click.UsageError(f"unexpected argument {rest[0]!r}{self._meant_by(rest[0])}", ctx)
        for name, value in ctx.params.items():
            if name not in WRITTEN:
                ctx.params[name] = _read_from(value)
            elif isinstance(value, Path) and str(value) == "-" and name == "out" and self.name in PRINTED_WITHOUT_OUT:
                ctx.params[name] = None
            elif isinstance(value, Path) and str(value) == "-":
                named = next(each for each in self.params if each.name == name)
                raise BadInput(
                    f"{spelled_option(named)} -: this file cannot be written to standard output; give a file's name --"
                )
        return rest

    def _meant_by(self, word: str) -> str:
        """The hint ``; did you mean --nodes 2?`` for a word that is a value of an option of this command; else
        empty."""
        kinds = {"--nccl": RELEASE, "--bytes": SIZES, "--env": VARIABLE, "--topology": TOPOLOGY, "--machine": NAME}
        own = {name for each in self.params for name in each.opts}
        option = next((name for name, kind in kinds.items() if name in own and kind.fullmatch(word)), None)
        return f"; did you mean {option} {word}?" if option else ""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Options without a heading, then the headed ones: in full, or one line with the names of the headings."""
        below: dict[str, list[tuple[str, str]]] = {}
        for each in self.get_params(ctx):
            record = each.get_help_record(ctx) if isinstance(each, click.Option) else None
            if record is not None:
                below.setdefault(_heading(each) or "", []).append(_plain(record))
        with formatter.section(bold("Options")):
            formatter.write_dl(below.pop("", []))
        if ctx.meta.get(_ALL):
            for heading, records in below.items():
                with formatter.section(bold(heading)):
                    formatter.write_dl(records)
        elif below:
            formatter.write_paragraph()
            counts = (f"{_inside(heading)} ({len(those)})" for heading, those in below.items())
            formatter.write_text(f"More with --help-all: {', '.join(counts)}.")


def missing_of(ctx: click.Context, names: str) -> click.UsageError:
    """An error that something is missing, with the first example of the command's help."""
    return click.UsageError(f"Missing {names}{_such_as(ctx)}", ctx)


def _such_as(ctx: click.Context) -> str:
    """The end of an error with the first example of the command's help; empty if it has none."""
    examples = filter(is_example, inspect.cleandoc(ctx.command.help or "").splitlines())
    return next((f"; such as: {each}" for each in examples), "")


def _plain(record: tuple[str, str]) -> tuple[str, str]:
    """An option and its help as shown, without click's names for types of numbers and without the bounds that click
    adds."""
    named, text = record
    for clicks, ours in NUMBERS.items():
        named = re.sub(rf" {clicks}$", f" {ours}", named)
    return named, re.sub(r"; (?=[^\[\]]*\]$)[^\[\];]*<?=?x[^\[\];]*\]$", "]", BOUNDS.sub("", text)).rstrip()


def _read_from(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_read_from, value))
    return STANDARD_INPUT if isinstance(value, Path) and str(value) == "-" else value


def _heading(parameter: click.Parameter) -> str | None:
    hidden_one = isinstance(parameter, click.Option) and parameter.hidden
    return None if hidden_one else getattr(parameter, "heading", None)


def _show_all(ctx: click.Context, _option: click.Parameter, given: bool) -> None:
    if given and not ctx.resilient_parsing:
        ctx.meta[_ALL] = True
        click.echo(ctx.get_help())
        ctx.exit()


def _inside(heading: str) -> str:
    return f"{heading[0].lower()}{heading[1:]}" if heading[1:2].islower() else heading


def bold(text: str) -> str:
    """A heading, bold on a terminal."""
    return styled(text, "bold")


_EXAMPLE = expression(r"(?:[A-Z_]+=.*)?(?:nccl-tuner|srun|torchrun|mpirun|eval) ")


def is_example(line: str) -> bool:
    """Whether a line of a help is a command."""
    return _EXAMPLE.match(line) is not None


def _broken(line: str, width: int) -> Iterator[str]:
    """Breaks an example that is too long into lines that a shell joins again; any other line is unchanged."""
    if not is_example(line):
        yield line
        return
    parts: list[str] = []  # an option with its value is one
    for word in line.split():
        if parts and re.fullmatch(r"--?[a-z-]+", parts[-1]) and not word.startswith("-"):
            parts[-1] += f" {word}"
        else:
            parts.append(word)
    indent = ""
    while parts:
        taken = indent + parts.pop(0)
        while parts and len(taken) + len(parts[0]) + 1 <= width - (2 if len(parts) > 1 else 0):
            taken += " " + parts.pop(0)
        yield f"{taken} \\" if parts else taken
        indent = "    "


class Group(Help, click.Group):
    """A group whose commands are loaded when they are called. The error for an unknown command lists the commands.

    ``verbs`` maps the name of a command to its one-line help. The command is the function ``NAME_command``, or else
    ``command``, in a module of ``tuner.cli``: the module of that name, the one that ``modules`` maps it to, or
    ``modules`` itself if that is a name. ``sections`` are the verbs below the headings of the help. ``default`` is the
    command for arguments that do not begin with a verb.
    """

    command_class = Command
    SHOWS_ALL = "Show the commands inside groups as well, and exit."

    def __init__(
        self,
        *args: Any,
        verbs: Mapping[str, str],
        modules: Mapping[str, str] | str | None = None,
        sections: Mapping[str, Mapping[str, str]] | None = None,
        default: str | None = None,
        **kwargs: Any,
    ) -> None:
        self.verbs = verbs
        self.modules = dict.fromkeys(verbs, modules) if isinstance(modules, str) else modules or {}
        self.sections = sections or {"Commands": verbs}
        self.default = default
        super().__init__(*args, **kwargs)

    @property
    def is_long(self) -> bool:
        """Whether there are groups of commands, whose commands the long help shows."""
        return len(self.sections) > 1

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parses arguments as click does, after the default command is inserted if none is named."""
        own = {*self.verbs, *ctx.help_option_names, "--help-all"}
        if self.default is not None and args and args[0] not in own:
            args = [self.default, *args]
        return super().parse_args(ctx, args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command with a name. UsageError for an unknown name lists the commands."""
        if not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            valid = self.list_commands(ctx)
            meant = [each for each in OTHER_WORDS.get(args[0].lower(), ()) if each in valid]
            near = f"; did you mean {' or '.join(meant)}?" if meant else did_you_mean(args[0], valid)
            raise click.UsageError(f"no command {args[0]!r}{near}; {one_of(valid)}", ctx)
        return super().resolve_command(ctx, args)

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*self.verbs]

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in self.verbs:
            return None
        own = name.replace("-", "_")
        with _one_thread():
            module = importlib.import_module(f"tuner.cli.{self.modules.get(name, own)}")
        command: click.Command = vars(module).get(f"{own}_command") or module.command
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Completes as click does, but with the one-line helps: click would import every command to get its help."""
        names = [CompletionItem(name, help=text) for name, text in self.verbs.items() if name.startswith(incomplete)]
        return [*names, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Lists commands below their headings; the long help also lists those in groups."""
        inner = self._with_inner if ctx.meta.get(_ALL) else lambda _ctx, verbs: verbs
        sections = {heading: inner(ctx, verbs) for heading, verbs in self.sections.items()}
        widths = {heading: max(map(len, verbs)) for heading, verbs in sections.items()}
        for heading, verbs in sections.items():
            width = widths[heading] if ctx.meta.get(_ALL) else max(widths.values())
            with formatter.section(bold(heading)):
                formatter.write_dl([(name.ljust(width), text) for name, text in verbs.items()])

    def _with_inner(self, ctx: click.Context, verbs: Mapping[str, str]) -> Mapping[str, str]:
        found: dict[str, str] = {}
        for name, text in verbs.items():
            command = self.get_command(ctx, name)
            inside = command.verbs if isinstance(command, Group) else {"": text}
            found |= {f"{name} {each}".rstrip(): says for each, says in inside.items()}
        return found


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """Keeps NumPy's OpenBLAS from starting a thread per core when it loads, as no answer multiplies large matrices."""
    if (given := "OPENBLAS_NUM_THREADS") in os.environ:
        yield
        return
    os.environ[given] = "1"
    try:
        yield
    finally:
        del os.environ[given]  # programs that a command starts have their own say
