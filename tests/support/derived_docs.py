"""Parts of the documentation that are derived from tables: `make docs` writes them between their marks."""

import ast
import inspect
import itertools
import json
import re
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import mean, median
from typing import Any

import click

from tests.scripts import write_accuracy
from tests.support import json_schemas, measured_regret, recorded
from tuner import cli, release
from tuner.api import scenario
from tuner.base.names import Collective, DataType, Op
from tuner.cli.command import is_example
from tuner.emulator.aws_ofi_nccl import release as aws_ofi_nccl
from tuner.emulator.request import Request
from tuner.emulator.selection import Selection
from tuner.machine import catalogue
from tuner.oracle.conformance.check import KINDS
from tuner.times.timemodel.intervals import CarriedOver

ROOT = Path(__file__).parents[2]
_COVERED = (0.85, 0.95)  # what 90 % intervals should hold of each split


def written_into(text: str, page: Path) -> str:
    """The page's text with every part between ``<!-- NAME: written by make docs -->`` and ``<!-- end of NAME -->``."""

    def part(match: re.Match[str]) -> str:
        if match[2] not in PARTS:
            raise SystemExit(f"{page}: nothing writes {match[2]!r}; valid: {', '.join(PARTS)}")
        return f"{match[1]}\n{PARTS[match[2]]()}{match[4]}"

    return re.sub(r"(<!-- (\w+): written by make docs -->)\n(.*?)(<!-- end of \2 -->)", part, text, flags=re.S)


def proven() -> str:
    """One sentence: what the last `make test-releases` compared."""
    found = recorded.read("releases").values()
    cells, picks, communicators = (
        sum(row["cells"]["compared"] for row in found),
        sum(row["picks"]["compared"] for row in found),
        sum(row["communicators"] for row in found),
    )
    compared, matched = (sum(_counted(row, what) for row in found) for what in ("compared", "matched"))
    return (
        f"**{len(found)} releases, {communicators:,} communicators, {cells:,} cost cells, {picks:,} picks: "
        f"{share(matched, compared)} the same.**\n"
    )


def _counted(row: dict[str, Any], what: str) -> int:
    """Of all kinds; one that was not compared yet when the row was written has no numbers."""
    return sum(row[kind][what] for kind in KINDS if kind in row)


def by_release() -> str:
    """What was compared, by minor release, and how much of it matched."""
    lines = [
        "| NCCL | communicators | graphs, rings, trees | cost cells | picks, channels, threads |",
        "|---|--:|--:|--:|--:|",
    ]
    rows = recorded.read("releases")
    for _, several in itertools.groupby(rows.items(), key=lambda item: item[0].rpartition(".")[0]):
        same = dict(several)
        counts = [sum(row["communicators"] for row in same.values())]
        counts += [sum(row[kind]["compared"] for row in same.values()) for kind in ("graphs", "cells", "picks")]
        lines.append(f"| {' | '.join((', '.join(same), *(f'{count:,}' for count in counts)))} |")
    compared, matched = (sum(_counted(row, what) for row in rows.values()) for what in ("compared", "matched"))
    return "\n".join([*lines, "", f"Of all of it {share(matched, compared)} matched."]) + "\n"


def by_build() -> str:
    """What the last `make test-releases` compared of libnccl for CUDA 13."""
    rows = recorded.read("builds")
    compared, same = (sum(row[key] for row in rows.values()) for key in ("compared", "same"))
    first, *_, last = rows
    return f"{len(rows)} releases, {first} to {last}: {compared:,} values compared, {share(same, compared)} the same.\n"


def by_arm() -> str:
    """Differences of libnccl for aarch64 from that for x86-64."""
    rows = recorded.read("arm")
    said = []
    for what in ("constants", "variables", "picks", "latencies", "times"):
        compared, different = (sum(row[key] for row in rows.values()) for key in (what, f"{what}_different"))
        said.append(f"{different:,} of {compared:,} {what}")
    first, *_, last = rows
    return f"In {len(rows)} releases, {first} to {last}, these differ: {', '.join(said)}.\n"


