"""The frozen splits of ``tables/splits.toml``: which rows a model is fitted to, and which it has to predict."""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput, one_of
from tuner.base.names import ALGO_PROTOS, Algorithm, Collective, DataType
from tuner.times import measured
from tuner.times.calibration.measured_calls import MeasuredCalls, of_table, splits_file, table_of_one_way
from tuner.times.placement import Site

Rows = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Split:
    """One split. ``kind``: name of a :class:`CarriedOver`, the kind of extrapolation. ``hold_out``, ``keep`` and
    ``test_rows`` are conditions: lists of allowed values by column.

    For ``bytes``, the only value is the smallest allowed size.
    """

    kind: str
    fit: tuple[str, ...]
    test: tuple[str, ...] = ()
    hold_out: Mapping[str, Sequence[Any]] | None = None
    keep: Mapping[str, Sequence[Any]] | None = None
    test_rows: Mapping[str, Sequence[Any]] | None = None
    from_bytes: int = 1

    @property
    def is_between_nodes(self) -> bool:
        """Whether times between nodes are predicted."""
        return bool((halves(self)[1].measured.calls.nodes > 1).all())

    @property
    def machine(self) -> str:
        """The machine that is predicted."""
        return measured.load((self.test or self.fit)[0]).header.machine

    @property
    def title(self) -> str:
        """The split in words: which rows are fitted to, and which are held out."""
        kept = f", {_words(self.keep)} only" if self.keep else ""
        held = f"{', '.join(self.test)} {_words(self.test_rows)}".strip() if self.test else _words(self.hold_out)
        large = f" from {self.from_bytes >> 20} MiB" if self.from_bytes > 1 else ""
        return f"{', '.join(self.fit)}{kept} -> {held or 'the rest'}{large}"


def splits() -> tuple[Split, ...]:
    """All splits, in the order of the file."""
    read = []
    for entry in splits_file()["split"]:
        lists = {key: tuple(entry[key]) for key in ("fit", "test") if key in entry}
        read.append(Split(**{**entry, **lists}))
    return tuple(read)


def halves(split: Split) -> tuple[MeasuredCalls, MeasuredCalls]:
    """The two halves of a split, placed on their machines: the rows to fit to, and the rows to predict."""
    (own,) = [shipped(name) for name in split.fit]
    if split.test:
        (test,) = [shipped(name) for name in split.test]
        kept = np.ones(len(own), np.bool_) if split.keep is None else matching(own, split.keep)
        wanted = np.ones(len(test), np.bool_) if split.test_rows is None else matching(test, split.test_rows)
        return own.chosen(kept), test.chosen(wanted & _large(test, split))
    if split.keep is not None:
        kept = matching(own, split.keep)
        return own.chosen(kept), own.chosen(~kept & _large(own, split))
    held = matching(own, split.hold_out or {})
    # Rows that meet the other conditions of the held-out rows are not used for fitting either, because they would
    # reveal them.
    around = matching(own, {key: value for key, value in (split.hold_out or {}).items() if not key.endswith("_not")})
    return own.chosen(~around), own.chosen(held & _large(own, split))


@cache
def shipped(name: str) -> MeasuredCalls:
    """The rows of a shipped table on the machine it names. BadInput if that machine is not known."""
    table = table_of_one_way(name)
    if not table.header.machine or not table.header.nccl:
        raise BadInput(
            f"{name}: its machine or release is not known: {table.header.machine_note or table.header.nccl_note}"
        )
    return of_table(table, Site(table.header.machine, table.header.nccl))


def matching(calls: MeasuredCalls, conditions: Mapping[str, Sequence[Any]]) -> Rows:
    """The rows that meet all conditions, as a mask [row]."""
    kept = np.ones(len(calls), np.bool_)
    for name, values in conditions.items():
        kept &= _matching(calls, name, values)
    return kept


def _matching(calls: MeasuredCalls, name: str, values: Sequence[Any]) -> Rows:
    features = calls.measured.calls
    if name == "sizes":
        first, step = values
        return np.isin(features.bytes, np.unique(features.bytes)[first::step])
    if name == "algorithm_not":
        return ~np.isin(features.algorithm, [Algorithm[value] for value in values])
    columns = {
        "bytes": (
            features.bytes,
            [size for size in np.unique(features.bytes) if name == "bytes" and values[0] <= size],
        ),
        "gpus_per_node": (calls.gpus_per_node, list(values)),
        "nodes": (features.nodes, list(values)),
        "dtype": (calls.dtype, [DataType[value].value for value in values if name == "dtype"]),
        "collective": (features.collective, [_collective(value) for value in values if name == "collective"]),
        "algo_proto": (features.algo_proto, [_algo_proto(value) for value in values if name == "algo_proto"]),
    }
    if name not in columns:
        raise BadInput(f"splits.toml: unknown condition {name!r}; {one_of((*columns, 'sizes', 'algorithm_not'))}")
    column, wanted = columns[name]
    return np.isin(column, wanted)


def _large(calls: MeasuredCalls, split: Split) -> Rows:
    large: Rows = calls.measured.calls.bytes >= split.from_bytes
    return large


def _collective(name: str) -> int:
    return next(each.value for each in Collective if each.name.lower() == name)


def _algo_proto(name: str) -> int:
    return next(at for at, (a, p) in enumerate(ALGO_PROTOS) if f"{a.name}/{p.name}" == name)


def _words(conditions: Mapping[str, Sequence[Any]] | None) -> str:
    if conditions and "sizes" in conditions:
        first, step = conditions["sizes"]
        return f"every {step}rd size from the {first + 1}nd" if (first, step) == (1, 3) else f"sizes [{first}::{step}]"
    return ", ".join(f"{name} {'/'.join(map(str, values))}" for name, values in (conditions or {}).items())
