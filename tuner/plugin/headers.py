"""The comments ``# gpus:``, ``# machine:`` and ``# nccl:``, which say what a table is for: their form, and whether they
apply.

The plugin itself checks ``gpus``, through NVML, and ``nccl``, through the library of its logger
(csrc/plugin/hardware.c): no version of NCCL's tuner interface names the machine.
"""

import re
from collections.abc import Iterator, Sequence

from tuner import release
from tuner.base.dataclass import dataclass
from tuner.base.errors import nearest_of
from tuner.base.sizes import plural
from tuner.machine import catalogue, gpus
from tuner.plugin.loading import interface
from tuner.plugin.table.records import ANY_BYTES, ANY_COUNT, Conditions, Table
from tuner.plugin.table.values import GPUS
from tuner.release import Release

ERROR, WARNING, NOTE = "error", "warning", "note"


@dataclass(frozen=True, slots=True)
class TableFinding:
    """A fault in one line of a table, with its severity."""

    line: int
    severity: str
    reason: str


MACHINE, NCCL = "machine", "nccl"
MOST_GPU_LETTERS = 127  # longest name that the plugin keeps (struct gpus, csrc/plugin/table.h)


def check(table: Table) -> list[TableFinding]:
    """Finds values that have the wrong form, or name something unknown."""
    return [*_gpus(table), *_machine(table), *_nccl(table)]


def check_release(table: Table, running: str) -> list[TableFinding]:
    """Finds whether the table is for other releases than this one."""
    named = _words(table, NCCL)
    if not named or running in named:
        return []
    return [_finding(table, NCCL, WARNING, f"the table is for NCCL {', '.join(named)}, not for {running}")]


def check_who_asks(table: Table, running: Release) -> list[TableFinding]:
    """Finds rows with conditions on ranks or nodes, if the release does not tell plugins these numbers."""
    if running.plugin is None or interface(running).says_who_asks:
        return []
    rows = [row for row in (*table.decisions, *table.costs) if _asks_who(row)]
    if not rows:
        return []
    ask = f"{plural(len(rows), 'row')} {'asks' if len(rows) == 1 else 'ask'} for ranks or nodes"
    reason = f"{ask}, which NCCL {running.name} does not say: its own choice there"
    return [TableFinding(rows[0].line, WARNING, reason)]


def _asks_who(row: Conditions) -> bool:
    counts = any(each != ANY_COUNT for each in (row.ranks, row.nodes, row.nvlink_domains))
    return counts or row.ranks_per_node is not None or row.bytes_per_rank != ANY_BYTES


def check_machine(table: Table, machine: str) -> list[TableFinding]:
    """Finds whether the table is for another machine of the catalogue, or for other GPUs."""
    findings = []
    here = catalogue.load(machine)
    named = _machines(table)
    if named and here.name not in named:
        findings.append(_finding(table, MACHINE, WARNING, f"the table is for {', '.join(named)}, not for {here.name}"))
    chip, listed = gpus.chip(here.gpu), _words(table, GPUS)
    if listed and not any(_alike(each, chip) for each in listed):
        reason = f"the table is for GPUs {', '.join(listed)}, and {here.name} has {chip}"
        findings.append(_finding(table, GPUS, WARNING, reason))
    return findings


def contains(text: str, words: str) -> bool:
    """Whether ``text`` contains ``words`` as whole words, in any case. The plugin compares names of GPUs like this."""
    return re.search(rf"(?<![0-9a-z]){re.escape(words)}(?![0-9a-z])", text, re.IGNORECASE | re.ASCII) is not None


def _alike(word: str, chip: str) -> bool:
    """Whether a name in the comment may be that of this GPU; only ``chip``, a part of its name in NVML, is known."""
    return contains(word, chip) or contains(chip, word)


def _gpus(table: Table) -> Iterator[TableFinding]:
    value = table.provenance.get(GPUS, "")
    if len(value) > MOST_GPU_LETTERS:
        yield _finding(table, GPUS, WARNING, f"{len(value)} letters, of which the plugin reads {MOST_GPU_LETTERS}")
    words = _words(table, GPUS)
    if "" in words:
        yield _finding(table, GPUS, WARNING, "an empty name between commas, which no GPU has")
    chips = _chips()
    for word in filter(None, words):
        if not any(_alike(word, chip) for chip in chips):
            reason = (
                f"'{word}' is the name of no GPU that is known here: NVML's name decides; {nearest_of(word, chips)}"
            )
            yield _finding(table, GPUS, NOTE, reason)


def _machine(table: Table) -> Iterator[TableFinding]:
    if MACHINE in table.provenance and not _machines(table):
        reason = "names no machine of the catalogue, so that nothing can be compared with it"
        yield _finding(table, MACHINE, NOTE, reason)


def _nccl(table: Table) -> Iterator[TableFinding]:
    known = release.names()
    for word in _words(table, NCCL):
        if word not in known:
            what = "no release that is known" if re.fullmatch(r"[0-9]+(\.[0-9]+)+", word) else "no release's number"
            reason = f"'{word}' is {what}; valid: such as {known[-1]}, several separated by commas"
            yield _finding(table, NCCL, WARNING, reason)


def _machines(table: Table) -> list[str]:
    """The catalogue names of the machines that the comment names; an alias is replaced by its machine's name."""
    aliases = {alias.lower(): row.machine for alias, row in catalogue.aliases().items()}
    known = {name: name for name in catalogue.names()} | aliases
    words = re.split(r"[^0-9A-Za-z._-]+", table.provenance.get(MACHINE, "").lower())
    return list(dict.fromkeys(known[word] for word in words if word in known))


def _chips() -> Sequence[str]:
    machines = (catalogue.load(name).gpu for name in catalogue.names())
    return list(dict.fromkeys(map(gpus.chip, (*gpus.names(), *machines))))


def _words(table: Table, key: str) -> list[str]:
    return [word.strip() for word in table.provenance[key].split(",")] if key in table.provenance else []


def _finding(table: Table, key: str, severity: str, reason: str) -> TableFinding:
    return TableFinding(table.provenance_lines.get(key, 1), severity, f"# {key}: {reason}")