def by_random() -> str:
    """Random topologies of all releases, and each one that is not equal."""
    rows = list(recorded.read("random").values())
    compared, equal, refused = (sum(row[key] for row in rows) for key in ("compared", "equal", "refused_by_both"))
    listed = [f"{each['seed']} of {each['release']}" for row in rows for each in row.get("differs", [])]
    not_equal = f"; not so {', '.join(listed)} (`docs/random.toml` says how)" if listed else ""
    return f"{equal:,} of {compared:,} topologies have the same graphs{not_equal}; {refused} are refused by both.\n"


def share(matched: int, compared: int) -> str:
    """Per cent, rounded down: 100 only where all of them match."""
    hundredths = matched * 10_000 // compared
    return "100 %" if matched == compared else f"{hundredths // 100}.{hundredths % 100:02} %"


def changes() -> str:
    """How much each release changed since the one before, newest first: kinds of rules, and machines' graphs."""
    names = release.names()
    found = {after: _changed(before, after) for before, after in reversed(list(itertools.pairwise(names)))}
    alike = [name for name, (rules, graphs, _) in found.items() if not rules and not graphs]
    lines = [
        f"| {name} | {rules} | {graphs} of {known} |"
        for name, (rules, graphs, known) in found.items()
        if rules or graphs
    ]
    head = ["| NCCL | kinds of rules | machines with other graphs |", "|---|--:|--:|"]
    return "\n".join([*head, *lines, "", f"No rule and no graph changed in: {', '.join(alike)}."]) + "\n"


def _changed(before: str, after: str) -> tuple[int, int, int]:
    """Numbers of kinds of rules that differ, of machines with other graphs, and of machines that both releases know."""
    found = [each.key for each in release.differences(release.load(before), release.load(after))]
    known = [name for name in catalogue.names() if {before, after} <= set(catalogue.load(name).releases)]
    different = [name for name in known if _found_differently(catalogue.load(name), before, after)]
    return len({key.split(".")[1] for key in found if key.startswith("rules.")}), len(different), len(known)


def _found_differently(machine: catalogue.Machine, before: str, after: str) -> bool:
    """Whether libnccl finds another graph on any number of GPUs, among the graphs that both releases have."""
    for gpus, several in itertools.product(machine.gpu_counts, (False, True) if machine.topology.nets else (False,)):
        old, new = (machine.graph_table.graphs.get((name, gpus, several), {}) for name in (before, after))
        if any(old[name] != new[name] for name in old.keys() & new.keys()):
            return True
    return False


def floors() -> str:
    """The packages by floor, the highest first, as ``lint-imports`` holds them, each with what it does."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]["contracts"]
    (layers,) = (contract["layers"] for contract in contracts if contract["name"] == "floors")
    lines = []
    for number, layer in zip(range(len(layers), 0, -1), layers, strict=True):
        lines += [f"* {number} `tuner.{name}`: {_summary(name)}" for name in layer.split(" | ")]
    return "\n".join(lines) + "\n"


def _summary(name: str) -> str:
    """The first paragraph of a package's or module's docstring."""
    package = ROOT / "tuner" / name / "__init__.py"
    file = package if package.is_file() else ROOT / "tuner" / f"{name}.py"
    said = ast.get_docstring(ast.parse(file.read_text("utf-8"))) or ""
    return " ".join(said.split("\n\n")[0].split()).replace("``", "`")


def commands() -> str:
    """All commands by section of the help, with their arguments and an example; each leads to the page about it."""
    parts = []
    for heading, verbs in cli.SECTIONS.items():
        lines, examples = [f"### {heading}", ""], list[str]()
        for verb in verbs:
            for usage, says, command in _usages(verb):
                lines += [f"* [`{usage}`]({_page_about(verb)}): {says}"]
                examples += examples_of(command)[:1]
        parts.append("\n".join([*lines, "", "```sh", *examples, "```"]) + "\n")
    return "\n".join(parts)


def examples_of(command: click.Command) -> list[str]:
    """The examples of a command's own help, each in a line, without what is said beside it."""
    lines = re.sub(r"\\\n\s*", "", inspect.cleandoc(command.help or "")).splitlines()
    return [re.sub(r"  +#.*", "", line) for line in lines if is_example(line)]


