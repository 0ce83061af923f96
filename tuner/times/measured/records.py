"""Interprets texts in files of measured times: the names of operations, and notes that describe runs."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from tuner import release
from tuner.base.errors import BadInput, did_you_mean, one_of
from tuner.base.expressions import expression
from tuner.base.names import Collective, P2pOperation
from tuner.times.measured.header import Header, MeasuredRun

# nccl-tests' programs for which NCCL has no function of its own; the second half are made of sends and receives.
OPERATIONS: Mapping[str, Collective | P2pOperation] = {
    **{each.name.lower(): each for each in Collective},
    **{each.name.lower(): each for each in P2pOperation},
}
COLLECTIVES = tuple(OPERATIONS)

# Collectives whose nBytes is the data of all ranks together: each rank's part is an equal number of elements.
# nccl-tests, src/{all_gather,reduce_scatter,alltoall,gather,scatter}.cu: count / nranks.
SPLIT_OVER_RANKS = ("allgather", "reducescatter", "alltoall", "gather", "scatter")


def operation(word: str) -> Collective | P2pOperation:
    """The operation that a word such as ``all_reduce``, ``AllReduce`` or ``all_reduce_perf`` names. BadInput for
    another word.
    """
    plain = _plain(word).removesuffix("perf")
    if plain == "all2all":
        return P2pOperation.AllToAll
    if plain not in COLLECTIVES:
        raise BadInput(f"unknown collective {word!r}{did_you_mean(plain, COLLECTIVES)}; {one_of(COLLECTIVES)}")
    return OPERATIONS[plain]


def _plain(word: str) -> str:
    return word.strip().lower().replace("_", "").replace("-", "")


_ROWS_OWN = expression(r"\b(?:avg )?busbw [\d.]+|#wrong=\S+")  # numbers that belong to single rows
_CODE = expression(r"\bnccl[ /]?(?:version )?(2\d{4})\b|/(2\d{4})\b", re.I)
_DOTTED = expression(r"\bnccl[ -]?v?(2\.\d+\.\d+)", re.I)
_GPU = expression(r"\b(?:NVIDIA )?((?:[ABHVL]\d{2,3}S?|GB\d{3}|GH200|RTX PRO \d+|RTX A\d+|T4)\b[^;,]*)")
_VARIABLE = expression(r"\b((?:NCCL|FI)_[A-Z0-9_]+)=([^\s;,]*)")


def runs_of_notes(noted: Iterable[tuple[str, str]], header: Header) -> tuple[list[str], Header]:
    """The run of each row, and the header with the runs, and with the release and the GPU if all rows agree on one.

    ``noted``: the source and notes of each row, which describe its run. Rows with different notes belong to different
    runs.
    """
    names: dict[tuple[str, str], str] = {}
    of_rows = []
    for source, note in noted:
        own = _ROWS_OWN.sub("", note).strip(" ;")
        if (source, own) not in names:
            others = sum(1 for known, _ in names if known == source)
            names[source, own] = f"{source}#{others + 1}" if others else source or "notes"
        of_rows.append(names[source, own])
    named = {name: MeasuredRun(what=note, environment=variables_of_note(note)) for (_, note), name in names.items()}
    texts = [" ; ".join(key) for key in names]
    nccl, gpu = _agreed(map(release_of_note, texts)), _agreed(map(gpu_of_note, texts))
    return of_rows, replace(header, runs=named, nccl=nccl, gpu=gpu)


def release_of_note(text: str) -> str:
    """The NCCL release that a text names, as ``22903`` or ``2.29.3``; empty if it names no release."""
    if match := _DOTTED.search(text):
        return match[1]
    match = _CODE.search(text)
    return release.of_code(int(match[1] or match[2])) if match else ""


def gpu_of_note(text: str) -> str:
    """The GPU model that a text names; empty if it names no model."""
    match = _GPU.search(text)
    return match[1].strip() if match else ""


def variables_of_note(text: str) -> dict[str, str]:
    """Variables of NCCL and its network that a text sets."""
    return {match[1]: match[2] for match in _VARIABLE.finditer(text)}


def _agreed(values: Iterable[str]) -> str:
    (one, *others) = set(values) or {""}
    return "" if others else one
