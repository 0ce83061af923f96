"""The options ``--engine`` and ``--serve``: which implementation carries an AllReduce of a serving engine."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput
from tuner.base.names import DataType
from tuner.base.numerics import is_time
from tuner.base.records import to_json
from tuner.cli import options
from tuner.cli.command import F, flag, option, packing, stacked
from tuner.cli.output import (
    human_bytes,
    json_wanted,
    note_after,
    number,
    plural,
    print_json,
    print_table,
    progress,
    say,
    shown_as_json,
    verdict,
)
from tuner.emulator.request import Request
from tuner.emulator.selection import Pick
from tuner.release.environment import parse_assignments

if TYPE_CHECKING:  # what an engine needs is loaded for one
    from tuner.answers.serving import CarriedCall, ServedGroup
    from tuner.engines.carriers import CarriedSizes

of_engine = partial(option, heading="Serving engine")


class EngineName(click.ParamType):  # type: ignore[type-arg]
    """A click type: an engine and its release, which must have a table unless ``untabled``. A shell completes the names
    with a table."""

    name = "engine"

    def __init__(self, untabled: bool = False) -> None:
        self.untabled = untabled

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        from tuner.engines import releases

        return (releases.with_nearest_table if self.untabled else releases.load)(str(value)).name

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
        from tuner.engines import releases

        return [click.shell_completion.CompletionItem(each) for each in releases.names() if each.startswith(incomplete)]


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """Values of :func:`engine_options`: engines with their releases, and the user's variables and arguments for
    them."""

    names: tuple[str, ...]
    arguments: tuple[str, ...]
    hidden_size: int | None
    eager: bool

    def group(self, communicator: options.CommunicatorOptions, name: str) -> "ServedGroup":
        """The engine's group on the described communicator; variables of engines are not passed to NCCL.

        If there are several engines, each gets the variables and arguments that it knows or that no engine knows.
        """
        from tuner.answers.serving import ServedGroup
        from tuner.engines import releases, switches

        release = releases.with_nearest_table(name)
        others = [releases.with_nearest_table(each) for each in self.names if each != name]
        environment = parse_assignments(communicator["env"] or ())
        engines = {key for key in environment if key.startswith(tuple(releases.prefixes()))}
        engines |= {key for key in environment if key in release.variables}
        own = {
            key: environment[key]
            for key in engines
            if key in release.variables or not any(key.startswith(other.prefix) for other in others)
        }
        left = tuple(text for text in communicator["env"] or () if text.partition("=")[0] not in engines)
        scenario = communicator.but(env=left).scenario()
        arguments = tuple(
            each
            for each in self.arguments
            if switches.knows(release, each) or not any(switches.knows(other, each) for other in others)
        )
        return ServedGroup(scenario, release, own, arguments, graph=not self.eager, hidden_size=self.hidden_size)


def engine_options(several: bool = False, untabled: bool = False) -> Callable[[F], F]:
    """The options of a serving engine, for the parameter ``engine`` (None without an engine).

    ``several``: more than one engine is allowed. ``untabled``: releases without a table are allowed.
    """

    def packed(given: dict[str, Any]) -> Mapping[str, Any]:
        names, arguments = tuple(given.pop("engine")), tuple(given.pop("engine_arg"))
        if len(names) > 1 and not several:
            raise BadInput(
                f"--engine: {' and '.join(names)} cannot both be asked; name one of them ('diff' compares two)"
            )
        own = EngineOptions(names, arguments, given.pop("hidden_size"), given.pop("eager"))
        if not names and (arguments or own.hidden_size or own.eager):
            raise BadInput("--engine-arg, --hidden-size and --eager only apply with --engine: add it")
        return {"engine": own if names else None}

    says = "Serving engine that makes the AllReduce, with its release, as in vllm@0.33.0"
    return lambda function: packing(
        function,
        packed,
        of_engine(
            "--engine",
            f"{says}; give two to compare them." if several else f"{says}.",
            type=EngineName(untabled),
            metavar="ENGINE[@RELEASE]",
            multiple=True,
        ),
        of_engine(
            "--engine-arg",
            "Argument that the engine is started with, such as disable-custom-all-reduce; repeatable.",
            multiple=True,
            metavar="NAME[=VALUE]",
        ),
        of_engine(
            "--hidden-size",
            "Number of columns of the engine's tensors; needed if a limit of the engine is in rows.",
            type=click.IntRange(1),
            metavar="N",
        ),
        of_engine("--eager", "The engine runs eagerly: its calls are not captured in CUDA graphs.", is_flag=True),
    )


def show_carriers(group: "ServedGroup", request: Request, sizes_bytes: Sequence[int]) -> None:
    """Prints which implementation carries each size, and NCCL's pick if it is NCCL."""
    calls = group.calls(request, sizes_bytes)
    if shown_as_json({"engine": group.release.name, "calls": calls}):
        return
    title = f"{request.title} of {group.release.name} on {group.scenario.title}"
    print_table(
        title,
        ("size", "carried by", "NCCL's pick", "channels", "NCCL us", "source"),
        map(_row, calls),
        spare=("source",),
    )
    _print_reasons(calls)
    _print_measured(calls)
    _say_nccl(group)