def _usages(verb: str) -> Iterator[tuple[str, str, click.Command]]:
    """How a verb and the commands below it are called, and what they answer; those of ``cost`` are on its own page."""
    context = click.Context(cli.everything, info_name="nccl-tuner")
    command = cli.everything.get_command(context, verb)
    assert command is not None
    yield _usage(command, click.Context(command, context, verb)), cli.VERBS[verb], command
    if isinstance(command, click.Group) and verb != "cost":
        below = click.Context(command, context, verb)
        lazy: dict[str, str] = getattr(command, "verbs", {})
        for name in command.list_commands(below):
            each = command.get_command(below, name)
            assert each is not None
            says = lazy.get(name) or each.get_short_help_str(200).removesuffix(".")
            yield _usage(each, click.Context(each, below, name)), says[0].lower() + says[1:], each


def llms() -> str:
    """The text of docs/llms.txt: the pages and the commands for programs that read, as llmstxt.org has it.

    Links are those of the site, in whose root it stands.
    """
    index = (ROOT / "docs" / "README.md").read_text("utf-8")
    title, about, *_ = index.removeprefix("# ").split("\n\n")
    lines = [f"# nccl-tuner: {title}", "", f"> {' '.join(about.split())}", ""]
    lines += [
        "Agents call the commands as tools: `nccl-tuner mcp` (mcp.html). Every command that answers has `--json`, one"
    ]
    lines += ["object with a version (json.html; a schema for each command in schemas/)."]
    for heading, part in re.findall(r"^## (.*?)\n\n(.*?)(?=\n## |\Z)", index, re.M | re.S):
        rows = re.findall(r"^\* \[(.*?)\]\((?!\.\./)(.*?)\): (.*?)(?=\n\*|\n\n|\Z)", part, re.M | re.S)
        lines += ["", f"## {heading}", ""]
        lines += [f"- [{name}]({to.replace('.md', '.html')}): {' '.join(says.split())}" for name, to, says in rows]
    lines += ["", "## Commands", ""]
    for verb in cli.VERBS:
        for usage, says, command in _usages(verb):
            example = next(iter(examples_of(command)), None)
            lines.append(f"- `nccl-tuner {usage}`: {says}" + (f"; such as `{example}`" if example else ""))
    return "\n".join(lines) + "\n"


def _usage(command: click.Command, context: click.Context) -> str:
    pieces = [piece for piece in command.collect_usage_pieces(context) if piece != "[OPTIONS]"]
    if isinstance(command, click.Group):
        pieces = [] if command.invoke_without_command else ["..."]
    return " ".join([context.command_path.removeprefix("nccl-tuner "), *pieces])


def _page_about(verb: str) -> str:
    """The page whose line in docs/README.md names the verb."""
    for line in (ROOT / "docs" / "README.md").read_text("utf-8").splitlines():
        if f"`{verb}`" in line and (page := re.match(r"[|*] \[[^\]]+\]\(([^)]+)\)", line)):
            return page[1]
    raise SystemExit(f"docs/README.md: no page says that it is about `{verb}`")


def schemas() -> str:
    """The schema of each command's ``--json``."""
    named = (f"[`{name}`](schemas/{json_schemas.file_name(name)})" for name in json_schemas.command_answers())
    return f"{', '.join(named)}.\n"


def aliases() -> str:
    """Other names of each machine."""
    names: dict[str, list[str]] = {}
    for row in catalogue.aliases().values():
        names.setdefault(row.machine, []).append(f"`{row.name}`")
    return "\n".join(f"* `{machine}`: {', '.join(others)}" for machine, others in names.items()) + "\n"


def missing_machines() -> str:
    """Machines that are not in the catalogue."""
    names: dict[tuple[str, ...], list[str]] = {}
    for row in catalogue.missing().values():
        names.setdefault(tuple(row.instead), []).append(f"`{row.name}`")
    lines = [f"* {', '.join(of)}: near {', '.join(f'`{each}`' for each in near)}" for near, of in names.items()]
    return "\n".join(lines) + "\n"


