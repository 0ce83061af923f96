"""``nccl-tuner diagnose``: what is wrong, from any files; for one topology also what it costs, and its repair."""

import io
import shlex
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tuner.answers.charts import ready_to_save
from tuner.base.errors import BadInput
from tuner.base.files import write_text
from tuner.base.findings import Finding, Severity, explained
from tuner.base.records import to_json
from tuner.base.sizes import human_bytes, plural
from tuner.cli import options
from tuner.cli.command import FILE
from tuner.cli.communicator_options import release_option
from tuner.cli.output import json_wanted, number, print_json, print_table, say, verdict, width_to_fit

if TYPE_CHECKING:
    from tuner.answers.doctor.examine import Examination
    from tuner.answers.doctor.records import TopologyFinding
    from tuner.jobs.diagnosis.records import FileDiagnosis

COMMANDS = {  # by the kind of a file: what says more of it, and whether it wants what is known of the machine
    "topology": ("diagnose", False),
    "listing of a node": ("machines --like", False),
    "log of NCCL": ("log", False),
    "output of a job": ("", False),
    "log of a serving engine": ("", False),
    "graphs of NCCL": ("", False),
    "preflight records": ("preflight check", False),
    "files of a job's ranks": ("job read", False),
    "report of ncclras": ("", False),
    "Flight Recorder dumps": ("", False),
    "NVLinks of nvidia-smi": ("", False),
    "ports of adapters": ("", False),
    "GPUs of nvidia-smi": ("", False),
    "limits and devices of a host": ("", False),
    "configuration file of NCCL": ("", False),
    "variables of a job": ("pick allreduce --bytes 64M --env-file", True),
    "results of nccl-tests": ("accept", True),
    "trace or counters of a job": ("check", True),
    "decision table": ("plugin lint", False),
    "environment of Python": ("", False),
    "no kind that is known": ("", False),
}
VERDICTS = {
    Severity.FAULT: "fault",
    Severity.UNKNOWN: "cannot be judged",
    Severity.UNLIKE: "unlike",
    Severity.NOTE: "nothing wrong",
}
GOOD = {Severity.FAULT: False, Severity.NOTE: True}
EXIT_CODES = {Severity.FAULT: 1, Severity.UNKNOWN: 3}
MOST_FINDINGS = 8  # of one file that are shown after the verdict
LONG_BYTES = 1 << 26  # files from which on a bar says how far reading is
MOST_CHANGES = 6  # of a finding that are shown; --json has all
WIDTH = 100  # of text, at most


@click.command(name="diagnose", cls=options.Command)
@click.argument("files", nargs=-1, required=True, type=FILE, metavar="FILE...")
@options.option(
    "--machine",
    "The machine, if no FILE shows it; for a topology, the machine to compare it with instead of the most similar one.",
    metavar="NAME",
)
@options.option(
    "--nodes",
    "Number of nodes, if no FILE says it. [default: 2, to compute what a topology's faults cost]",
    type=click.IntRange(1, 1 << 20),
)
@release_option("NCCL release, if no FILE says it. [default: the newest]")
@options.skeleton_options()
@options.out_option(
    "OUT.xml", "Write the repaired topology to this file; only for a single FILE that is a topology.", required=False
)
@options.file_option(
    "--plot",
    "picture",
    "FILE.png",
    "Draw what a single FILE shows: results beside comparable healthy runs, or the bandwidth on a topology as "
    "it is and repaired.",
)
@options.flag(
    "--redact", "Replace names of hosts and users, addresses and paths, so that the output can be shown to others."
)
@options.json_option
@click.pass_context
def command(
    ctx: click.Context,
    files: tuple[Path, ...],
    machine: str | None,
    nodes: int | None,
    nccl: str | None,
    gpu: str | None,
    net_gbps: float | None,
    net_latency_us: float | None,
    out: Path | None,
    picture: Path | None,
    redact: bool,
) -> None:
    """Says what is wrong according to FILEs of any kind, the gravest finding first; what one FILE shows is used to
    judge the others.

    FILE is a log of NCCL or of a serving engine, a topology that NCCL dumped, what nccl-tests, ncclras, nvidia-smi topo
    or lstopo printed, or a trace or counters of a job. It may be a folder: preflight records, Flight Recorder dumps of
    all ranks, the folder that NCCL_TUNER_JOB named, or a Python environment (it says which libnccl its jobs load, and
    why). Each finding names the command that shows more. Exit code 1 if something is wrong, else 3 if something cannot
    be judged, else 0. Logs and other output of one job, such as the kernel's or a scheduler's, are read together: the
    answer names the first cause, where it began, and which ranks only failed because of it. "unlike" means different
    from what is usual, which may be intended, so it is no fault.

    For a single topology it also says what each finding costs, and which changes repair it ('nccl-tuner diff' takes the
    same changes). Parts are recognised by their PCI ids, and the topology is compared with the most similar machine of
    the catalogue. Findings are: switches and NUMA nodes that a virtual machine hides, PCIe links without a speed or
    slower than usual, fewer NVLinks than the model has, GPUDirect RDMA off, and adapters that NCCL merges or drops, or
    that have no GPU near them.

    \b
    nccl-tuner diagnose nccl.log node.xml all_reduce.log
    nccl-tuner diagnose all_reduce.log --machine dgx-h100 --nodes 2 --json
    nccl-tuner diagnose folder-of-one-job --redact
    nccl-tuner diagnose .venv
    nccl-tuner diagnose node.xml -o repaired.xml
    nccl-tuner diagnose skeleton.xml --gpu h100-sxm --nic-gbps 400 --machine azure-nd-h100-v5
    """
    from tuner.jobs.diagnosis.diagnose import diagnose
    from tuner.jobs.diagnosis.records import DiagnosisOptions

    asked = DiagnosisOptions(machine, nodes, nccl, gpu, net_gbps, net_latency_us)
    if picture is not None:
        ready_to_save(picture)
    total = sum(file.stat().st_size for file in files if file.is_file())
    if total >= LONG_BYTES and sys.stderr.isatty():
        bar: Any = click.progressbar(length=total, label="reading", file=sys.stderr)
        with bar:
            found = diagnose(files, asked, bar.update)
    else:  # a browser has no terminal, whose modules a hidden bar would load all the same
        found = diagnose(files, asked)
    worst = found[0].severity
    examined = found[0].examined if len(found) == 1 else None
    if out is not None:
        if examined is None:
            raise BadInput("--out writes a repaired topology: give a single FILE that is a topology, or remove --out")
        write_text(out, examined.topology)
    if picture is not None:
        _draw(found, picture)
    with _redacted(found) if redact else nullcontext():
        _report(found, examined, out)
    ctx.exit(EXIT_CODES.get(worst, 0))


