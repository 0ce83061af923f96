"""``nccl-tuner fit constants``: the constants of NCCL's model, from measurements."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from tuner.base.records import to_json
from tuner.cli import options
from tuner.cli.arm_options import place_options
from tuner.cli.fit.shared import measured_files, percent, print_left_out, title_of
from tuner.cli.gpu_options import library_option
from tuner.cli.output import human_bytes, print_json, print_table, say
from tuner.cli.provenance import command_line
from tuner.times.calibration.fit import KEPT_ALIKE, KEPT_WITHOUT_EFFECT, Fitted
from tuner.times.calibration.workflow import FitReport, fit

WORSE = 2.0  # times what the model misses in the middle: sizes that are named


@click.command(name="constants", cls=options.Command)
@click.argument("files", metavar="[FILE]...", nargs=-1, type=click.Path(path_type=Path))
@place_options
@options.out_option(
    "CONSTANTS", "The file of fitted constants to write, for the --constants of pick, table and group.", required=False
)
@library_option
@options.json_option
def command(
    files: tuple[Path, ...],
    out: Path | None,
    as_json: bool,
    **given: Any,
) -> None:
    """Fits the constants of NCCL's model to the measurements in FILE, of one machine and release.

    What the measurements do not determine keeps NCCL's value; several node counts determine more. Every fourth
    size is held out: the errors there are those of sizes that were not used. Sessions and communicators are held out
    in turn as well.

    With --arm, --machine, --topology or --log the FILEs are of nccl-tests, or of any origin as in 'verify'; NCCL's own
    choices in them count as what the emulator picks where no log says it.

    \b
    nccl-tuner fit constants one-node.jsonl two-nodes.jsonl --out pod.toml
    """
    read, files = measured_files(files, given)
    report = fit(files, out=out, command=command_line(), progress=_say, measured=read)
    if as_json:
        print_json(to_json(report))
    else:
        _print(report)
        if out is not None:
            say(f"{out}: {len(report.fitted)} constants of NCCL {report.files.nccl}")


def _say(step: str) -> None:
    """On a terminal alone."""
    if sys.stderr.isatty():
        say(f"{step} ...", err=True)


LL_ROWS = "cap_gbs.ll: with several nodes NCCL goes by the processors, row ampere for AMD or mixed, volta for others"


def _print(report: FitReport) -> None:
    fitted, title = report.fit, title_of(report.files)
    rows = [
        (one.name, f"{one.nccl:.5g}", f"{one.value:.5g}", _interval(one), one.status, _alike(one))
        for one in report.fitted
    ]
    print_table(title, ("constant", "NCCL", "fitted", "95 %", "status", "kept constants of the same effect"), rows)
    if any(one.name.startswith("cap_gbs.ll.") for one in report.fitted):
        say(LL_ROWS)
    kept = [one for one in fitted.constants if one.status == KEPT_ALIKE]
    if kept:
        title = "Kept at NCCL's value: the measurements cannot separate them from others"
        columns: tuple[str, ...] = ("constant", "NCCL", "same effect as")
        print_table(title, columns, [(one.name, f"{one.nccl:.5g}", _alike(one)) for one in kept])
    errors = [
        (
            each.combination,
            each.calls,
            percent(each.nccl_percent),
            percent(each.fitted_percent),
            each.held_out_calls,
            percent(each.nccl_held_out_percent),
            percent(each.fitted_held_out_percent),
        )
        for each in fitted.errors
    ]
    columns = ("combination", "calls", "NCCL", "fitted", "held out", "NCCL there", "fitted there")
    print_table("Mean absolute error of the times, %", columns, errors)
    _print_held_out(report)
    without_effect = [one.name for one in fitted.constants if one.status == KEPT_WITHOUT_EFFECT]
    for what, names in (("too little effect", without_effect), ("not reached", fitted.unreached)):
        if names:
            say(f"kept at NCCL's value, {what}: {_few(names)}")
    if fitted.noise > 1:
        say(f"the model misses the times by {fitted.noise:g} of their deviations; intervals are as much wider")
    worse = [one for one in fitted.noise_by_size if one.noise > WORSE * fitted.noise]
    if worse:
        sizes = ", ".join(f"from {human_bytes(one.from_bytes)} {one.noise:g}" for one in worse)
        say(f"more than elsewhere at some sizes, which count as much less: {sizes}")
    print_left_out(report.files)


def _print_held_out(report: FitReport) -> None:
    rows = [(one.what, one.calls, percent(one.nccl_percent), percent(one.fitted_percent)) for one in report.held_out]
    if rows:
        columns = ("held out of a fit to all others", "calls", "NCCL there", "fitted there")
        print_table("Mean absolute error at what a fit did not see, %", columns, rows)
    else:
        say("no session and no communicator held out: that takes three processes, or FILEs of two communicators")


def _interval(one: Fitted) -> str:
    return "-" if one.low is None or one.high is None else f"{one.low:.4g}..{one.high:.4g}"


def _alike(one: Fitted) -> str:
    return ", ".join(f"{name} x{part:.2g}" for name, part in one.alike.items()) or "-"


def _few(names: Sequence[str]) -> str:
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more (--json)" if len(names) > 4 else "")
