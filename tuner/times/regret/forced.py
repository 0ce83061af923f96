"""What a run forces, from a label that a user gives, a run's variables, or the columns of a row."""

from collections.abc import Mapping
from dataclasses import dataclass

from tuner.base.errors import BadInput
from tuner.base.names import Algorithm, Protocol
from tuner.times.measured import MeasuredRow, MeasuredTable
from tuner.times.regret.records import DEFAULT

ALGO, PROTO, LEAST, MOST = "NCCL_ALGO", "NCCL_PROTO", "NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS"
FORCING = (ALGO, PROTO, LEAST, MOST)
ALGORITHMS, PROTOCOLS = ({each.name.lower(): each.name for each in kind} for kind in (Algorithm, Protocol))


@dataclass(frozen=True, slots=True)
class Forced:
    """What an arm forces; nothing where all are empty: NCCL's own choice. Texts are as in NCCL's variables."""

    algorithm: str = ""
    protocol: str = ""
    channels: int = 0

    @property
    def label(self) -> str:
        """``Ring/LL channels=8``, or default."""
        names = "/".join(filter(None, (self.algorithm, self.protocol)))
        channels = f"channels={self.channels}" if self.channels else ""
        return " ".join(filter(None, (names, channels))) or DEFAULT

    @property
    def parts(self) -> tuple[str, str, int]:
        """Algorithm, protocol, channels."""
        return self.algorithm, self.protocol, self.channels

    @property
    def columns(self) -> dict[str, Algorithm | Protocol | int | None]:
        """As a measured row has them."""
        return {
            "algorithm": Algorithm[self.algorithm] if self.algorithm else None,
            "protocol": Protocol[self.protocol] if self.protocol else None,
            "channels": self.channels or None,
        }


def by_label(label: str) -> Forced:
    """``default``, ``Ring``, ``LL128``, ``Ring/LL``, or ``Ring/LL/8`` with channels. BadInput for other words."""
    if label.lower() == DEFAULT:
        return Forced()
    algorithm, protocol, channels = "", "", 0
    for word in label.split("/"):
        if (name := ALGORITHMS.get(word.lower())) and not algorithm:
            algorithm = name
        elif (name := PROTOCOLS.get(word.lower())) and not protocol:
            protocol = name
        elif word.isdigit() and int(word) and not channels:
            channels = int(word)
        else:
            names = f"an algorithm ({', '.join(ALGORITHMS.values())}), a protocol ({', '.join(PROTOCOLS.values())})"
            raise BadInput(
                f"arm {label!r}; valid: {DEFAULT}, or what was forced: {names}, a number of channels, "
                "with / between them: Ring/LL/8"
            )
    return Forced(algorithm, protocol, channels)


def by_variables(environment: Mapping[str, str]) -> Forced:
    """What NCCL's variables force; several algorithms, and what NCCL does not know, stay as they stand there."""
    algorithm, protocol = environment.get(ALGO, ""), environment.get(PROTO, "")
    channels = environment.get(MOST) or environment.get(LEAST) or ""
    return Forced(
        ALGORITHMS.get(algorithm.lower(), algorithm),
        PROTOCOLS.get(protocol.lower(), protocol),
        int(channels) if channels.isdigit() else 0,
    )


def of_row(table: MeasuredTable, row: MeasuredRow) -> Forced:
    """What a row of a table forced: by its run's variables, else by its columns.

    In a run that is called default or as the file itself, columns are what NCCL's log says that it chose.
    """
    forced = by_variables(table.environment_of(row))
    if forced != Forced() or row.run in (DEFAULT, table.name):
        return forced
    algorithm, protocol = (each.name if each is not None else "" for each in (row.algorithm, row.protocol))
    return Forced(algorithm, protocol, row.channels or 0)