def _report(found: Sequence["FileDiagnosis"], examined: "Examination | None", out: Path | None) -> None:
    if json_wanted():
        print_json({"severity": found[0].severity, "files": [_as_json(each) for each in found]})
    elif examined is not None:
        _print_examined(examined)
        if out is not None:
            click.echo(f"wrote {out}; NCCL reads it with NCCL_TOPO_FILE={out}")
    else:
        for place, each in enumerate(found):
            verdict_of, *others = each.findings
            start = f"{VERDICTS[each.severity]}: "
            say(verdict(_filled(start + explained(verdict_of).says, 2), GOOD.get(each.severity)))
            _print_parts_of(verdict_of)
            beside = f" and {plural(len(each.other_files), 'other file')} of the job" if each.other_files else ""
            paragraph(f"  {each.file}{beside}: {each.kind}", 4)
            for finding in others[:MOST_FINDINGS]:
                paragraph(f"  {explained(finding).says}", 4)
                _print_parts_of(finding)
            if len(others) > MOST_FINDINGS:
                paragraph(f"  and {len(others) - MOST_FINDINGS} more (--json has all)", 4)
            if (more := _command(each)) is not None:
                paragraph(f"  more: {more}", 4)
            if place < len(found) - 1:
                click.echo("")


def _draw(found: Sequence["FileDiagnosis"], file: Path) -> None:
    """Draws the one file that can be drawn: results or a topology. BadInput unless there is exactly one."""
    from tuner.answers.charts import judged, save

    drawn = [each for each in found if each.accepted is not None or (each.examined is not None and each.examined.sizes)]
    if len(drawn) != 1:
        raise BadInput(
            f"--plot {file}: exactly one file that can be drawn is needed, not {len(drawn)}: give one file of results "
            "(with --machine NAME if it does not name the machine), or one topology that NCCL can use"
        )
    (one,) = drawn
    if one.accepted is not None:
        save(judged.of_acceptance(one.accepted), file)
    elif (seen := one.examined) is not None:
        where = f"{plural(seen.nodes, 'node')}, NCCL {seen.nccl}; repaired: {plural(len(seen.changes), 'change')}"
        save(judged.repaired(seen.sizes, f"AllReduce on {one.file}", where), file)


@contextmanager
def _redacted(found: Sequence["FileDiagnosis"]) -> Iterator[None]:
    """Removes private names from everything that is printed inside the block."""
    from tuner.jobs.diagnosis.redact import Redactor

    printed = io.StringIO()
    with redirect_stdout(printed):
        yield
    files = (file for each in found for file in (each.file, *each.other_files))
    names = Redactor((host for each in found for host in each.hosts), files)
    click.echo(names(printed.getvalue()), nl=False)


def _print_parts_of(finding: Finding) -> None:
    """Prints a finding's cause, its cost and what to do, each on its own line."""
    said = explained(finding)
    for head, text in (("because", said.cause), ("costs", said.costs), ("do", said.do)):
        if text:
            paragraph(f"  {head}: {text}", 4)


