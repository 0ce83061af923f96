"""The interface to the forcing plugin, whose table the measuring process can change from call to call while
communicators exist.

libnccl loads the same shared object as its tuner plugin; forcing one algorithm and protocol is a table of one row.
"""

from typing import Any, Self

from tuner.base.dataclass import dataclass
from tuner.base.errors import BadTable
from tuner.base.extras import bindings
from tuner.base.names import Algorithm, Collective, Protocol
from tuner.plugin import forcing_path
from tuner.plugin.table.parse import to_text
from tuner.plugin.table.records import Decision, Table, TableChoice

_MINUS_ONE = -1.0  # marks a cell that NCCL ignores


@dataclass(frozen=True, slots=True)
class SeenByPlugin:
    """The plugin's counts of calls in all communicators of the process since its table was set, and the last call."""

    calls: int
    decided: int
    unavailable: int  # calls whose row only named choices that NCCL cannot run here; they were left to NCCL
    collective: Collective | None = None  # of the last call; None before the first call
    bytes: int = 0  # nBytes of the last call
    # The costs that it received, without the cells that NCCL ignores
    costs_us: tuple[tuple[Algorithm, Protocol, float], ...] = ()

    @classmethod
    def of(cls, seen: Any) -> Self:
        """Makes the record from a struct nccl_tuner_seen."""
        cells = ((Algorithm(i // len(Protocol)), Protocol(i % len(Protocol)), us) for i, us in enumerate(seen.costs_us))
        return cls(
            seen.calls,
            seen.decided,
            seen.unavailable,
            None if seen.collective not in list(Collective) else Collective(seen.collective),
            seen.bytes,
            tuple(algo_proto for algo_proto in cells if algo_proto[2] != _MINUS_ONE),
        )


def forced(collective: Collective, algorithm: Algorithm, protocol: Protocol, channels: int = 0) -> str:
    """The text of a table that forces the algorithm and protocol. If ``channels`` is 0, NCCL chooses them; it never
    uses more than its own maximum."""
    choice = TableChoice(algorithm, protocol, channels=channels or None)
    return to_text(Table((Decision(collective, (choice,)),)))


class Forcing:
    """The forcing plugin of this process.

    Create this object before libnccl loads its plugin. The object loads the plugin, and libnccl then finds the loaded
    one by its name, whatever folder it is in.
    """

    def __init__(self) -> None:
        self.path = forcing_path()
        native = bindings("_force")
        self._ffi, self._lib = native.ffi, native.lib

    def use_table(self, text: str | None) -> None:
        """Sets the table that decides from now on; None: NCCL decides. Raises BadTable for a bad table, and then
        nothing has changed."""
        content = b"" if text is None else text.encode()
        wrong = self._lib.nccl_tuner_use_table(self._ffi.NULL if text is None else content, len(content))
        if wrong != self._ffi.NULL:
            raise BadTable(f"table: {self._ffi.string(wrong).decode(errors='replace')}")

    def seen(self) -> SeenByPlugin:
        """Counts of what the plugin was asked and what it decided since its table was set."""
        seen = self._ffi.new("struct nccl_tuner_seen *")
        self._lib.nccl_tuner_see(seen)
        return SeenByPlugin.of(seen)
