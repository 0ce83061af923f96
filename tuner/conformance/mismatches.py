"""What an exact comparison found: how much was compared, and every difference with both values."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Mismatch:
    """One difference, with both values."""

    what: str
    where: str
    emulator: object
    libnccl: object


@dataclass(slots=True)
class MatchReport:
    """Numbers compared and the mismatches among them, by what was compared."""

    title: str
    compared: dict[str, int] = field(default_factory=dict)
    mismatches: list[Mismatch] = field(default_factory=list)

    def compare(self, what: str, where: str, emulator: object, libnccl: object) -> None:
        """Counts one comparison, and keeps both values where they differ."""
        self.compared[what] = self.compared.get(what, 0) + 1
        if emulator != libnccl:
            self.mismatches.append(Mismatch(what, where, emulator, libnccl))

    def matched(self, what: str) -> int:
        """How many comparisons of this kind agreed."""
        return self.compared.get(what, 0) - sum(mismatch.what == what for mismatch in self.mismatches)