def _row(call: "CarriedCall") -> tuple[str, ...]:
    size = human_bytes(call.bytes)
    if call.pick is None:
        return size, call.title, "-", "-", "-", call.source
    pick, time = call.pick.pick, call.pick.time_us
    channels = str(pick.channels) if isinstance(pick, Pick) else "-"
    return size, call.title, pick.name, channels, number(time, 2) if is_time(time) else "-", call.source


def _print_reasons(calls: Sequence["CarriedCall"]) -> None:
    """Prints why the engine rejected the implementations that it asked first, each reason once with its sizes."""
    from tuner.base.findings import words

    by_reason: dict[tuple[str, str], list[str]] = {}
    for call in calls:
        for away in call.turned_away:
            by_reason.setdefault((away.implementation, words(away.because)), []).append(human_bytes(call.bytes))
    if by_reason:
        say()
        say("Not carried by:")
        for (implementation, because), sizes in by_reason.items():
            where = "" if len(sizes) == len(calls) else f"{', '.join(sizes)}: "
            say(f"  {implementation}: {where}{because}")


def _print_measured(calls: Sequence["CarriedCall"]) -> None:
    """Prints public measurements at these sizes, with their release and source."""
    found = [each.measured for each in calls if each.measured is not None]
    if not found:
        return
    times = ", ".join(f"{human_bytes(each.bytes)} {number(each.time_us, 2)} us" for each in found)
    one = found[0]
    say()
    say(
        f"Published measurements of {one.engine} on {one.ranks} {one.gpu}, in CUDA graphs: {times} ({one.source}; it "
        "does not say which implementation ran)."
    )


def _say_nccl(group: "ServedGroup") -> None:
    own = group.release.nccl
    if own is not None and own != group.scenario.nccl:
        note_after(
            f"{group.release.name} is built with NCCL {own}, but this answer is for {group.scenario.nccl}: add --nccl "
            f"{own}"
        )


def show_story(group: "ServedGroup", request: Request, size_bytes: int) -> "CarriedCall":
    """Prints which of the engine's implementations would carry a size, in the order in which the engine asks them;
    returns the call.

    With --json nothing is printed: the caller adds what NCCL does with the call to the same document.
    """
    (call,) = group.calls(request, [size_bytes])
    if json_wanted():
        return call
    title = f"{request.title} of {human_bytes(size_bytes)} of {group.release.name} on {group.scenario.title}"
    print_table(title, ("order", "implementation", "takes it", "because", "source"), _story(group, call))
    if call.pick is None:
        say("NCCL is not called.")
    _say_nccl(group)
    return call


