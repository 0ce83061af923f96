"""``nccl-tuner diagnose``: what is wrong, from whatever files there are."""

import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tuner.base.records import to_json
from tuner.cli import options
from tuner.cli.command import FILE, with_options
from tuner.cli.communicator_options import release_option
from tuner.cli.machines import paragraph
from tuner.cli.output import print_json, verdict

if TYPE_CHECKING:
    from tuner.jobs.diagnosis import FileDiagnosis

COMMANDS = {  # by the kind of a file: what says more of it, and whether it wants what is known of the machine
    "topology": ("machines diagnose", False),
    "listing of a node": ("machines show --like", False),
    "log of NCCL": ("log", False),
    "graphs of NCCL": ("", False),
    "preflight records": ("preflight check", False),
    "results of nccl-tests": ("accept", True),
    "trace or counters of a job": ("check run", True),
    "decision table": ("plugin lint", False),
    "no kind that is known": ("", False),
}


@click.command(name="diagnose", cls=options.Command)
@click.argument("files", nargs=-1, required=True, type=FILE, metavar="FILE...")
@click.option("--machine", metavar="NAME", help="The machine, where no FILE shows it.")
@click.option("--nodes", type=click.IntRange(1, 1 << 20), help="Nodes, where no FILE says them.")
@release_option("Release, where no FILE says it.")
@options.json_option
@click.pass_context
def command(
    ctx: click.Context,
    files: tuple[Path, ...],
    machine: str | None,
    nodes: int | None,
    nccl: str | None,
    as_json: bool,
) -> None:
    """Says what is wrong, from FILEs of any kind, the gravest first; what one of them shows goes for the others.

    FILE is a log of NCCL, a topology that it dumped, what nccl-tests printed, what nvidia-smi topo or lstopo printed,
    a trace or counters of a job, or a folder of preflight records. Each finding names the command that shows more. Exit
    code 1 where something is wrong, else 3 where something cannot be judged, else 0. What is "unlike" is otherwise than
    usual, which may be meant: no fault.

    \b
    nccl-tuner diagnose nccl.log node.xml all_reduce.log
    nccl-tuner diagnose all_reduce.log --machine dgx-h100 --nodes 2 --json
    """
    from tuner.jobs.diagnosis import DiagnosisOptions, Severity, diagnose

    found = [_in_options(each) for each in diagnose(files, DiagnosisOptions(machine, nodes, nccl))]
    severities = {each.severity for each in found}
    worst = found[0].severity
    if as_json:
        print_json({"severity": worst, "files": [{**to_json(each), "command": _command(each)} for each in found]})
    else:
        for place, each in enumerate(found):
            good = {Severity.fault: False, Severity.sound: True}.get(each.severity)
            paragraph(verdict(f"{each.severity}: {each.finding}", good), 2)
            more = _command(each)
            for line in (f"{each.file}: {each.kind}", *each.evidence, *([f"more: {more}"] if more else [])):
                paragraph(f"  {line}", 4)
            if place < len(found) - 1:
                click.echo("")
    ctx.exit(1 if Severity.fault in severities else 3 if Severity.not_judged in severities else 0)


def _in_options(each: "FileDiagnosis") -> "FileDiagnosis":
    """The diagnosis with options for arguments; of a topology to complete, all of its GPUs' names are left out."""
    finding = each.finding
    if "`gpu`" in finding:
        finding = finding.partition("; valid: ")[0]
    evidence = tuple(map(with_options, each.evidence))
    return replace(each, finding=with_options(finding), evidence=evidence)


def _command(each: "FileDiagnosis") -> str | None:
    """The command that says more, None where there is none; one that takes the options that the finding asks for."""
    words, wants_machine = COMMANDS[each.kind]
    if not words:
        return None
    if each.kind == "topology" and "--gpu" in each.finding:
        speed = " --nic-gbps 400" if "--nic-gbps" in each.finding else ""
        return f"nccl-tuner machines complete {shlex.quote(each.file)} --gpu MODEL{speed} -o complete.xml"
    command = f"nccl-tuner {words} {shlex.quote(each.file)}"
    if not wants_machine:
        return command
    known = {"--machine": each.machine or "NAME", "--nodes": each.nodes, "--nccl": each.nccl}
    return command + "".join(f" {option} {value}" for option, value in known.items() if value is not None)
