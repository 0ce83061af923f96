"""``nccl-tuner plot page``: writes a machine's choices as one HTML page of figures, packed data, and scripts."""

import json
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tuner import release
from tuner.answers import graphs
from tuner.answers.charts.palette import COLOURS, DASHES, HATCHES, INKS, NOTHING_COLOUR, NOTHING_HATCH, NOTHING_INK
from tuner.base import extras
from tuner.base.errors import BadInput, TunerError
from tuner.base.files import check_writable, write_text
from tuner.base.names import ALGO_PROTOS, Collective, DataType, Op
from tuner.base.printable import printable, raw
from tuner.cli import options
from tuner.cli.output import json_wanted, print_json, say
from tuner.cli.reports import data
from tuner.cli.reports.data import Packer, PageData
from tuner.cli.reports.machine_picture import picture
from tuner.cli.reports.policy import OF_ONE_FILE, with_policy
from tuner.emulator.request import Request
from tuner.machine import catalogue
from tuner.machine.graphs import release_key
from tuner.scenario import Scenario

if TYPE_CHECKING:
    from tuner.answers.calibrated import TimesWanted

FIRST_BYTES = 1 << 20  # of the cell that is explained when the page opens


def page(packer: Packer) -> tuple[str, int]:
    """Makes the text of the page, and says how many of its bytes are data. The same content always gives the same text.

    MissingExtra if bokeh is not installed.
    """
    extras.require("bokeh", "report")
    import bokeh
    from bokeh.core.types import ID
    from bokeh.embed import json_item
    from bokeh.resources import Resources
    from jinja2 import Environment
    from markupsafe import Markup as Raw  # what is no text of a user's, and cannot end a script

    from tuner.cli.reports.figures import figures

    report = packer.report
    index, numbers = packer.pack(_described(report))
    template = Environment(autoescape=True).from_string(_text("page.html"))
    html = template.render(
        title=f"What NCCL picks on {report.scenario.name}",
        subtitle=_subtitle(report),
        provenance=f"Computed by nccl-tuner {version('nccl-tuner')}, which emulates NCCL's tuning model and selection "
        f"bit for bit and is checked against libnccl; drawn with Bokeh {bokeh.__version__}. The page loads nothing.",
        calibrated=packer.calibrated is not None,
        machine=Raw(_machine(report.scenario)),
        style=Raw(_text("page.css")),
        libraries=[Raw(script) for script in Resources(mode="inline", components=["bokeh"]).js_raw],
        figures=Raw(_renumbered(json.dumps(json_item(figures(report), ID("plots")))).replace("<", "\\u003c")),
        index=index,
        numbers=numbers,
        script=Raw("\n".join(map(_text, ("data.js", "figures.js", "panel.js")))),
    )
    return with_policy(printable(html), OF_ONE_FILE), len(index) + len(numbers)


def _machine(scenario: Scenario) -> str:
    """The picture of a node; empty if its graphs are not found by the search."""
    try:
        return picture(graphs.limited(scenario, "ring"), scenario.title)
    except TunerError:
        return ""


def _described(report: PageData) -> dict[str, object]:
    """The index of the page without its lines: how combinations look, and at which cell the page opens."""
    nothing = {"colour": NOTHING_COLOUR, "ink": NOTHING_INK, "hatch": NOTHING_HATCH}
    return {
        "gpus_per_node": report.scenario.gpus(),
        "options": _options(report),
        "nothing": nothing,
        "cells": [
            {
                "name": f"{algorithm.name}/{protocol.name}",
                "colour": COLOURS[algorithm],
                "ink": INKS[algorithm],
                "hatch": HATCHES[protocol],
                "dash": DASHES[protocol],
            }
            for algorithm, protocol in ALGO_PROTOS
        ],
        "first": {
            "release": len(report.releases) - 1,
            "collective": list(Collective).index(Collective.AllReduce),
            "node": report.nodes.index(max(report.scenario.nodes, report.nodes[0])),
            "size": report.sizes.tolist().index(FIRST_BYTES),
        },
    }


