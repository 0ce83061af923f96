"""What NCCL_DEBUG=INFO alone prints."""

from tuner.machine import catalogue
from tuner.scenario.describe import describe

NCCL = "2.28.9"


def channels(machine: str, nodes: int, nccl: str = NCCL) -> tuple[int, int]:
    made = describe(machine, nccl=nccl, nodes=nodes).communicator()
    return made.channels, made.nvls_channels


def plain(machine: str, nodes: int = 1, made: tuple[int, int] | None = None, nccl: str = NCCL) -> str:
    """What NCCL_DEBUG=INFO alone prints on a machine, as far as it is read; ``made``: other channels than it makes."""
    node = catalogue.load(machine)
    local, topology = node.gpus_per_node, node.topology
    coll, nvls = made or channels(machine, nodes, nccl)
    multicast = topology.gpus[0].sm >= 90 and topology.has_nvswitch(local)
    adapters = " ".join(f"[{each.dev}]{each.name}:1/IB" for each in topology.nets)
    ends, lines = list[str](), [f"host0:10:10 [0] NCCL INFO NCCL version {nccl}+cuda12.9"]
    for rank in range(nodes * local):
        at = f"host{rank // local}:{10 + rank}:{10 + rank} [{rank % local}] NCCL INFO "
        bus_id = topology.gpus[rank % local].busid.replace(":", "").replace(".", "").lstrip("0")
        comm = f"comm 0xabc{rank} rank {rank}"
        began = (
            f"{comm} nranks {nodes * local} cudaDev {rank % local} nvmlDev {rank % local} busId {bus_id} commId 0x77"
        )
        ends.append(f"{at}ncclCommInitRank {began} - Init COMPLETE")
        lines += [
            f"{at}NET/IB : Using {adapters} [RO]; OOB eth0:10.0.0.1<0>",
            *(
                f"{at}NET/IB: [{net.dev}] {net.name}:uverbs0:1/IB provider=Mlx5 speed={net.speed_mbps} context=0x1"
                for net in topology.nets
            ),
            f"{at}Using network IB",
            f"{at}ncclCommInitRank {began} - Init START",
            f"{at}NVLS multicast support is {'' if multicast else 'not '}available on dev 0",
            f"{at}{comm} nRanks {nodes * local} nNodes {nodes} localRanks {local} localRank {rank % local} MNNVL 0",
            f"{at}{coll} coll channels, 0 collnet channels, {nvls} nvls channels, 32 p2p channels, 2 per peer",
        ]
    return "\n".join(lines + ends) + "\n"
