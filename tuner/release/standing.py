"""How far to trust the answers for a release that was not compared with its library.

Such a release is answered if the nearest compared releases before and after it agree in everything that affects the
machine ("between"), or from facts of its public source in ``tables/by_source`` ("by source").
"""

import re
from collections.abc import Iterable
from typing import Literal

from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput, Remedy

BY_SOURCE = "by source, not compared"
GENERATIONS = frozenset({"volta", "ampere", "hopper", "blackwell", "rubin"})
# Rows that other generations read, too: the processor decides which row holds for LL (index1, src/tuning).
OF_ALL = frozenset({"volta", "ampere"})
SHOWN = 6  # how many differences an error names


NOT_READ = {
    "merged_adapters": "how NCCL merges adapters; valid: machines whose adapters are not merged",
    "rubin": "its models of Rubin; valid: other GPUs, or 2.32.3",
    "windows": "its models of symmetric kernels; valid: buffers outside of windows",
}


@dataclass(frozen=True, slots=True)
class Standing:
    """What the answers for a release rest on, if it was not compared with its library.

    ``kind`` is "between" or "by source". ``differing`` has the dotted keys in which the two ``neighbours`` differ.
    """

    kind: Literal["between", "by source"]
    neighbours: tuple[str, str] | None = None
    differing: tuple[str, ...] = ()
    not_read: tuple[str, ...] = ()  # keys of NOT_READ: topics that the known source is not enough for
    compared: str | None = None  # for a release known by source, the newest compared release before it

    @property
    def words(self) -> str:
        """The standing in words, such as ``between 2.26.2 and 2.26.5, which agree``."""
        if self.neighbours is None:
            return BY_SOURCE
        return f"between {self.neighbours[0]} and {self.neighbours[1]}, which agree"

    def reaching(self, generations: Iterable[str], in_domain: bool) -> list[str]:
        """The differing keys that may affect GPUs of these generations. ``in_domain`` says whether several hosts form
        an NVLink domain."""
        own = {*generations, *OF_ALL}
        words = {key: frozenset(re.split(r"[._]", key)) for key in self.differing}
        return [
            key
            for key, of_key in words.items()
            if (in_domain or "domain" not in of_key) and (of_key & own or not of_key & GENERATIONS)
        ]


def refuse_not_read(name: str, standing: Standing | None, what: str) -> None:
    """Raises BadInput if the release is known by its source only, and this is not enough for ``what``, a key of
    NOT_READ."""
    if standing is not None and what in standing.not_read:
        refused = BadInput(f"NCCL {name} is known only by its source, which is not enough for {NOT_READ[what]}")
        raise refused if standing.compared is None else refused.cured(Remedy("nccl", standing.compared))


def refuse(name: str, standing: Standing, differing: list[str]) -> None:
    """Raises BadInput if the neighbours of release ``name`` differ in something that affects the machine."""
    if differing and standing.neighbours is not None:
        before, after = standing.neighbours
        more = f" and {len(differing) - SHOWN} more" if len(differing) > SHOWN else ""
        raise BadInput(
            f"no table for NCCL {name}, and the releases around it differ here: {', '.join(differing[:SHOWN])}{more}: "
            f"use {before} or {after} (`nccl-tuner diff` shows how picks differ)"
        ).cured(Remedy("nccl", after))