def accuracy() -> str:
    """Mean errors by group of splits, and what the intervals of the time model cover."""
    kept = write_accuracy.read()
    lines = ["| carried over to | time model | NCCL's model | the best other | covered | half-width |"]
    lines += ["|---|--:|--:|--:|--:|--:|"]
    for group, row in kept["summary"].items():
        own = [each for each in kept["splits"] if each["group"] == group]
        intervals = [sum(each[key] for each in own) / len(own) for key in ("coverage", "half_width")]
        ours, nccl, *others = row.values()
        best = min((each for each in others if each is not None), default=None)
        lines += [f"| {_group(group)} | {' | '.join(map(_percent, (ours, nccl, best, *intervals)))} |"]
    return "\n".join(lines) + "\n"


def coverage() -> str:
    """How many splits the intervals are right on, how many could be, and what was tried on one machine alone."""
    kept = write_accuracy.read()["splits"]
    inside = sum(_COVERED[0] <= each["coverage"] <= _COVERED[1] for each in kept)
    narrow = sum(each["half_width"] <= 3 * each["errors"]["time model"] for each in kept)
    machines: dict[str, set[str]] = {}
    for each in kept:
        kind = each["kind"]
        if kind == "collective" and "several" in each["group"]:
            kind = "network_collective"
        machines.setdefault(kind, set()).add(each["machine"])
    alone = "; ".join(_group(kind) for kind, several in machines.items() if len(several) == 1)
    return f"""\
{inside} of {len(kept)} splits have between 85 and 95 % of their times in the interval, and {narrow} have a mean
half-width of at most three times their mean error. Held out on one machine alone, so that no other machine taught the
interval: {alone}.
"""


def updates() -> str:
    """Tables of sites that nothing was learnt from: errors and intervals, given no row, one and four."""
    kept = write_accuracy.read()["updates"]
    given = sorted({each["given"] for each in kept})
    healthy = [each for each in kept if not each["known_slow"]]
    slow = len({each["table"] for each in kept}) - len({each["table"] for each in healthy})

    def medians(name: str) -> str:
        """Medians over the healthy tables, by the rows given."""
        of_given = (
            [each[name] for each in healthy if each["given"] == key and each[name] is not None] for key in given
        )
        return ", ".join(_percent(float(median(values))) for values in of_given)

    shares = [mean(each["coverage"] for each in healthy if each["given"] == key) for key in given]
    wide = ", ".join(
        f"{1 + median(each['half_width'] for each in healthy if each['given'] == key):.1f}" for key in given
    )
    of_none = [each["nccl_error"] for each in healthy if each["given"] == 0]
    return f"""\
Of {len(of_none)} tables of healthy hardware between nodes, each predicted with its site left out whole, the median one
is {medians("error")} off on average when it is given {", ".join(map(str, given))} rows of the site
(from 16 MiB on {medians("large_error")}), where NCCL's own model is {_percent(float(median(of_none)))} off.
Their intervals, whose widths were learnt without the site, too, hold {", ".join(map(_percent, shares))} of
a table on average, and end at {wide} times the time in the median table. {slow} tables of slow or unknown
hardware are judged, and teach nothing.
"""


def sites_left_out() -> str:
    """Errors and intervals of tables between nodes whose site is left out, beside NCCL's and that with one factor."""
    kept = json.loads((ROOT / "tables" / "sites.json").read_text("utf-8"))["summary"]
    named = {
        "healthy": "all healthy ones",
        "unfitted": "never fitted to",
        "healthy, with instance types": "all, with other clusters of their instance type",
    }
    rows = {"0 none": "none", "1 random": "1, at random", "1 chosen": "1, chosen", "4 random": "4, at random"}
    rows["4 chosen"] = "4, chosen"
    lines = [
        "| tables | rows given | calibrated | NCCL's | with one factor | in the interval | it ends at, from 256 MiB |"
    ]
    lines += ["|---|---|--:|--:|--:|--:|--:|"]
    for group, words in named.items():
        for given, shown in rows.items():
            each = kept[group][given]
            errors = [
                f"{_percent(each[name])}, {_percent(each[f'large_{name}'])}" for name in ("error", "nccl", "one_factor")
            ]
            ends = f"{each['huge_upper']:.2f}"
            cells = [f"{words} ({each['tables']})", shown, *errors, _percent(each["mean_inside"]), f"x {ends}"]
            lines += [f"| {' | '.join(cells)} |"]
    return "\n".join(lines) + "\n"


