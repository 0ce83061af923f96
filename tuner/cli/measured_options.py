"""Options about measured times: what files do not say, what each run forced, and where it was measured."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tuner.base.errors import BadInput
from tuner.cli import options
from tuner.cli.command import F, Parsed, packing, stacked
from tuner.cli.communicator_options import TOPOLOGY, described_by_log, release_option, say_log
from tuner.cli.output import note_after
from tuner.scenario import MOST_NODES, Scenario
from tuner.scenario.describe import describe
from tuner.times.measured.formats import NCCL_TESTS, Given, MeasurementFile
from tuner.times.placement import Site

if TYPE_CHECKING:
    from tuner.times.regret.arms import MeasuredArms
    from tuner.times.regret.workflow import RunsQuery


def _measured_there(files: str) -> Iterator[Callable[[Any], Any]]:
    """Options for the machine and the release that were measured, unless ``files`` say them."""
    yield options.option("--machine", f"The machine that was measured. [default: what {files} say]", metavar="NAME")
    yield options.file_option("--topology", "FILE.xml", "Instead of --machine: a topology in NCCL's XML.")
    says = f"The release that was measured. [default: what {files} say]"
    yield release_option(says, only_known=False)


def site_options(function: F) -> F:
    """Options for the origin of measured times, if files do not say it, for the parameters ``site`` and ``given``."""

    def packed(taken: dict[str, Any]) -> Mapping[str, Any]:
        nodes, trays = taken.pop("nodes"), taken.pop("trays")
        return {
            "given": Given(
                nodes=nodes or trays, gpus_per_node=taken.pop("gpus_per_node"), collective=taken.pop("program")
            ),
            "site": Site(taken.pop("machine"), taken.pop("nccl") or "", taken.pop("topology")),
        }

    return packing(
        function,
        packed,
        *_measured_there("the files"),
        options.option(
            "--nodes",
            "How many nodes took part, if the files do not say it.",
            type=click.IntRange(1, MOST_NODES),
            metavar="N",
        ),
        options.option("--gpus-per-node", "GPUs used per node, or per tray.", type=click.IntRange(1), metavar="N"),
        options.option(
            "--trays",
            "Instead of --nodes: how many trays of one NVLink domain took part.",
            type=click.IntRange(1),
            metavar="N",
        ),
        options.program_option("The collective that was run, if the files do not say it."),
    )


def _arm(text: str) -> tuple[str, Path]:
    """Reads ``NAME=FILE``."""
    label, equals, path = text.partition("=")
    if not equals or not label or not path:
        raise BadInput(f"--arm {text}: expected NAME=FILE, such as Ring=ring.log or default=plain.log")
    return label, Path(path)


arm_option = options.option(
    "--arm",
    "labelled",
    "A file, and NAME for what the run forced: default (nothing), Ring, LL128, Ring/LL, or Ring/LL/8 with a number "
    "of channels; repeatable.",
    multiple=True,
    type=Parsed("arm", _arm),
    metavar="NAME=FILE",
)
# Beside machine, topology, release and node counts: what else describes a communicator.
_WORDS = (
    *("log", "log_communicator", "comp_cap", "cpu_arch", "cpu_vendor", "nvswitch", "net_gbs"),
    *("gpu", "net_gbps", "net_latency_us"),
)


def place_options(function: F) -> F:
    """Options that :func:`asked` reads: arms, and where they were measured."""
    function = described_by_log(options.skeleton_options(TOPOLOGY)(function))
    return stacked(
        function,
        arm_option,
        *_measured_there("files"),
        options.option(
            "--nodes",
            "Number of nodes, if the files do not say it; for a table, it selects the rows.",
            type=click.IntRange(min=1),
        ),
        options.option("--gpus-per-node", "GPUs per node, if the files do not say it.", type=click.IntRange(min=1)),
    )


def is_asked(given: Mapping[str, Any]) -> bool:
    """Whether the user gave any of these options; the files are then arms of one machine."""
    return any(value not in (None, "", ()) for value in given.values())


def asked(files: tuple[Path, ...], given: Mapping[str, Any], **more: Any) -> "RunsQuery":
    """Which files to read, from the parameters of :func:`place_options`; prints what is assumed about a log."""
    from tuner.times.regret.workflow import RunsQuery

    words = tuple((name, given[name]) for name in _WORDS if given.get(name) not in (None, ()))
    if dict(words).get("log") is not None:
        described = describe(given.get("machine"), topology=given.get("topology"), **dict(words))
        say_log(described)
    return RunsQuery(
        labelled=tuple(given.get("labelled", ())),
        files=files,
        site=Site(given.get("machine"), given.get("nccl") or "", given.get("topology"), words),
        nodes=given.get("nodes"),
        gpus_per_node=given.get("gpus_per_node"),
        **more,
    )


def runs_there(files: tuple[Path, ...], given: Mapping[str, Any]) -> "tuple[MeasuredArms, Scenario]":
    """The arms in FILEs, on the communicator that the parameters of ``options.communicator_options`` describe."""
    if given.get("node") or given.get("trays") or given.get("constants"):
        raise BadInput(
            "--node, --trays and --constants do not apply to files of nccl-tests: use --machine, --topology or --log"
        )
    from tuner.times.regret.workflow import read

    placed = read(asked(files, given))
    say_stand_in(placed.site)
    words = {name: value for name, value in given.items() if name != "labelled"}
    counts = {(one.call.nodes, one.call.gpus_per_node) for one in placed.calls}
    if given.get("log") is None and len(counts) == 1:
        ((nodes, gpus),) = counts
        words |= {"nodes": given.get("nodes") or nodes, "gpus_per_node": given.get("gpus_per_node") or gpus}
    return placed, options.CommunicatorOptions(words).scenario(nccl=given.get("nccl") or placed.site.nccl)


def say_stand_in(site: Site) -> None:
    """Prints on stderr after the answer that a release is used in place of the measured one, which is not known."""
    if site.stand_in:
        note_after(site.stand_in)


def check_place(files: tuple[Path, ...]) -> None:
    """Raises BadInput for a file of nccl-tests, if nothing says on which machine it was measured."""
    for path in files:
        if path.is_file() and MeasurementFile(path).format in NCCL_TESTS:
            raise BadInput(
                f"{path} does not say where it was measured; add --machine NAME, --topology FILE.xml or --log FILE, "
                "and --nccl RELEASE if it does not say that either"
            )
