"""``--log``: a communicator described by a log, and options that say what the log does not."""

from pathlib import Path
from typing import Any

import click

from tuner.base.errors import BadInput
from tuner.base.names import CPU_ARCHS, CPU_VENDORS
from tuner.cli.output import LOG
from tuner.cli.stacked import F, stacked
from tuner.scenario import Scenario

# Those of GPUs that there are: CUDA C++ Programming Guide, "Compute Capabilities"; developer.nvidia.com/cuda-gpus.
COMP_CAPS = (35, 37, 50, 52, 53, 60, 61, 62, 70, 72, 75, 80, 86, 87, 88, 89, 90, 100, 101, 103, 110, 120, 121)


class CompCaps(click.ParamType):  # type: ignore[type-arg]
    """Compute capabilities: ``8.0`` or ``80``, one or one per rank."""

    name = "compute capabilities"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, tuple):
            return value
        words = [word.strip().replace(".", "") for word in str(value).split(",")]
        if not all(word.isdecimal() and int(word) in COMP_CAPS for word in words):
            known = ", ".join(f"{cap // 10}.{cap % 10}" for cap in COMP_CAPS)
            raise BadInput(
                f"--comp-cap {value!r}: expected one such as 8.0 or 80, or one per rank: 80,80,90,90; valid: {known}"
            )
        return tuple(map(int, words))


def described_by_log(function: F) -> F:
    """The option ``--log``, which communicator of it, and what else it may lack."""
    return stacked(
        function,
        click.option(
            "--log",
            type=click.Path(path_type=Path),
            metavar="FILE",
            help="A log of NCCL_DEBUG=INFO: release, nodes, GPUs, variables, and with NCCL_DEBUG_SUBSYS=INIT,ENV,GRAPH "
            "its graphs, without --machine and --topology.",
        ),
        click.option("--log-communicator", metavar="ID", help="The commId in the log, where it has several."),
        *fact_options("With --log: "),
    )


def fact_options(where: str = "") -> tuple[Any, ...]:
    """Options for what a log may not say; their help begins with ``where``."""
    return (
        click.option(
            "--comp-cap",
            type=CompCaps(),
            default=(),
            metavar="8.0",
            help=f"{where}GPUs' compute capability: one, or one per rank. No line of NCCL's says it.",
        ),
        click.option("--cpu-arch", type=click.Choice(CPU_ARCHS), help=f"{where}CPU architecture."),
        click.option("--cpu-vendor", type=click.Choice(CPU_VENDORS), help=f"{where}CPU vendor."),
        click.option("--nvswitch/--no-nvswitch", default=None, help=f"{where}Whether there is an NVSwitch."),
        click.option(
            "--net-gbs", type=click.FloatRange(0), help=f"{where}Slowest path from a GPU to its adapter, GB/s."
        ),
    )


def say_log(scenario: Scenario) -> None:
    """A line on stderr, once a command, for each thing that is assumed of a log; JSON has it, too."""
    says = scenario.from_log
    meta = click.get_current_context().meta
    if says is None:
        return
    said = meta[LOG].notes if LOG in meta else ()
    meta.setdefault(LOG, says)
    for note in says.notes:
        if note not in said:
            click.echo(f"note: {note}", err=True)
