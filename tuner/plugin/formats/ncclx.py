"""Reads and writes configurations of NCCLX's built-in tuner, as CSV and as JSON.

All three versions of the format are read; the newest is written.

Source: comms/ncclx/meta/tuner of meta-pytorch/torchcomms: ee6c06d3d (ten columns by bytes), 27dda4a2f (by bytes per
rank), 6362ecc16 (eight columns).
"""

import json
import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from tuner.base.errors import BadTable, one_of
from tuner.base.expressions import expression
from tuner.base.nouns import Span
from tuner.plugin.formats import shared
from tuner.plugin.formats.shared import Place
from tuner.plugin.table import boxes
from tuner.plugin.table.records import ANY_BYTES, ANY_COUNT, ANY_PIPELINED, CHUNK_BYTES, LARGEST_COUNT, Decision, Table
from tuner.plugin.table.values import Mistake

_TEN = "collective,{size},algorithm,protocol,channels,nNodes,nLocalRanks,numPipeOps,regBuff,chunkSize"
NEWEST = "collective,bytesPerRank,algorithm,protocol,channels,nNodes,nLocalRanks,chunkSize"
VERSIONS = (NEWEST, _TEN.format(size="bytesPerRank"), _TEN.format(size="bytes"))
REQUIRED = 7
FILTER = ("collective", "bytes", "bytesPerRank", "nNodes", "nLocalRanks", "numPipeOps", "regBuff")
CONFIG = ("algorithm", "protocol", "channels", "chunkSize")
_INTERVAL = expression(r"([\[(])\s*(-?[0-9]{1,20})?\s*,\s*(-?[0-9]{1,20})?\s*([\])])")
_MOST = 2**63 - 1
_DEFAULTS = {"bytesPerRank": "*", "nNodes": "*", "nLocalRanks": "*", "channels": "-1", "chunkSize": "0"}


def read_csv(text: str, name: str) -> Table:
    """Reads rows with one choice each, which fall through (``tuner.plugin.formats.shared``)."""
    lines = [(number, split(line)) for number, line in shared.data_lines(text)]
    keys = _columns_of(text, lines, name)
    rows = []
    for number, fields in lines:
        with shared.at(f"{name}:{number}"):
            if not REQUIRED <= len(fields) <= len(keys):
                raise Mistake(f"{len(fields)} columns (valid: {REQUIRED} to {len(keys)}: {','.join(keys)})")
            rows.append(_row(dict(zip(keys, fields, strict=False)), number))
    return Table(tuple(rows))


def split(line: str) -> list[str]:
    """Splits a line into its columns; a comma within brackets belongs to an interval."""
    ends, depth = [-1], 0
    for at, letter in enumerate(line):
        if letter == "," and depth == 0:
            ends.append(at)
        depth = max(0, depth + (letter in "[(") - (letter in "])"))
    return [line[before + 1 : end].strip() for before, end in pairwise([*ends, len(line)])]


def _columns_of(text: str, lines: list[tuple[int, list[str]]], name: str) -> list[str]:
    """The names of the columns as a comment lists them; without such a comment, those of the newest version."""
    comments = (re.sub(r"[#\s]", "", line) for line in text.split("\n") if line.lstrip().startswith("#"))
    columns = {comment for comment in comments if comment.startswith(("collective,bytes,", "collective,bytesPerRank,"))}
    if len(columns) > 1 or not columns <= set(VERSIONS):
        shown = shared.shown(" and ".join(sorted(columns)))
        raise BadTable(f"{name}: comments name the columns {shown}; valid: one of {' or '.join(VERSIONS)}")
    if columns:
        return columns.pop().split(",")
    for number, fields in lines:
        if len(fields) > NEWEST.count(",") + 1:
            raise BadTable(
                f"{name}:{number}: {len(fields)} columns, of which the second is bytes or bytesPerRank; "
                f"valid: a comment that says which, '# {VERSIONS[1]}'"
            )
    return NEWEST.split(",")


