"""``nccl-tuner cost report``: measured times against everything that says how fast they could be."""

from collections.abc import Mapping
from pathlib import Path

import click

from tuner.answers import efficiency
from tuner.answers.calibrated import TimesWanted
from tuner.answers.efficiency import (
    ALPHA_INTER_US,
    ALPHA_INTRA_US,
    Assumed,
    CalibratedRow,
    EfficiencyReport,
    EfficiencyRow,
)
from tuner.base.names import Collective
from tuner.base.nouns import TimeInterval
from tuner.base.view import Column, columns_of
from tuner.cli import options
from tuner.cli import times as calibrated_times
from tuner.cli.command import FILE
from tuner.cli.communicator_options import of_all_ranks
from tuner.cli.cost import values
from tuner.cli.output import human_bytes, json_wanted, print_json, print_view, say
from tuner.times.calibration import plausible, sweep
from tuner.times.costmodels.alphabeta import Level


@click.command(name="report", cls=options.Command)
@options.under(
    "Links, alpha and beta",
    "--intra-gbs",
    "--inter-gbs",
    "--alpha-us",
    "--beta-gbs",
    "--inter-alpha-us",
    "--inter-beta-gbs",
)
@click.argument("file", type=FILE)
@of_all_ranks
@options.communicator_options()
@options.collective_option("The collective, if FILE has several or does not name it.")
@values.gbs_option(
    "--intra-gbs",
    "Bandwidth of a GPU's links inside the node, in GB/s. [default: that of its NVLinks in the data sheet]",
)
@values.gbs_option(
    "--inter-gbs", "Bandwidth of all adapters of a node together, in GB/s. [default: as in the topology]"
)
@values.us_option(
    "--alpha-us",
    "alpha_intra_us",
    "For the alpha-beta model: latency of a step inside a node, in us.",
    default=ALPHA_INTRA_US,
)
@values.gbs_option("--beta-gbs", "beta_intra_gbs", "[default: --intra-gbs]")
@values.us_option(
    "--inter-alpha-us",
    "alpha_inter_us",
    "For the alpha-beta model: latency of a step between nodes, in us.",
    default=ALPHA_INTER_US,
)
@values.gbs_option("--inter-beta-gbs", "beta_inter_gbs", "[default: a GPU's share of --inter-gbs]")
@options.time_options("both")
@options.file_option("--plot", "OUT.png", "Draw the comparison to this file: .png, .svg or .pdf; needs matplotlib.")
@options.json_option
def command(
    file: Path,
    collective: Collective | None,
    intra_gbs: float | None,
    inter_gbs: float | None,
    alpha_intra_us: float,
    beta_intra_gbs: float | None,
    alpha_inter_us: float,
    beta_inter_gbs: float | None,
    times: TimesWanted | None,
    plot: Path | None,
    communicator: options.CommunicatorOptions,
) -> None:
    """Compares measured times by size with NCCL's prediction, calibrated times, the alpha-beta model, the ideal
    bandwidth, and what the links allow.

    FILE has a run with NCCL's own choices: what nccl-tests prints or writes with -J, or what 'nccl-tuner measure'
    wrote.

    \b
    nccl-tuner cost report all_reduce.txt --machine dgx-h100 --nodes 2 --nccl 2.28.9 --plot report.png
    """
    if plot is not None:
        from tuner.answers.charts import check_ending

        check_ending(plot)
    measured = sweep.read(file, collective)
    described = communicator.scenario(nccl=communicator["nccl"] or measured.nccl)
    report = efficiency.report(
        measured,
        described,
        plausible.of_case(described, intra_gbs, inter_gbs),
        Assumed(alpha_intra_us, alpha_inter_us, beta_intra_gbs, beta_inter_gbs),
        times,
    )
    if plot is not None:
        from tuner.answers.charts import figures as picture
        from tuner.answers.charts import save

        save(picture.efficiency(report), plot)
    if json_wanted():
        print_json(_record(report))
    else:
        _print(report, by_nccl=times is None or times.beside_nccl or not report.rows[0].calibrated)


