"""``nccl-tuner plugin audit``: any tuner plugin, examined in the real libnccl on simulated GPUs."""

from pathlib import Path

import click

from tuner import release
from tuner.answers import audit
from tuner.base.errors import BadInput
from tuner.base.findings import Severity, explained
from tuner.base.names import Collective
from tuner.base.view import percent, plain
from tuner.cli import options
from tuner.cli.command import FILE
from tuner.cli.output import human_bytes, number, plural, print_table, progress, say, shown_as_json, verdict

MACHINE = "dgx-h100"
NODES = (1, 2)
MOST_SHOWN = 12  # changed calls


@click.command(name="audit", cls=options.Command)
@click.argument("file", metavar="LIB.so", type=FILE)
@options.collectives_argument
@options.communicator_options(
    several_releases="NCCL release; repeatable. [default: for each way in which releases ask a tuner, the newest that "
    "is installed or cached here]"
)
@options.option(
    "--nodes",
    f"Numbers of nodes to try. [default: {','.join(map(str, NODES))}]",
    type=options.NUMBERS,
    metavar="N[,N...]",
)
@options.sizes_option(
    "Sizes to ask about, as NCCL's nBytes. [default: 1 KiB to 1 GiB, each four times the previous one]"
)
@options.timeout_option
@options.json_option
def audit_command(
    file: Path,
    collectives: tuple[Collective, ...],
    nodes: list[int] | None,
    sizes: list[int] | None,
    timeout_s: float,
    communicator: options.CommunicatorOptions,
) -> None:
    """Examines any tuner plugin: LIB.so runs in the real libnccl on simulated GPUs, in separate processes.

    It says which choices the tuner changes, and what that costs by NCCL's own times; whether it writes negative times,
    NaN, ties, cells that NCCL excludes, or outside the table; whether its answer depends on the rank, the clock,
    earlier questions or the process, so that ranks could choose differently; what its errors do to init and to a call;
    how long a question takes and how often it is asked; and through which interface each release asks it, and what
    changes from one release to the next. Calls are float32 sums of each collective (default: all five). The tuner
    inherits the environment for its own variables; --env is for NCCL's.

    Exit code 1 if a finding is more than a note, 3 if none of the releases can load LIB.so as a tuner.

    \b
    nccl-tuner plugin audit ./libnccl-tuner-mine.so --machine dgx-h100
    nccl-tuner plugin audit ./libnccl-tuner-mine.so allreduce --nodes 4 --nccl 2.27.7 --nccl 2.32.3 --json
    nccl-tuner plugin audit $(nccl-tuner plugin path) --env NCCL_TUNER_TABLE=$PWD/pod.table
    """
    asked = communicator if communicator.says_where else communicator.but(machine=MACHINE)
    names = [each for given in asked["nccl"] or () for each in given.split(",")]
    if asked["log"]:
        raise BadInput("--log describes a single communicator: use --machine or --topology, and --nodes")
    order = {name: at for at, name in enumerate(release.names())}
    releases = sorted(dict.fromkeys(names or audit.by_default()), key=lambda name: order.get(name, len(order)))
    counts = [None] if asked["node"] else nodes or NODES
    scenarios = [asked.scenario(nccl=nccl, nodes=count) for count in counts for nccl in releases]
    made = audit.audit(
        file,
        scenarios,
        tuple(dict.fromkeys(collectives or Collective)),
        sizes or audit.SIZES,
        timeout_s,
        lambda scenario: progress(scenario.title),
    )
    if not shown_as_json(made):
        _print(made)
    if not made.asked:
        raise SystemExit(3)
    if not made.sound:
        raise SystemExit(1)


def _print(made: audit.Audit) -> None:
    bad = [each for each in made.findings if each.severity is not Severity.NOTE]
    shapes = plural(len({(run.nodes, run.ranks) for run in made.runs}), "shape")
    over = f"{plural(len({run.nccl for run in made.runs}), 'release')}, {shapes}"
    if not made.asked:
        say(verdict(f"{made.library}: cannot be judged: NCCL does not load it as a tuner on any of {over}", None))
    elif bad:
        say(verdict(f"{made.library}: {plural(len(bad), 'finding')} over {over}", False))
    else:
        say(verdict(f"{made.library}: nothing wrong found over {over}", True))
    for each in made.findings:
        words = explained(each)
        say(f"{each.severity}: {words.says}")
        for part in (words.cause, words.costs):
            if part is not None:
                say(f"  {part}")
        if words.do is not None:
            say(f"  do: {words.do}")
    print_table("", COLUMNS, [_row(run) for run in made.runs], spare=("new", "questions"))
    last = next((run for run in reversed(made.runs) if run.changes), None)
    if last is not None:
        title = f"calls that the tuner changes, {last.place}"
        shown = [_changed(each) for each in last.changes[:MOST_SHOWN]]
        print_table(title, ("collective", "size", "NCCL alone", "with it", "by NCCL's times"), shown)
        if len(last.changes) > MOST_SHOWN:
            click.echo(f" ... and {len(last.changes) - MOST_SHOWN} more; --json has all of every release")


COLUMNS = ("NCCL", "nodes", "ranks", "interface", "calls", "changed", "slower by", "new", "questions", "query us")


def _row(run: audit.AuditedRun) -> tuple[object, ...]:
    if run.interface is None:
        return run.nccl, run.nodes, run.ranks, "not taken", *(6 * ("-",))
    slower = max((each.percent for each in run.changes if each.percent is not None), default=None)
    asked = "-"
    if run.least_questions is not None and run.most_questions is not None:
        asked = "-".join(map(str, dict.fromkeys((run.least_questions, run.most_questions))))
    return (
        run.nccl,
        run.nodes,
        run.ranks,
        f"v{run.interface}",
        run.calls,
        len(run.changes),
        percent(slower),
        plain(run.new_here),
        asked,
        number(run.query_us, 1),
    )


def _changed(each: audit.ChangedCall) -> tuple[object, ...]:
    alone, tuned = (f"{choice.name} x{choice.channels}" for choice in (each.own, each.tuned))
    by = "-" if each.percent is None else f"{each.percent:+.1f} %"
    return each.collective.name, human_bytes(each.bytes), alone, tuned, by