def read_json(text: str, name: str) -> Table:
    """Reads a file of rules; the line of a row is the number of its rule, from 1. BadTable for another kind of file."""
    try:
        content = json.loads(text, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise BadTable(f"{name}: not JSON: {error}") from None
    if not isinstance(content, dict) or not isinstance(content.get("rules"), list):
        raise BadTable(f"{name}: no array 'rules'")
    rows = []
    for number, rule in enumerate(content["rules"], start=1):
        with shared.at(f"{name}: rule {number}"):
            rows.append(_row(_flat(rule), number))
    return Table(tuple(rows))


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len({key for key, _ in pairs}) < len(pairs):
        raise ValueError("a key twice in one object")
    return dict(pairs)


def _flat(rule: Any) -> dict[str, str]:
    """The columns that a rule of the JSON file sets."""
    if not isinstance(rule, dict) or set(rule) != {"filter", "config"}:
        raise Mistake("not an object of 'filter' and 'config'")
    flat: dict[str, str] = {}
    for part, valid in (("filter", FILTER), ("config", CONFIG)):
        if not isinstance(rule[part], dict):
            raise Mistake(f"'{part}' is not an object")
        for key, value in rule[part].items():
            if key not in valid:
                raise Mistake(f"unknown key '{shared.shown(key)}' in '{part}' ({one_of(valid)})")
            whole = key in ("numPipeOps", "regBuff", "channels", "chunkSize")
            if type(value) is not int and (whole or not isinstance(value, str)):
                valid_value = "a whole number" if whole else "a number or a text"
                raise Mistake(f"'{key}' is {shared.shown(json.dumps(value))}; valid: {valid_value}")
            flat[key] = str(value).strip()
    if "bytes" in flat and "bytesPerRank" in flat:
        raise Mistake("'bytes' and 'bytesPerRank' in one rule")
    return flat


def _row(fields: dict[str, str], line: int) -> Decision:
    chunk = shared.whole(fields.get("chunkSize") or "0", "chunkSize", 0, _MOST)
    if chunk and not CHUNK_BYTES[0] <= chunk <= CHUNK_BYTES[1]:
        raise Mistake(f"chunkSize {chunk} is neither 0 nor a size from 4K to 1G")
    pipelined = shared.any_or(fields.get("numPipeOps") or "-1", "numPipeOps", 0, LARGEST_COUNT - 1)
    registered = shared.any_or(fields.get("regBuff") or "-1", "regBuff", 0, 1)
    if chunk and (pipelined, registered) != (None, None):
        raise Mistake("NCCLX sets no chunkSize in a row with numPipeOps or regBuff; valid: -1 in both, or chunkSize 0")
    choice = shared.choice(
        fields.get("algorithm", ""), fields.get("protocol", ""), fields.get("channels") or "-1", chunk or None
    )
    local = _interval(fields.get("nLocalRanks", ""), "nLocalRanks", 1)
    return Decision(
        shared.named(shared.COLLECTIVE_KEYS, fields.get("collective", ""), "collective"),
        (choice,),
        bytes=_interval(fields.get("bytes", ""), "bytes", 0) or ANY_BYTES,
        bytes_per_rank=_interval(fields.get("bytesPerRank", ""), "bytesPerRank", 0) or ANY_BYTES,
        nodes=_interval(fields.get("nNodes", ""), "nNodes", 1) or ANY_COUNT,
        ranks_per_node=local,
        pipelined=shared.exactly(pipelined, ANY_PIPELINED),
        registered=None if registered is None else bool(registered),
        line=line,
    )


def _interval(text: str, key: str, least: int) -> Span | None:
    """Reads ``*``, ``N`` or an interval ``[a,b]``, where either bracket may be a parenthesis and either end may be
    missing; None means every number."""
    if text in ("", "*"):
        return None
    match = _INTERVAL.fullmatch(text)
    if match:
        low = least if match[2] is None else int(match[2]) + (match[1] == "(")
        high = None if match[3] is None else int(match[3]) - (match[4] == ")")
    elif re.fullmatch(r"-?[0-9]{1,20}", text):
        low = high = int(text)
    else:
        raise Mistake(f"{key} '{shared.shown(text)}' is not *, a number or an interval such as [1,8], (1,8) or [1,)")
    low = max(low, least)
    if low > _MOST or (high is not None and not low <= high <= _MOST):
        raise Mistake(f"{key} '{shared.shown(text)}' holds no number from {least} to {_MOST}")
    return Span(low, high)


def csv_text(rows: Sequence[Decision], place: Place, provenance: Mapping[str, str]) -> str:
    """Writes the rows as CSV. BadTable for a row that this format cannot express."""
    head = [f"# {NEWEST}", *(f"# {key}: {value}" for key, value in provenance.items())]
    lines = shared.columns(rows, lambda row: list(_columns(row).values()), place)
    return "\n".join([*head, *lines, ""])


def json_text(rows: Sequence[Decision], place: Place, provenance: Mapping[str, str]) -> str:
    """Writes the rows as rules of a JSON file. BadTable for a row that this format cannot express."""
    rules = []
    for row in rows:
        with shared.at(place(row.line)):
            columns = {key: value for key, value in _columns(row).items() if value != _DEFAULTS.get(key)}
        rules.append(
            {
                "filter": {key: columns[key] for key in FILTER if key in columns},
                "config": {
                    key: columns[key] if key in ("algorithm", "protocol") else int(columns[key])
                    for key in CONFIG
                    if key in columns
                },
            }
        )
    return json.dumps({**({"provenance": dict(provenance)} if provenance else {}), "rules": rules}, indent=1) + "\n"


def _columns(row: Decision) -> dict[str, str]:
    (choice,) = row.choices
    box = boxes.of(row)
    if box is None:
        raise Mistake("no communicator has these ranks, nodes and ranks per node")
    if row.registered is not None or row.pipelined != ANY_PIPELINED:
        raise Mistake("NCCLX's format has no 'registered' and no 'pipelined'")
    if row.nvlink_domains != ANY_COUNT:
        raise Mistake("NCCLX's format has no 'nvlink-domains'")
    nodes, per_node = row.nodes, row.ranks_per_node
    if row.ranks != ANY_COUNT:
        even = [low for low, high in (box.ranks, box.nodes, box.ranks_per_node) if low == high]
        if len(even) < 3 or box.ranks_per_node[0] == 0:
            raise Mistake("NCCLX's format has no 'ranks'; valid with them: 'nodes', both exact and even")
        nodes, per_node = Span(*box.nodes), Span(*box.ranks_per_node)
    algorithm, protocol = shared.cell_keys(choice)
    return {
        "collective": row.collective.name.lower(),
        "bytesPerRank": "*" if (size := _per_rank(row, box)) == ANY_BYTES else _text(size),
        "algorithm": algorithm,
        "protocol": protocol,
        "channels": str(choice.channels or -1),
        "nNodes": "*" if nodes == ANY_COUNT else _text(nodes),
        "nLocalRanks": "*" if per_node is None else _text(per_node),
        "chunkSize": str(choice.chunk_bytes or 0),
    }


def _per_rank(row: Decision, box: boxes.Box) -> Span:
    if row.bytes == ANY_BYTES:
        return row.bytes_per_rank
    ranks, (low, high) = box.ranks[0], box.bytes
    ends_fit = low % ranks == 0 and (row.bytes.high is None or (high + 1) % ranks == 0)
    if box.ranks[0] != box.ranks[1] or not ends_fit:
        raise Mistake("NCCLX knows sizes per rank; valid: 'bytes-per-rank', or 'bytes' of exact ranks that divide them")
    return Span(low // ranks, None if row.bytes.high is None else high // ranks)


def _text(interval: Span) -> str:
    if max(interval.low, interval.high or 0) > _MOST:
        raise Mistake(f"NCCLX's numbers end at {_MOST}")
    if interval.low == interval.high:
        return str(interval.low)
    return f"[{interval.low},{'' if interval.high is None else interval.high}]"
