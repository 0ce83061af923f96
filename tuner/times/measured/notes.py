"""Runs, releases, GPUs and variables as the notes of a bare file tell them."""

import re
from collections.abc import Iterable, Mapping, Sequence

from tuner import release
from tuner.base.dataclass import dataclass
from tuner.times.measured.records import MeasuredRun

_ROWS_OWN = re.compile(r"\b(?:avg )?busbw [\d.]+|#wrong=\S+")  # numbers of single rows
_CODE = re.compile(r"\bnccl[ /]?(?:version )?(2\d{4})\b|/(2\d{4})\b", re.I)
_DOTTED = re.compile(r"\bnccl[ -]?v?(2\.\d+\.\d+)", re.I)
_GPU = re.compile(r"\b(?:NVIDIA )?((?:[ABHVL]\d{2,3}S?|GB\d{3}|GH200|RTX PRO \d+|RTX A\d+|T4)\b[^;,]*)")
_VARIABLE = re.compile(r"\b((?:NCCL|FI)_[A-Z0-9_]+)=([^\s;,]*)")


@dataclass(frozen=True, slots=True)
class Noted:
    """What notes tell: each row's run, the runs by name, and release and GPU where all rows agree on one."""

    of_rows: Sequence[str]
    runs: Mapping[str, MeasuredRun]
    nccl: str
    gpu: str


def runs(noted: Iterable[tuple[str, str]]) -> Noted:
    """Of the source and the note of each row. Rows of one source with unlike notes are of unlike runs."""
    names: dict[tuple[str, str], str] = {}
    of_rows = []
    for source, note in noted:
        own = _ROWS_OWN.sub("", note).strip(" ;")
        if (source, own) not in names:
            others = sum(1 for known, _ in names if known == source)
            names[source, own] = f"{source}#{others + 1}" if others else source or "notes"
        of_rows.append(names[source, own])
    named = {name: MeasuredRun(what=note, environment=variables(note)) for (_, note), name in names.items()}
    texts = [" ; ".join(key) for key in names]
    return Noted(of_rows, named, _agreed(map(nccl_release, texts)), _agreed(map(gpu, texts)))


def nccl_release(text: str) -> str:
    """The release of NCCL that a text names, empty where it names none: ``22903`` and ``2.29.3`` are the same."""
    if match := _DOTTED.search(text):
        return match[1]
    match = _CODE.search(text)
    return release.of_code(int(match[1] or match[2])) if match else ""


def gpu(text: str) -> str:
    """The model of the GPU that a text names, empty where it names none."""
    match = _GPU.search(text)
    return match[1].strip() if match else ""


def variables(text: str) -> dict[str, str]:
    """Variables of NCCL and its network that a text sets."""
    return {match[1]: match[2] for match in _VARIABLE.finditer(text)}


def _agreed(values: Iterable[str]) -> str:
    (one, *others) = set(values) or {""}
    return "" if others else one