def accept_public() -> str:
    """Public runs that are accepted or not."""
    return _accepted_runs("public")


def accept_unseen() -> str:
    """Public runs between nodes, each judged by the runs of all other sites: by class, with false alarms and misses."""
    kinds: dict[str, list[dict[str, Any]]] = {}
    for each in _acceptance()["unseen"]:
        if each["health"] == "healthy":
            of = f"{each['nodes']} x {each['gpus_per_node']} {each['gpu']}, {each['collective']}"
            kinds.setdefault(of if each["of_class"] >= 3 else "classes of fewer than three", []).append(each)
    lines = ["| class | runs | pass | cannot be judged | fail | at half speed: fail | cannot be judged | pass |"]
    lines += ["|---|--:|--:|--:|--:|--:|--:|--:|"]
    for of, runs in [*sorted(kinds.items()), ("all", list(itertools.chain(*kinds.values())))]:
        counts = [sum(each["said"] == said for each in runs) for said in ("passed", "left_open", "failed")]
        counts += [sum(each["half"] == said for each in runs) for said in ("failed", "left_open", "passed")]
        lines.append(f"| {of} | {len(runs)} | {' | '.join(map(str, counts))} |")
    faulty = [each for each in _acceptance()["unseen"] if each["health"] == "degraded"]
    failed = sum(each["said"] == "failed" for each in faulty)
    return "\n".join([*lines, "", f"Of {len(faulty)} runs that are known to be degraded {failed} fail."]) + "\n"


def _accepted_runs(key: str) -> str:
    lines = ["| runs | | pass | cannot be judged | fail | named so |", "|---|--:|--:|--:|--:|--:|"]
    for each in _acceptance()[key]:
        named = each["named"] or "-"
        several = sum(each[said] for said in ("passed", "left_open", "failed"))
        counts = " | ".join(str(each[said]) for said in ("passed", "left_open", "failed"))
        lines += [f"| {each['what']} | {several} | {counts} | {named} |"]
    return "\n".join(lines) + "\n"


def accept_splits() -> str:
    """Healthy curves that a calibration was not fitted to, in a sentence."""
    kinds = _acceptance()["splits"]
    curves, failed = (sum(each[key] for each in kinds) for key in ("curves", "failed"))
    worst = "; ".join(
        f"{_words(each['kind'])}: {each['failed']} of {each['curves']}" for each in kinds if each["failed"]
    )
    return f"Of {curves} healthy curves {failed} fail ({_percent(failed / curves)}): {worst or 'none'}.\n"


def accept_planted() -> str:
    """Planted faults: what passes, and what is named, of all runs of the communicators that each was planted on."""
    lines = ["| planted | on communicators | false pass | the most on one | right first | among those named |"]
    lines += ["|---|--:|--:|--:|--:|--:|"]
    kept = sorted(_acceptance()["planted"], key=lambda each: str(each["planted"]))
    for fault, group in itertools.groupby(kept, key=lambda each: each["planted"]):
        own = list(group)
        runs, failed, first, among = (sum(each[key] for each in own) for key in ("runs", "failed", "first", "among"))
        if fault == "nothing":
            healthy = f"With nothing planted {_percent(failed / runs)} of {runs} runs fail falsely."
            continue
        # Files that were kept before sizes could be left open have no count of these.
        passed = [each["runs"] - each["failed"] - each.get("left_open", 0) for each in own]
        most = max(one / each["runs"] for one, each in zip(passed, own, strict=True))
        shares = (sum(passed) / runs, most, *(named / failed if failed else None for named in (first, among)))
        lines += [f"| {fault} | {len(own)} | {' | '.join(map(_whole_percent, shares))} |"]
    return "\n".join([healthy, "", *lines]) + "\n"


