"""Options that describe a communicator, defined once, and the object that commands get from them."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from tuner import release
from tuner.answers import tuners
from tuner.answers.changes import KEYS, changed
from tuner.answers.tuners import with_tuner
from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput, UnknownRelease
from tuner.base.names import CPU_ARCHS, CPU_VENDORS
from tuner.base.sizes import from_ranges, plural
from tuner.cli.command import FILE, F, Option, Parsed, completing, file_option, option, packing, stacked
from tuner.cli.output import ENV_FILES, LOG, STANDING, note_after
from tuner.machine import catalogue, described
from tuner.machine.topology.edit import EDITS
from tuner.release import BUILDS, learnt, packages, variables
from tuner.release.environment import parse_assignments
from tuner.scenario import MOST_NODES, Scenario, notes
from tuner.scenario.describe import describe, names_of_nodes


def exact(text: str) -> str:
    """The release that ``text`` names. Unless the text is its full name, a note says once per command which release it
    is.

    UnknownRelease for an unknown release.
    """
    name = release.named(text)
    if packages.names_one(text):
        _note_release(text, f"{text} comes with NCCL {name}")
    elif (origin := learnt.origin_of(release.load(name))) is not None:
        _note_release(text, f"{text} is NCCL {name}, {origin.words}")
    elif learnt.is_path(text):
        _note_release(text, f"{text} is the libnccl of NCCL {name}")
    elif name.count(".") > text.count("."):
        _note_release(text, f"NCCL {text} is taken as {name}, the newest {text} release that is known here")
    if (standing := release.load(name).standing) is not None:
        _note_release(f"standing of {text}", f"NCCL {name}: {standing.words}", of_answer=True)
        click.get_current_context().meta.setdefault(STANDING, {})[name] = standing.words
    return name


def _note_release(text: str, says: str, of_answer: bool = False) -> None:
    said = click.get_current_context().meta.setdefault("tuner.cli.releases", set())
    if text not in said:
        said.add(text)
        note_after(says, of_answer)


class ReleaseName(click.ParamType):  # type: ignore[type-arg]
    """A click type: a release with a release file; unless ``only_known``, any other text is kept as it is."""

    name = "release"

    def __init__(self, only_known: bool = True) -> None:
        self.only_known = only_known

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not value:  # as options are that were not given
            return value
        try:
            return ",".join(map(exact, str(value).split(",")))  # budget takes several
        except UnknownRelease:
            if self.only_known:
                raise
            return value

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        return completing(release.names(), incomplete)


def release_option(says: str, only_known: bool = True) -> Callable[[F], F]:
    """The option ``--nccl RELEASE`` for the parameter ``nccl``."""
    return option("--nccl", says, type=ReleaseName(only_known), metavar="RELEASE")


class Change(click.ParamType):  # type: ignore[type-arg]
    """A click type: KEY=VALUE; a release without its last number becomes the newest such release."""

    name = "change"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        keys = [*KEYS, *sorted(variables.everywhere())] if incomplete else KEYS
        return completing((f"{key}=" for key in keys), incomplete)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        key, _, given = str(value).partition("=")
        return f"nccl={exact(given)}" if key == "nccl" and given else str(value)


# GPUs that exist: CUDA C++ Programming Guide, "Compute Capabilities"; developer.nvidia.com/cuda-gpus.
COMP_CAPS = (35, 37, 50, 52, 53, 60, 61, 62, 70, 72, 75, 80, 86, 87, 88, 89, 90, 100, 101, 103, 110, 120, 121)
SHAPE = "Shape of nodes"
MEMBERS = "Some of the ranks"
TOPOLOGY = "Completing and changing a topology"
LOGGED = "What a log does not say"
CONFIGURED = "What the program configures"
CONSTANTS = "Constants and calibrations"
LIBNCCL = "The real libnccl"


def _whole_numbers(text: str) -> list[int]:
    try:
        return [int(word) for word in text.split(",")]
    except ValueError:
        said = f"{text!r}: expected whole numbers separated by commas, such as 18 or 8,4"
        raise click.BadParameter(said) from None


def _comp_caps(text: str) -> tuple[int, ...]:
    """Reads compute capabilities, ``8.0`` or ``80``: a single one, or one per rank."""
    words = [word.strip().replace(".", "") for word in text.split(",")]
    if not all(word.isdecimal() and int(word) in COMP_CAPS for word in words):
        known = ", ".join(f"{cap // 10}.{cap % 10}" for cap in COMP_CAPS)
        raise BadInput(
            f"--comp-cap {text!r}: expected one compute capability, such as 8.0 or 80, or one per rank: "
            f"80,80,90,90; valid: {known}"
        )
    return tuple(map(int, words))


def ranks_of(text: str) -> tuple[int, ...]:
    """Reads ranks given as ranges with strides, such as 0-7:2."""
    return from_ranges(text, "--ranks")


NUMBERS = Parsed("numbers", _whole_numbers)


@dataclass(frozen=True, slots=True)
class CommunicatorOptions:
    """Values of :func:`communicator_options`, named as :func:`tuner.scenario.description.describe` takes them.

    ``given`` also has ``changes`` of nodes, each KEY=VALUE; ``env`` has texts NAME=VALUE. What the user did not give is
    None, empty or False.
    """

    given: Mapping[str, Any]

    def __getitem__(self, name: str) -> Any:
        return self.given.get(name)

    @property
    def says_where(self) -> bool:
        """Whether the user named a machine, a topology, nodes or a log."""
        return any(self[name] for name in ("machine", "topology", "node", "log"))

    def but(self, **others: Any) -> "CommunicatorOptions":
        """A copy in which ``others`` replace the values of the same names."""
        return CommunicatorOptions({**self.given, **others})

    def without(self, name: str) -> "CommunicatorOptions":
        """A copy for a command without this option."""
        return CommunicatorOptions({each: value for each, value in self.given.items() if each != name})

    def scenario(self, **others: Any) -> Scenario:
        """The described scenario; ``others`` replace the values of the same names. Prints on stderr what is assumed.

        Raises BadInput, UnknownMachine, UnknownRelease, BadTopology and BadConstants.
        """
        given = {**self.given, **others}
        nodes, node = given.get("nodes"), given.get("node") or ()
        if nodes is not None and not 1 <= nodes <= MOST_NODES:
            raise BadInput(f"--nodes {nodes}: valid: 1 to {MOST_NODES}")
        names = "machine", "topology", "graphs", "gpu", "gpus_per_node", "trays", "gpus_per_tray"
        alike = [given.get(name) for name in names]
        if node and ((nodes or 1) > 1 or any(value is not None for value in alike)):
            those = "--machine, --topology, --topo-graphs, --gpu, --nodes, --gpus-per-node"
            raise BadInput(f"--node already describes all nodes; use either --node alone, or {those}")
        changes, asks_for_tuner, tuner = given.pop("changes", ()), "tuner" in given, given.pop("tuner", None)
        env, files = parse_assignments(given.get("env", ())), given.pop("env_files", ())
        config = parse_assignments(given.get("config", ()), "config", "FIELD=VALUE, such as maxCTAs=8")
        described = describe(**{**given, "env": env, "config": config})
        described = with_env_files(described, files)
        if asks_for_tuner:
            described = with_tuner(described, tuner)
        say_log(described)
        say_whose_parts([given["machine"]] if given.get("machine") else names_of_nodes(node))
        return after(described, changes)


def communicator_options(
    several_releases: str | None = None,
    changes: bool = False,
    build: bool = False,
    without: Sequence[str] = (),
    tuner: bool = False,
) -> Callable[[F], F]:
    """Options that describe a communicator, for the parameter ``communicator``.

    ``several_releases``: the help text of --nccl if several releases are allowed. ``changes`` adds --change for nodes,
    ``build`` adds --build for libnccl, ``tuner`` adds --tuner; without --tuner, no tuner decides, as for libnccl.
    ``without``: parameters whose options are hidden in help, as the command always refuses them. If the command itself
    has an option with the same parameter, that is kept.
    """

    def decorated(function: F) -> F:
        own = {each.name for each in getattr(function, "__click_params__", ())}

        def packed(given: dict[str, Any]) -> Mapping[str, Any]:
            return {"communicator": CommunicatorOptions({name: given.pop(name) for name in names if name in given})}

        every = [
            *_options(several_releases, tuner),
            *([of_nodes_option] if changes else []),
            *([_BUILD] if build else []),
        ]
        made = packing(function, packed, *every)
        parameters = vars(made)["__click_params__"]
        parameters[:] = [each for each in parameters if each.name not in own or not isinstance(each, _Own)]
        names = [each.name for each in parameters if isinstance(each, _Own)]
        for each in parameters:
            each.hidden = getattr(each, "hidden", False) or (isinstance(each, _Own) and each.name in without)
        return made

    return decorated


class _Own(Option):
    """Marks an option as one of :func:`communicator_options`."""


def _own(*words: str, **attributes: Any) -> Callable[[F], F]:
    return option(*words, cls=_Own, **attributes)


def _tuners(_ctx: click.Context, _option: click.Parameter, begun: str) -> list[CompletionItem]:
    from tuner.emulator.aws_ofi_nccl import release as aws_ofi_nccl

    named = ("aws-ofi-nccl", "none", "table:", "nvidia:", *(f"aws-ofi-nccl={name}" for name in aws_ofi_nccl.names()))
    return completing(named, begun)


def _options(several_releases: str | None, tuner: bool) -> Iterable[Callable[[Any], Any]]:
    configured, shape, members = (partial(_own, heading=heading) for heading in (CONFIGURED, SHAPE, MEMBERS))
    yield _own(
        "--machine",
        "The machine, by its name ('nccl-tuner machines' lists them) or by a cloud's instance type, such as "
        "p5.48xlarge.",
        metavar="NAME",
        shell_complete=lambda _ctx, _option, begun: completing((*catalogue.names(), *catalogue.aliases()), begun),
    )
    yield _own("--topology", "Instead of --machine: a topology in NCCL's XML format.", type=FILE, metavar="FILE.xml")
    yield _own("--nodes", "Number of nodes. [default: 1, or as in the log]", type=int, metavar="N")
    yield _own("--gpus-per-node", "How many GPUs of each node are used. [default: all]", type=int, metavar="N")
    yield _own(
        "--nccl",
        several_releases or "NCCL release. [default: the newest that runs on the machine]",
        type=ReleaseName(),
        metavar="RELEASE",
        multiple=several_releases is not None,
    )
    yield _own(
        "--env",
        "A NCCL variable; repeatable.",
        multiple=True,
        metavar="NAME=VALUE",
        shell_complete=lambda _ctx, _option, begun: completing(
            (f"{name}=" for name in sorted(variables.everywhere())), begun
        ),
    )
    yield configured(
        "--env-file",
        "env_files",
        "Read NCCL's variables from a file: nccl.conf, env's output, a Dockerfile, a job script, a pod's env. The "
        "answer says what each variable does; variables that are not NCCL's are neither shown nor used. --env "
        "overrides the file, and a later file overrides an earlier one. Repeatable.",
        type=FILE,
        multiple=True,
        metavar="FILE",
    )
    yield configured(
        "--config",
        "A field of ncclConfig_t that the program sets, such as maxCTAs=8; repeatable. NCCL's variables override it.",
        multiple=True,
        metavar="FIELD=VALUE",
    )
    yield _own(
        "--log",
        "Describe the communicator by a log of NCCL_DEBUG=INFO instead of by these options; with "
        "NCCL_DEBUG_SUBSYS=INIT,ENV,GRAPH the graphs are taken from it, too.",
        type=FILE,
        metavar="FILE",
    )
    if tuner:
        yield _own(
            "--tuner",
            "The tuner plugin that chooses in place of NCCL: aws-ofi-nccl, aws-ofi-nccl=VERSION, table:FILE[,TUNER], "
            "nvidia:FILE.csv, none. [default: on AWS's instance types the plugin that their images load, else none]",
            metavar="TUNER",
            shell_complete=_tuners,
            heading="Who decides",
        )
    yield shape(
        "--trays",
        "How many trays are used, if the machine is an NVLink domain made of trays. [default: all]",
        type=int,
        metavar="N",
    )
    yield shape("--gpus-per-tray", "How many GPUs of each tray are used. [default: all]", type=int, metavar="N")
    yield shape(
        "--hosts-per-domain",
        "How many hosts each NVLink domain has (multi-node NVLink, which NCCL treats as one node): one number for "
        "all domains, or one per domain.",
        type=NUMBERS,
        metavar="K[,K...]",
    )
    yield shape(
        "--ranks-without-fabric",
        "Ranks whose GPUs have not joined the NVLink fabric of their domain; if there are any, NCCL does not "
        "use the fabric.",
        type=NUMBERS,
        metavar="RANK[,RANK...]",
    )
    yield shape(
        "--ranks-per-gpu",
        "How many ranks share each GPU (NCCL 2.30.3 and later allow more than one). [default: 1, or as in FILE.xml]",
        type=click.IntRange(min=1),
        metavar="N",
    )
    yield shape(
        "--gpus-per-process",
        "How many GPUs each process uses (-g of nccl-tests); with more than one, NVLS cannot use registered "
        "buffers. [default: 1]",
        type=click.IntRange(min=1),
        metavar="N",
    )
    yield shape(
        "--collnet",
        "The network can reduce data (SHARP's plugin is loaded). NCCL only uses this (CollNet) with "
        "NCCL_COLLNET_ENABLE=1. [default: as in FILE.xml]",
        is_flag=True,
    )
    yield shape(
        "--node",
        "If nodes differ, use this instead of --machine and --nodes: a machine or a FILE.xml, the number of GPUs "
        "used per node, and the number of such nodes. Repeatable, in the order of ranks: dgx-h100x2, dgx-a100:4.",
        multiple=True,
        metavar="NODE[:GPUS][xN]",
    )
    yield members(
        "--ranks",
        "Ask about a communicator of only these ranks (by ncclCommSplit, ncclCommShrink, or created for them): 0-7:2 "
        "means 0, 2, 4, 6; 0-3,8-11 means two ranges. [default: all]",
        type=Parsed("ranks", ranks_of),
        metavar="RANGES",
    )
    yield members(
        "--shared",
        "The communicator of --ranks shares the resources of the communicator of all ranks (splitShare or "
        "shrinkShare of ncclConfig_t).",
        is_flag=True,
    )
    yield from _skeleton(_own, TOPOLOGY)
    yield _own(
        "--topo-graphs",
        "graphs",
        "Use the graphs that NCCL dumped on this machine or topology (NCCL_GRAPH_DUMP_FILE).",
        type=FILE,
        metavar="FILE.xml",
        heading=TOPOLOGY,
    )
    yield _log_communicator(_own)
    yield from fact_options(_own)
    yield _own(
        "--constants",
        "Use constants fitted by 'nccl-tuner fit constants' instead of NCCL's own; libnccl cannot use them.",
        type=FILE,
        metavar="FILE",
        heading=CONSTANTS,
    )


def _skeleton(own: Callable[..., Callable[[Any], Any]], heading: str | None) -> Iterable[Callable[[Any], Any]]:
    headed = partial(own, heading=heading)
    yield headed(
        "--gpu",
        "The GPU model, such as h100-sxm, if the topology only says where GPUs are and not which model.",
        metavar="MODEL",
    )
    yield headed(
        "--nic-gbps",
        "net_gbps",
        "Speed of the adapters in Gb/s (1e9 bits per second), if the topology only says where they are; with --gpu.",
        type=click.FloatRange(min=0.001, max=1e6),
        metavar="GBPS",
    )
    yield headed(
        "--nic-latency-us",
        "net_latency_us",
        "Latency that the network plugin reports for these adapters. [default: 0, as NCCL's own network reports]",
        type=click.FloatRange(min=0, max=1e6),
        metavar="US",
    )


def skeleton_options(heading: str | None = None) -> Callable[[F], F]:
    """Options for facts that a topology leaves to the machine, each with its own parameter."""
    return lambda function: stacked(function, *_skeleton(option, heading))


def _log_communicator(own: Callable[..., Callable[[Any], Any]]) -> Callable[[Any], Any]:
    says = "Which communicator of the log, by its commId, if the log has several."
    return own("--log-communicator", says, metavar="ID", heading=LOGGED)


def fact_options(
    own: Callable[..., Callable[[Any], Any]], heading: str | None = LOGGED
) -> Iterable[Callable[[Any], Any]]:
    """Options for facts that a log may lack, made by the function ``own``, below ``heading``."""
    headed = partial(own, heading=heading)
    yield headed(
        "--comp-cap",
        "Compute capability of the GPUs: one value, or one per rank. NCCL's log does not say it.",
        type=Parsed("compute capabilities", _comp_caps),
        default=(),
        metavar="8.0",
    )
    yield headed("--cpu-arch", _of(CPU_ARCHS), type=click.Choice(CPU_ARCHS), metavar="ARCH")
    yield headed("--cpu-vendor", _of(CPU_VENDORS), type=click.Choice(CPU_VENDORS), metavar="VENDOR")
    yield headed("--nvswitch/--no-nvswitch", "Whether a node has NVSwitches.", default=None)
    yield headed(
        "--slowest-path-gbs",
        "net_gbs",
        "Bandwidth of the slowest path from a GPU to its adapter, in GB/s (1e9 bytes per second).",
        type=click.FloatRange(0, 1e5, min_open=True),
        metavar="GBS",
    )


def _of(names: Iterable[str]) -> str:
    return f"The CPUs': {', '.join(name.strip() for name in names)}."


def described_by_log(function: F) -> F:
    """The option ``--log``, and options for its communicator and for what it may lack, each with its own parameter."""
    return stacked(
        function,
        file_option(
            "--log",
            "FILE",
            "A log of NCCL_DEBUG=INFO, from which release, nodes, GPUs and variables are taken, and the graphs if "
            "NCCL_DEBUG_SUBSYS was INIT,ENV,GRAPH.",
            heading=LOGGED,
        ),
        _log_communicator(option),
        *fact_options(option),
    )


def with_env_files(described: Scenario, files: Sequence[Path]) -> Scenario:
    """Adds the variables in these files to the scenario. What they do is printed on stderr, one line per file, and is
    in the JSON."""
    if not files:
        return described
    from tuner.jobs import environment_file

    described, effects = environment_file.with_files(described, files)
    for each in effects:
        parts = (
            ("change picks", each.changing),
            ("may have a tuner plugin choose", each.tuners),
            ("change none", each.unchanging),
            ("not read by this release", each.unread),
            ("given otherwise", each.given),
            ("left out, as the file computes them or takes them from elsewhere (give them with --env)", each.computed),
            ("left out, as the network plugin reads them", each.of_plugins),
            ("left out", tuple(f"{name} ({why})" for name, why in each.refused.items())),
        )
        said = [f"{what}: {', '.join(names)}" for what, names in parts if names]
        said += [f"{plural(each.others, 'variable')} that NCCL does not read"] if each.others else []
        _say_once([f"{each.file}: {'; '.join(said) or 'no variables of NCCL'}"])
    click.get_current_context().meta[ENV_FILES] = effects
    return described


def of_all_ranks(function: F) -> F:
    """Marks a command with :func:`communicator_options` that needs communicators of all ranks: it refuses --ranks and
    --shared.

    Its help does not show these options.
    """

    def packed(given: dict[str, Any]) -> Mapping[str, Any]:
        ranks, shared = given.pop("ranks"), given.pop("shared")
        if ranks is not None or shared:
            raise BadInput(
                "this command has no --ranks and --shared; these commands do: pick, explain, edges, budget, check"
            )
        return {}

    whole = packing(function, packed)
    for each in vars(whole)["__click_params__"]:
        each.hidden = each.hidden or each.name in ("ranks", "shared")
    return whole


of_nodes_option = _own(
    "--change",
    "changes",
    f"Change the nodes, as in remove-nic=mlx5_0. Keys: {', '.join(EDITS)}, p2p. Repeatable.",
    multiple=True,
    metavar="KEY=VALUE",
    type=Change(),
    heading=TOPOLOGY,
)


_BUILD = _own(
    "--build",
    "Which build of the release's libnccl to ask: the one for CUDA 12 or for CUDA 13.",
    type=click.Choice(BUILDS),
    default=BUILDS[0],
    heading=LIBNCCL,
)


def say_log(scenario: Scenario) -> None:
    """Prints on stderr after the answer, once per command, what was assumed about a log; JSON has it, too."""
    says = scenario.from_log
    meta = click.get_current_context().meta
    if says is None:
        return
    said = meta[LOG].notes if LOG in meta else ()
    meta.setdefault(LOG, says)
    for line in says.notes:
        if line not in said:
            note_after(line)


def say_whose_parts(names: Iterable[str]) -> None:
    """Prints on stderr, once per command, which machine an alias stands for, or how a described machine was
    understood."""
    names = list(names)
    _say_once(alias.note for alias in filter(None, map(catalogue.alias, names)))
    in_words = filter(None, map(described.read, names))
    _say_once(f"{machine.name}: {note}" for machine in in_words for note in machine.notes)


def say_notes(scenario: Scenario) -> None:
    """Prints on stderr, once per command, notes on the scenario and on what a tuner sets."""
    _say_once(notes.of_scenario(scenario))
    _say_once(tuners.notes(scenario))


def after(before: Scenario, assignments: Sequence[str]) -> Scenario:
    """The scenario after all changes KEY=VALUE; also calls :func:`say_notes`. BadInput for an impossible change."""
    scenario = changed(before, assignments)
    say_notes(scenario)
    return scenario


def _say_once(lines: Iterable[str]) -> None:
    said = click.get_current_context().meta.setdefault("tuner.cli.notes", set())
    for line in dict.fromkeys(lines):
        if line not in said:
            said.add(line)
            note_after(line)
