"""``nccl-tuner plot page``: a machine's choices as one HTML page."""

import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tuner import release
from tuner.base import extras
from tuner.base.errors import BadInput
from tuner.base.files import check_writable, write_text
from tuner.base.names import Collective
from tuner.cli import options
from tuner.cli.output import print_json, say
from tuner.cli.reports import data
from tuner.cli.reports.page import page
from tuner.machine.graphs import release_key

if TYPE_CHECKING:
    from tuner.answers.calibrated import TimesWanted


def write_page(
    communicator: options.CommunicatorOptions,
    call: options.CallOptions,
    times: "TimesWanted | None",
    out: Path | None,
    as_json: bool,
) -> None:
    """Writes the page of a machine, and prints what is in it. Errors: BadInput for no file; MissingExtra."""
    if out is None:
        raise BadInput("page: into which file? valid: --out FILE.html")
    extras.require("bokeh", "report")  # both before what takes a minute
    check_writable(out)
    names = sorted({release.load(name).name for name in communicator["nccl"]}, key=release_key)
    scenario = communicator.scenario(nccl=names[-1] if names else None)

    def along(what: str, releases: Sequence[str]) -> Iterator[str]:
        with click.progressbar(releases, label=f"computing {what}", file=sys.stderr) as shown:
            yield from shown

    report = data.collect(scenario, names or scenario.releases, call.dtype, call.op, partial(along, scenario.name))
    lines = None if times is None else data.collect_calibrated(report, times, partial(along, "calibrated times"))
    made = page(report, lines)
    write_text(out, made.html)
    summary = {
        "file": str(out),
        "file_bytes": len(made.html.encode()),
        "data_bytes": made.data_bytes,
        "machine": scenario.name,
        "gpus_per_node": scenario.gpus(),
        "releases": list(report.releases),
        "collectives": [one.name for one in Collective],
        "nodes": list(report.nodes),
        "sizes_bytes": report.sizes.tolist(),
        "picks": len(report.lines) * len(report.sizes),
        "different_lines": made.different_lines,
    }
    used = {} if lines is None else {line.used.reason: line.used for line in lines.values()}
    if as_json:
        print_json({**summary, "calibrations": [each.name for each in used.values() if each.name]})
    else:
        counts = ", ".join(
            f"{name} {len(summary[name])}" for name in ("releases", "collectives", "nodes", "sizes_bytes")
        )
        say(f"{out}: {summary['picks']} picks ({counts.replace('_bytes', '')})")
        for each in used.values():
            by = f"by the calibration {each.reason}" if each.name else f"none; {each.reason}"
            say(f"calibrated times: {by}")