def _acceptance() -> dict[str, list[dict[str, Any]]]:
    """What ``make acceptance`` kept."""
    kept: dict[str, list[dict[str, Any]]] = json.loads((ROOT / "docs" / "acceptance.json").read_text("utf-8"))
    return kept


def _whole_percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.0f} %"


def images() -> str:
    """AWS's images and installers with their releases of aws-ofi-nccl, newest first."""
    shipped = sorted((*aws_ofi_nccl.images(), *aws_ofi_nccl.installers()), key=lambda each: each.since, reverse=True)
    rows = [f"| {each.since} | {each.name} | {each.efa} | {each.release} |" for each in shipped]
    return "\n".join(["| since | image | EFA installer | aws-ofi-nccl |", "|---|---|---|---|", *rows]) + "\n"


def tuned() -> str:
    """How often aws-ofi-nccl's tuner picks something else than NCCL, by machine, ranks per node and collective."""
    calls = Collective.AllReduce, Collective.AllGather, Collective.ReduceScatter
    sizes = [size for power in range(3, 35) for size in (1 << power, 3 << power - 1)][:63]
    rows = []
    for machine in ("aws-p5-rdma", "aws-p5en", "aws-p6-b200", "aws-p6-b300"):
        for ranks in (8, 1):
            other = dict.fromkeys(calls, 0)
            for nodes in (3, 4, 8, 16, 32, 64):
                described = scenario(
                    machine, nodes=nodes, gpus_per_node=ranks, nccl="2.28.9", tuner="aws-ofi-nccl=1.21.1"
                )
                selection = Selection(described.communicator())
                for collective in calls:
                    request = Request(collective, DataType.float32, Op.sum)
                    with_tuner, alone = selection.pick(request, sizes), selection.alone.pick(request, sizes)
                    other[collective] += int((with_tuner.combinations != alone.combinations).sum())
            of = " | ".join(f"{other[each] / (6 * len(sizes)):.0%}".replace("%", " %") for each in calls)
            rows.append(f"| {machine} | {ranks} | {of} |")
    head = ["| machine | ranks a node | AllReduce | AllGather | ReduceScatter |", "|---|--:|--:|--:|--:|"]
    return "\n".join([*head, *rows]) + "\n"


def _group(name: str) -> str:
    kind, several, _ = name.partition(", several nodes")
    return f"{_words(kind)}{several}"


def _words(kind: str) -> str:
    """What a split carries over; of those between nodes what of a site it holds out."""
    return _OF_SITES.get(kind) or CarriedOver[kind].value


_OF_SITES = {
    "first_nodes": "several nodes, where one was measured",
    "nodes_between": "nodes between those measured",
    "nodes_beyond": "more nodes than measured",
    "network_combination": "an algorithm and protocol not measured between nodes",
    "network_collective": "another collective between nodes",
}


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"


PARTS: dict[str, Callable[[], str]] = {
    "proven": proven,
    "releases": by_release,
    "builds": by_build,
    "arm": by_arm,
    "random": by_random,
    "changes": changes,
    "floors": floors,
    "commands": commands,
    "schemas": schemas,
    "aliases": aliases,
    "missing_machines": missing_machines,
    "regret": measured_regret.by_table,
    "regret_b200": measured_regret.b200,
    "regret_kinks": measured_regret.kinks_by_change,
    "regret_rows": measured_regret.b200_rows,
    "regret_sentence": measured_regret.sentence,
    "regret_splits": measured_regret.splits,
    "accuracy": accuracy,
    "images": images,
    "tuned": tuned,
    "coverage": coverage,
    "updates": updates,
    "sites_left_out": sites_left_out,
    "accept_public": accept_public,
    "accept_unseen": accept_unseen,
    "accept_splits": accept_splits,
    "accept_planted": accept_planted,
}
