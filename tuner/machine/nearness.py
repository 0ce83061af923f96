"""How near a machine of the catalogue is to what is known of a node, in words: what agrees, differs, is not known."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ComparedFact:
    """One fact in words: whether the machine ``agrees``, None where that is not known.

    ``identifies``: few other machines would agree. ``decides``: one that differs is another machine to NCCL.
    """

    says: str
    agrees: bool | None
    identifies: bool = False
    decides: bool = True


@dataclass(frozen=True, slots=True)
class Nearness:
    """How near a machine of the catalogue is to a node: facts in words. ``others`` differ, and decide nothing."""

    machine: str
    agrees: tuple[str, ...]
    differs: tuple[str, ...]
    others: tuple[str, ...]
    unknown: tuple[str, ...]
    identified: bool

    @property
    def rank(self) -> tuple[int, bool, int]:
        """The nearest has the least."""
        return len(self.differs), not self.identified, -len(self.agrees)

    @property
    def in_words(self) -> str:
        """Name and facts in one line."""
        differs = f"; differs: {', '.join(self.differs)}" if self.differs else ""
        return f"{self.machine} (agrees: {', '.join(self.agrees) or 'nothing'}{differs})"


def nearness(machine: str, facts: Iterable[ComparedFact], unknown: Iterable[str] = ()) -> Nearness:
    """What the facts of one machine come to; ``unknown`` are others that nothing is known of."""
    known = list(facts)
    return Nearness(
        machine,
        tuple(fact.says for fact in known if fact.agrees),
        tuple(fact.says for fact in known if fact.agrees is False and fact.decides),
        tuple(fact.says for fact in known if fact.agrees is False and not fact.decides),
        (*(fact.says for fact in known if fact.agrees is None), *unknown),
        any(fact.agrees and fact.identifies for fact in known),
    )