def _story(group: "ServedGroup", call: "CarriedCall") -> Iterator[tuple[str, ...]]:
    from tuner.base.findings import words

    reasons = {away.implementation: words(away.because) for away in call.turned_away}
    for order, each in enumerate(group.release.implementations, 1):
        if each.name in reasons:
            yield str(order), each.title, "no", reasons[each.name], each.source
        elif each.name == call.carrier:
            because = "every condition holds" if each.conditions else "it takes what all others reject"
            yield str(order), each.title, "yes", because, each.source
            return


def show_comparison(group: "ServedGroup", sizes_bytes: Sequence[int] | None) -> None:
    """Prints whether the engine's own functions choose the same implementation for every size; exit code 1 if not.

    Exit code 3 if nothing can be compared.
    """
    from tuner.answers.serving import compare_with_engine

    if not group.release.has_table:
        note_after(f"{group.release.name} has no table of its own: the table of the nearest release is compared")
    found = compare_with_engine(group, sizes_bytes, progress)
    if json_wanted():
        print_json(to_json(found))
    elif found.mismatches:
        say(
            verdict(
                f"the engine's own functions choose differently for {len(found.mismatches)} of {found.compared} calls",
                False,
            )
        )
        rows = [
            (each.dtype, "graph" if each.graph else "eager", human_bytes(each.bytes), each.ours, each.engines)
            for each in found.mismatches
        ]
        print_table("", ("data type", "launch", "size", "here", found.engine), rows)
    elif not found.compared:
        say(
            verdict(
                "cannot be judged: every answer here rests on an implementation that was only read in the "
                "source and cannot be run",
                None,
            )
        )
    else:
        where = f"on {group.scenario.title}"
        say(
            verdict(
                f"{found.engine}'s own functions choose the same implementation for all {found.compared} calls {where}",
                True,
            )
        )
    if found.by_source:
        note_after(
            f"{found.by_source} more calls go to implementations that were only read in the source, and are not "
            "compared"
        )
    if found.mismatches or not found.compared:
        click.get_current_context().exit(1 if found.mismatches else 3)


serving = partial(option, heading="Step of a served model")
SERVED = ("batch", "chunk", "draft_tokens", "attention_dp")  # the parameters of these options beside ``serve``


def serve_options(function: F) -> F:
    """The options of a served model: ``serve``, and the parameters ``SERVED``, named as
    :class:`tuner.answers.serving_calls.ServedModel` has them.
    """
    return stacked(
        function,
        flag(
            "--serve",
            "Price a decoding step and a prefill chunk of --model under --engine, instead of a training step.",
        ),
        serving(
            "--batch",
            "Number of sequences that are decoded together.",
            type=click.IntRange(1),
            default=64,
        ),
        serving("--chunk", "Number of tokens of a prefill chunk.", type=click.IntRange(1), default=8192),
        serving(
            "--draft-tokens",
            "Number of speculative (draft) tokens per sequence.",
            type=click.IntRange(0),
            default=0,
        ),
        serving(
            "--attention-dp",
            "Attention is data-parallel over the ranks among which the experts are split.",
            is_flag=True,
        ),
    )


