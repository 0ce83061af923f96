"""What the rules of times and launches look at: one kind of call by one algorithm and protocol."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tuner.base.names import AlgoProto, Algorithm, Protocol
from tuner.emulator.communicator import Communicator
from tuner.emulator.request import Request
from tuner.release.schema import Limits

if TYPE_CHECKING:  # it imports all rules, and they import this
    from tuner.emulator.rules.resolved import Rules


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """A request on a communicator, by the algorithm and protocol that a rule computes for."""

    communicator: Communicator
    request: Request
    algo_proto: AlgoProto

    @property
    def algorithm(self) -> Algorithm:
        """The algorithm of the call."""
        return self.algo_proto[0]

    @property
    def protocol(self) -> Protocol:
        """The protocol of the call."""
        return self.algo_proto[1]

    @property
    def rules(self) -> "Rules":
        """The release's rules."""
        return self.communicator.rules

    @property
    def limits(self) -> Limits:
        """The release's limits."""
        return self.communicator.release.limits

    @property
    def like_nvls(self) -> bool:
        """Whether the operation runs on NVLS's channels."""
        return self.communicator.rules.nvls_kind(self.communicator, self.algorithm)

    @property
    def like_collnet(self) -> bool:
        """Whether the network takes part, so that every channel of the bound is used."""
        network = self.algorithm in (Algorithm.CollNetDirect, Algorithm.CollNetChain)
        return network or (self.algorithm is Algorithm.NVLS and self.communicator.nodes > 1)

    @property
    def traffic_per_byte(self) -> int:
        """Traffic that a byte of the count counts as; LL's flags count too."""
        per_byte = self.request.traffic_per_byte(self.communicator.ranks)
        return per_byte * (self.limits.ll_traffic if self.protocol is Protocol.LL else 1)