def _record(report: EfficiencyReport) -> Mapping[str, object]:
    calibration = {} if report.calibration is None else {"calibration": report.calibration}
    return {
        "file": report.sweep.path,
        "collective": report.sweep.collective.name,
        "nccl": report.scenario.nccl,
        "ranks": report.scenario.ranks,
        "nodes": report.scenario.nodes,
        "links": report.links,
        "intra": _level(report.intra),
        "inter": _level(report.inter),
        "in_cuda_graphs": report.sweep.in_graphs,
        "wrong_bytes": report.sweep.wrong_bytes,
        **calibration,
        "sizes": report.rows,
    }


def _level(level: Level | None) -> Mapping[str, float] | None:
    return None if level is None else {"alpha_us": float(level.alpha_us), "beta_gbs": float(level.beta_gbs)}


def _calibrated(row: EfficiencyRow) -> TimeInterval | None:
    return None if row.calibrated is None else row.calibrated.time


MEASURED = columns_of(EfficiencyRow, "bytes", "measured_us", "busbw_gbs", "pick")
BY_NCCL = columns_of(EfficiencyRow, "nccl_us", "nccl_error")
CALIBRATED = (
    Column("calibrated us", _calibrated, calibrated_times.central),
    *columns_of(CalibratedRow, "error", of="calibrated"),
    Column(f"{calibrated_times.INTERVAL} us", _calibrated, calibrated_times.interval),
)
BY_ALPHA_BETA = columns_of(
    EfficiencyRow, "alphabeta_us", "alphabeta_error", "efficiency", "link_busbw_gbs", "limit", "verdict"
)


def _print(report: EfficiencyReport, *, by_nccl: bool) -> None:
    measured = any(row.calibrated for row in report.rows)
    columns = (*MEASURED, *(BY_NCCL if by_nccl else ()), *(CALIBRATED if measured else ()), *BY_ALPHA_BETA)
    print_view(f"{report.sweep.collective.name} on {report.scenario.title}: {report.sweep.path}", columns, report.rows)
    if report.sweep.wrong_bytes:
        say(f"left out, as results were wrong: {', '.join(map(human_bytes, report.sweep.wrong_bytes))}")
    if report.sweep.in_graphs:
        say(
            "these times were measured in CUDA graphs; the picks, NCCL's times and calibrated times are for calls "
            "outside of CUDA graphs"
        )
    ideal = {f"{row.ideal_busbw_gbs:.1f}" for row in report.rows}
    say(f"ideal busbw {', '.join(ideal)} GB/s; {_links(report)}")
    for name, causes in {row.verdict: row.causes for row in report.rows if row.causes}.items():
        say(f"{name}: {'; '.join(causes)}")
    for name, label in (("NCCL", "nccl_class"), ("alpha-beta", "alphabeta_class")):
        classes = [getattr(row, label) for row in report.rows]
        counts = ", ".join(f"{each} at {classes.count(each)}" for each in dict.fromkeys(classes))
        say(f"{name} against {len(classes)} measured sizes: {counts}")
    if held := [row.calibrated.holds for row in report.rows if row.calibrated]:
        say(f"calibrated against {len(held)} measured sizes: in the interval at {sum(held)}")
    if report.calibration:
        say(calibrated_times.whose(report.calibration))


def _links(report: EfficiencyReport) -> str:
    parts = []
    if report.links.intra_gbs is not None and report.intra is not None:
        parts.append(f"{report.links.intra_gbs:g} GB/s of a GPU in its node (alpha {_of(report.intra)})")
    if report.links.inter_gbs is not None and report.inter is not None:
        parts.append(f"{report.links.inter_gbs:g} GB/s of a node (alpha {_of(report.inter)} of a GPU)")
    return ", ".join(parts)


def _of(level: Level) -> str:
    return f"{float(level.alpha_us):g} us, beta {float(level.beta_gbs):g} GB/s"