def show_served_step(
    engine: EngineOptions | None,
    served_as: Mapping[str, Any],
    model: str | None,
    job: str | None,
    communicator: options.CommunicatorOptions,
    dtype: DataType | None,
) -> None:
    """Prints the calls of a decoding step and a prefill chunk of a model; ``served_as`` has the values of ``SERVED``.

    BadInput without an engine or a model, and for options that do not apply to a model's step.
    """
    from tuner.answers.serving_calls import DECODE, PREFILL, ServedModel
    from tuner.answers.serving_step import served_step

    if engine is None or model is None:
        missing = " and ".join(name for name, value in (("--engine", engine), ("--model", model)) if value is None)
        raise BadInput(f"--serve needs {missing}: budget --serve --engine vllm@0.33.0 --model llama-3-70b --job tp=8")
    given = {
        "--eager does not apply, as decoding steps run in CUDA graphs and prefill chunks do not": engine.eager,
        "--hidden-size does not apply, as the model says it": engine.hidden_size is not None,
    }
    if ignored := [says for says, is_given in given.items() if is_given]:
        raise BadInput(f"with --serve, {'; '.join(ignored)}; remove {'it' if len(ignored) == 1 else 'them'}")
    degrees = _degrees(job)
    served = ServedModel(model, degrees.get("tp", 1), degrees.get("ep", 1), **served_as)
    if dtype is not None:
        served = replace(served, dtype=dtype)
    group = engine.group(communicator, engine.names[0])
    found = served_step(group.scenario, engine.names[0], served, group.environment, engine.arguments)
    if shown_as_json(found):
        return
    for phase, says in (
        (DECODE, f"one step of {served.batch} sequences"),
        (PREFILL, f"a chunk of {served.chunk} tokens"),
    ):
        rows = [
            (
                each.of,
                each.collective.name if each.in_group == 1 else f"{each.in_group} {each.collective.name}",
                human_bytes(each.bytes),
                str(each.calls),
                each.title,
                "-" if each.pick is None else each.pick.pick.name,
                "-" if each.all_us is None else number(each.all_us / 1000, 3),
            )
            for each in found.calls
            if each.phase == phase
        ]
        title = f"{phase}, {says}: {found.model} on {found.engine}, {group.scenario.name}"
        print_table(title, ("of", "call", "size", "calls", "carried by", "NCCL's pick", "NCCL ms"), rows)
        left = found.without_time(phase)
        have = "has no time and is" if left == 1 else "have no time and are"
        others = f"; {plural(left, 'call')} {have} not included" if left else ""
        say(f"NCCL takes {found.nccl_us(phase) / 1000:.3f} ms{others}\n")
    _say_nccl(group)


def _degrees(job: str | None) -> dict[str, int]:
    """Reads degrees of parallelism from ``tp=8,ep=8``. BadInput for other keys, and for values that are not numbers."""
    degrees: dict[str, int] = {}
    for part in filter(None, (job or "").split(",")):
        name, _, value = part.partition("=")
        if name not in ("tp", "ep") or not value.isdecimal() or not int(value):
            of_groups = (
                "; for data-parallel attention add --attention-dp: tp is then the ranks of a group, and ep that of "
                "all groups"
            )
            also = of_groups if name == "dp" else ""
            raise BadInput(f"--job {part}: a served model is split by tp and ep, as in tp=8 or ep=8{also}")
        degrees[name] = int(value)
    return degrees


def show_borders(group: "ServedGroup", request: Request, low_bytes: int, high_bytes: int) -> None:
    """Prints the ranges of sizes that each implementation carries."""
    found = group.ranges(request, low_bytes, high_bytes)
    if shown_as_json({"engine": group.release.name, "ranges": found}):
        return
    title = f"{request.title} of {group.release.name} on {group.scenario.title}"
    print_table(title, ("from", "to", "carried by"), map(_range_row, found))


def _range_row(each: "CarriedSizes") -> tuple[str, str, str]:
    return human_bytes(each.from_bytes), human_bytes(each.to_bytes), each.title


def show_differences(
    one: "ServedGroup", other: "ServedGroup", request: Request, low_bytes: int, high_bytes: int
) -> None:
    """Prints the sizes for which two engines, or two releases of one, choose different implementations."""
    from tuner.answers.serving import differences

    found = differences(one.ranges(request, low_bytes, high_bytes), other.ranges(request, low_bytes, high_bytes))
    names = one.release.name, other.release.name
    if json_wanted():
        print_json({"engines": names, "differences": [dict(zip(names, to_json(pair), strict=True)) for pair in found]})
        return
    title = f"{request.title} on {one.scenario.title}: {names[0]} against {names[1]}"
    if not found:
        say(title)
        say("Both use the same implementation at every size.")
        return
    rows = [(human_bytes(a.from_bytes), human_bytes(a.to_bytes), a.title, b.title) for a, b in found]
    print_table(title, ("from", "to", *names), rows)
