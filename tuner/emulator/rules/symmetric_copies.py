"""Which calls on symmetric windows copy engines do between nodes: rules by name."""

from collections.abc import Callable

from tuner.base.names import Collective, PeerCall
from tuner.base.registry import Registry
from tuner.base.windows import Sides
from tuner.emulator import nccl_source as nccl
from tuner.emulator.communicator import Communicator
from tuner.emulator.rules import symmetric_variables

Copied = Collective | PeerCall
BetweenNodesRule = Callable[[Communicator, Copied, Sides], bool]  # the call, and which buffers are in such windows
RULES: Registry[BetweenNodesRule] = Registry()


@RULES(nccl.HIER_CE_AVAILABLE(since="2.30.7"))
def gathers_and_exchanges_over_rma(communicator: Communicator, call: Copied, sides: Sides) -> bool:
    """AllGather and AlltoAll from and into windows, where hosts start transfers over the network (RMA).

    A network with GIN is taken for one that lets them. NCCL does without where rings may not cross adapters
    (NCCL_CROSS_NIC=0), and where it has no contexts for it (NCCL_NUM_RMA_CTX=0).
    """
    variables = communicator.environment
    offered = variables.number("NCCL_CROSS_NIC", 2) != 0 and variables.c_int(symmetric_variables.RMA, 1) != 0
    return offered and call in (Collective.AllGather, PeerCall.AlltoAll) and sides is Sides.both