def _as_json(each: "FileDiagnosis") -> dict[str, Any]:
    return {**to_json(each), "severity": each.severity, "command": _command(each)}


def _command(each: "FileDiagnosis") -> str | None:
    """The command that shows more, with the options that the finding asks for; None if there is no such command."""
    words, wants_machine = COMMANDS[each.kind]
    if not words:
        return None
    if each.findings[0].code == "diagnose.incomplete_topology":
        speed = " --nic-gbps 400" if each.findings[0].facts["adapters"] else ""
        return f"nccl-tuner machines {shlex.quote(each.file)} --gpu MODEL{speed} -o complete.xml"
    file = Path(each.file)
    of_folder = words in (COMMANDS["preflight records"][0], COMMANDS["files of a job's ranks"][0])
    command = f"nccl-tuner {words} {shlex.quote(str(file.parent if of_folder and not file.is_dir() else file))}"
    if not wants_machine:
        return command
    known = {"--machine": each.machine or "NAME", "--nodes": each.nodes, "--nccl": each.nccl}
    return command + "".join(f" {option} {value}" for option, value in known.items() if value is not None)


def _print_examined(seen: "Examination") -> None:
    from tuner.answers.doctor.records import KINDS, WRONG

    near = seen.nearness
    severities = Counter(finding.severity for finding in seen.findings)
    found = ", ".join(f"{count} {severity}" for severity, count in severities.items())
    kinds = ", ".join(dict.fromkeys(each.kind for each in seen.findings if each.severity == WRONG))
    say(
        verdict(
            f"found: {found}{f' ({kinds})' if kinds else ''}" if found else "nothing is wrong", not severities[WRONG]
        )
    )
    paragraph(
        f"{seen.file}: each part is compared with what such a part can do, as no machine of the catalogue has "
        "this number of such GPUs"
        if near is None
        else f"{seen.file}: compared with {near.in_words}; the file does not say: "
        f"{', '.join(near.unknown) or 'nothing'}"
    )
    for place, finding in enumerate(seen.findings, start=1):
        click.echo("")
        _print_finding(place, finding, seen)
    click.echo("")
    if not seen.findings:
        paragraph(f"looked for: {', '.join(KINDS)}")
    if seen.not_priced:
        paragraph(f"what the faults cost is not known: {seen.not_priced}")
    if seen.sizes:
        _print_sizes(seen)
    if seen.changes and seen.left:
        paragraph(
            f"findings that remain after the repair: {', '.join(dict.fromkeys(finding.kind for finding in seen.left))}"
        )


def _print_finding(number: int, finding: "TopologyFinding", seen: "Examination") -> None:
    whole = seen.sizes[-1].busbw_gbs_after if seen.sizes else None
    severity = finding.severity if finding.unlike is None else f"{finding.severity} {finding.unlike}"
    paragraph(f"{number}. {severity}: {finding.kind}. {finding.says}", 3)
    if finding.changes:
        shown = " ".join(finding.changes[:MOST_CHANGES])
        more = len(finding.changes) - MOST_CHANGES
        what = "repair" if finding.unlike is None else "to be like it"
        paragraph(f"   {what}: {shown}{f' and {more} more (--json)' if more > 0 else ''}", 11)
        if finding.busbw_gbs_left is not None and whole is not None:
            size, left = human_bytes(seen.sizes[-1].bytes), f"{finding.busbw_gbs_left:.1f} GB/s busbw"
            same = f"{finding.busbw_gbs_left:.1f}" == f"{whole:.1f}"
            costs = f"AllReduce of {size} reaches {left} instead of {whole:.1f} if everything else is repaired"
            costs = "nothing by itself, by NCCL's own prediction" if same else costs
            paragraph(f"   costs on {plural(seen.nodes, 'node')}: {costs}", 10)
    if finding.do != "nothing":
        paragraph(f"   on the machine: {finding.do}", 19)


def _print_sizes(seen: "Examination") -> None:
    rows = [
        (
            human_bytes(one.bytes),
            f"{one.before.name} x{one.before.channels}",
            f"{one.after.name} x{one.after.channels}",
            number(one.busbw_gbs_before, 3),
            number(one.busbw_gbs_after, 3),
        )
        for one in seen.sizes
    ]
    columns = ("size", "pick now", "pick repaired", "busbw GB/s now", "busbw GB/s repaired")
    where = f"{plural(seen.nodes, 'node')}, NCCL {seen.nccl}"
    print_table(f"AllReduce on {where}, by NCCL's own prediction; x channels", columns, rows)


def paragraph(text: str, indent: int = 0) -> None:
    """Prints a paragraph that is not wider than the terminal; long changes are not broken."""
    click.echo(_filled(text, indent))


def _filled(text: str, indent: int) -> str:
    width, after = min(width_to_fit(), WIDTH), " " * indent
    return textwrap.fill(text, width, subsequent_indent=after, break_long_words=False, break_on_hyphens=False)