def _options(report: PageData) -> str:
    """Options of `nccl-tuner explain` that are the same for the whole page."""
    scenario = report.scenario
    given = {
        "--machine": scenario.machine,
        "--topology": scenario.topology,
        "--log": scenario.logged and scenario.logged.file,
        "--log-communicator": scenario.logged and scenario.from_log and scenario.from_log.communicator,
        "--comp-cap": scenario.logged and scenario.logged.comp_caps_in_words,
        "--gpu": scenario.gpu,
        "--nic-gbps": scenario.net_gbps,
        "--nic-latency-us": scenario.net_latency_us,
        "--trays": scenario.trays,
        "--gpus-per-tray" if scenario.resolve().own.trays else "--gpus-per-node": scenario.gpus_per_node,
        "--ranks-per-gpu": scenario.ranks_per_gpu,
        "--hosts-per-domain": scenario.hosts_per_domain_in_words,
        "--constants": scenario.fitted_constants and scenario.fitted_constants.file,
    }
    words = [word for name, value in given.items() if value is not None for word in (name, str(value))]
    words += ["--collnet"] * scenario.collnet
    for name, value in (scenario.environment or {}).items():
        words += ["--env", f"{name}={value}"]
    if report.dtype is not DataType.float32:
        words += ["--dtype", report.dtype.name]
    if report.op is not Op.sum:
        words += ["--op", report.op.name]
    return shlex.join(words)


def _subtitle(report: PageData) -> str:
    settings = "".join(f", {name}={value}" for name, value in (report.scenario.environment or {}).items())
    kind = f"{catalogue.load(report.scenario.machine).title}: " if report.scenario.machine else ""
    fitted = report.scenario.fitted_constants
    constants = f", constants of {fitted.file}" if fitted else ""
    one = report.scenario.with_nodes(1).resolve()
    releases = f"{report.releases[0]} to {report.releases[-1]}" if len(report.releases) > 1 else report.releases[0]
    return (
        f"{kind}{report.scenario.gpus()} GPUs per node{one.own.sharing}{one.each_in_words}, "
        f"{report.nodes[0]} to {report.nodes[-1]} nodes; "
        f"NCCL {releases}; {report.dtype.name}, {report.op.name}{settings}{constants}."
    )


def _renumbered(figures: str) -> str:
    """Renumbers Bokeh's ids in order of appearance, as they depend on what the process made before."""
    seen: dict[str, str] = {}
    return re.sub(r'"p\d+"', lambda match: seen.setdefault(match[0], f'"p{len(seen)}"'), figures)


def _text(name: str) -> str:
    return files("tuner.cli.reports").joinpath(name).read_text("utf-8")


def write_page(
    communicator: options.CommunicatorOptions,
    call: Request,
    times: "TimesWanted | None",
    out: Path | None,
) -> None:
    """Writes the page of a machine, and prints what is on it. BadInput without a file; MissingExtra."""
    if out is None:
        raise BadInput("page needs a file to write: --out FILE.html")
    extras.require("bokeh", "report")  # both before what takes a minute
    check_writable(out)
    names = sorted({release.load(name).name for name in communicator["nccl"]}, key=release_key)
    scenario = communicator.scenario(nccl=names[-1] if names else None)

    def along(what: str, releases: Sequence[str]) -> Iterator[str]:
        with click.progressbar(releases, label=f"computing {what}", file=raw(sys.stderr)) as shown:
            yield from shown

    report = data.collect(scenario, names or scenario.releases, call.dtype, call.op, partial(along, scenario.name))
    lines = None if times is None else data.collect_calibrated(report, times, partial(along, "calibrated times"))
    packer = Packer(report, lines)
    html, data_bytes = page(packer)
    write_text(out, html)
    summary = {
        "file": str(out),
        "file_bytes": len(html.encode()),
        "data_bytes": data_bytes,
        "machine": scenario.name,
        "gpus_per_node": scenario.gpus(),
        "releases": list(report.releases),
        "collectives": [one.name for one in Collective],
        "nodes": list(report.nodes),
        "sizes_bytes": report.sizes.tolist(),
        "picks": len(report.lines) * len(report.sizes),
        "different_lines": len(packer.numbers),
    }
    used = {} if lines is None else {line.used.reason: line.used for line in lines.values()}
    if json_wanted():
        print_json({**summary, "calibrations": [each.name for each in used.values() if each.name]})
    else:
        counts = ", ".join(
            f"{name} {len(summary[name])}" for name in ("releases", "collectives", "nodes", "sizes_bytes")
        )
        say(f"{out}: {summary['picks']} picks ({counts.replace('_bytes', '')})")
        for each in used.values():
            by = f"by the calibration {each.reason}" if each.name else f"none; {each.reason}"
            say(f"calibrated times: {by}")
