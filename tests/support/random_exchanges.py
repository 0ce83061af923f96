"""Groups of sends and receives for the tests: what people write, and what nobody would; the same for one seed."""

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from tests.support.planned_communicators import hosts
from tuner.base.errors import TunerError
from tuner.base.names import DataType, PeerCall
from tuner.emulator.p2p.plan import ExchangeCall
from tuner.machine import catalogue
from tuner.scenario import Scenario
from tuner.scenario.p2p import p2p_context

Calls = list[ExchangeCall]
SHAPES = [  # machine, nodes, GPUs per node
    ("dgx-h100", 1, 8),
    ("dgx-h100", 2, 3),
    ("dgx-h100", 3, 8),
    ("dgx-a100", 4, 2),
    ("dgx-1v", 1, 8),
    ("pcie-l40s", 1, 4),
    ("aws-p5", 2, 8),
    ("ws-2x-a6000", 1, 2),
]
SETTINGS: list[dict[str, str]] = [
    {},
    {"NCCL_NCHANNELS_PER_NET_PEER": "4"},
    {"NCCL_MIN_P2P_NCHANNELS": "8", "NCCL_MAX_P2P_NCHANNELS": "16"},
    {"NCCL_MAX_P2P_NCHANNELS": "2"},
    {"NCCL_P2P_LL_THRESHOLD": "1000"},
    {"NCCL_P2P_NET_CHUNKSIZE": "65536", "NCCL_P2P_NVL_CHUNKSIZE": "100000", "NCCL_P2P_PCI_CHUNKSIZE": "300000"},
    {"NCCL_BUFFSIZE": "524288", "NCCL_LL_BUFFSIZE": "131072"},
    {"NCCL_NET_SHARED_BUFFERS": "0"},
    {"NCCL_ALLOC_P2P_NET_LL_BUFFERS": "1"},
    {"NCCL_CHUNK_SIZE": "50000"},
    {"NCCL_P2P_SCHEDULE_GROUP_SIZE": "4"},
    {"NCCL_P2P_EPOCH_ENABLE": "0"},
    {"NCCL_P2P_MAX_PEERS": "4"},
    {"NCCL_P2P_PER_CHANNEL_NET_BW": "5"},
    {"NCCL_MAX_NCHANNELS": "5"},
    {"NCCL_P2P_DISABLE": "1"},
    {"NCCL_SHM_DISABLE": "1"},
    {"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"},
    *({"NCCL_P2P_LEVEL": level} for level in ("LOC", "NVL", "PIX", "PXB", "PHB", "SYS")),
    {"NCCL_NET_DISABLE_INTRA": "1"},
    {"NCCL_WORK_ARGS_BYTES": "700"},
    {"NCCL_WORK_FIFO_BYTES": "65536"},  # holds all that is drawn, so that the works are still there to be read
    {"NCCL_MNNVL_ENABLE": "0"},
    {"NCCL_ALLGATHERV_ENABLE": "0"},
    *({"NCCL_NCHANNELS_PER_NET_PEER": number} for number in ("0", "-1", "-2", "1000")),  # nobody sets these
    {"NCCL_MAX_P2P_NCHANNELS": str(1 << 33)},
    {"NCCL_P2P_LL_THRESHOLD": "-1"},
    {"NCCL_WORK_ARGS_BYTES": "-1"},
    {"NCCL_P2P_MAX_PEERS": "0"},
]
DOMAINS = ("gb200-nvl72", "aws-p6e-gb200")
MOST_RANKS = 32


def scenarios(nccl: str, seed: str) -> Iterator[Scenario]:
    """Without end, communicators of a release on which sends and receives are emulated; a seed is always the same."""
    generator = random.Random(seed)
    while True:
        settings: dict[str, str] = {}
        for each in generator.sample(SETTINGS, k=generator.choice((0, 1, 1, 2))):
            settings |= each
        scenario = generator.choice((_whole, _whole, _whole, _mixed, _of_domains, _sharing))(nccl, generator)
        scenario = replace(scenario, environment=settings)
        try:
            scenario.oracle_configuration()
            p2p_context(scenario.resolve(), generator.randrange(scenario.ranks))
        except TunerError:
            continue
        if scenario.ranks > 1:
            yield scenario


def _whole(nccl: str, generator: random.Random) -> Scenario:
    """Of one machine."""
    known = [shape for shape in SHAPES if nccl in catalogue.load(shape[0]).releases]
    if generator.random() < 0.5:
        machine, nodes, gpus = generator.choice(known)
        return Scenario(nccl, nodes, machine=machine, gpus_per_node=gpus)
    machine = generator.choice(list(hosts(nccl)))
    node = catalogue.load(machine)
    gpus = generator.choice((node.gpus_per_node, generator.randint(1, node.gpus_per_node)))
    most = max(1, min(5, MOST_RANKS // gpus)) if node.topology.nets else 1
    return Scenario(nccl, generator.randint(1, most), machine=machine, gpus_per_node=gpus)


def _mixed(nccl: str, generator: random.Random) -> Scenario:
    """With nodes behind that have other GPUs, or fewer."""
    described = _whole(nccl, generator)
    machine = generator.choice((described.machine, "dgx-a100", "dgx-h100"))
    gpus = generator.randint(1, min(4, catalogue.load(str(machine)).gpus_per_node))
    other = replace(described, machine=machine, nodes=generator.randint(1, 2), gpus_per_node=gpus)
    return replace(described, nodes=min(described.nodes, 2), others=(other,))


def _of_domains(nccl: str, generator: random.Random) -> Scenario:
    """Hosts that NVLink joins."""
    if generator.random() < 0.5:
        described = Scenario(nccl, generator.randint(2, 5), machine=generator.choice(("dgx-h100", "dgx-a100")))
        each = generator.choice((1, 2, 2, 3))
        return replace(described, gpus_per_node=generator.randint(1, 4), hosts_per_domain=each)
    nodes, trays, gpus = generator.randint(1, 3), generator.randint(1, 3), generator.choice((None, 1, 3))
    return Scenario(nccl, nodes, machine=generator.choice(DOMAINS), trays=trays, gpus_per_node=gpus)


def _sharing(nccl: str, generator: random.Random) -> Scenario:
    """Several ranks on a GPU, which older releases refuse."""
    described = _whole(nccl, generator)
    return replace(described, nodes=min(described.nodes, 3), gpus_per_node=generator.randint(1, 2), ranks_per_gpu=2)


def draw(kind: str, rank: int, ranks: int, generator: random.Random) -> Calls:
    """The calls of one rank."""
    return KINDS[kind](rank, ranks, generator)


def _both(peer: int, counts: tuple[int, int], dtype: DataType = DataType.int8) -> Calls:
    functions = (PeerCall.Send, PeerCall.Recv)
    return [ExchangeCall(function, dtype, count, peer) for function, count in zip(functions, counts, strict=True)]


def _size(generator: random.Random, most: float = 34.0) -> int:
    return generator.choice((0, 1, 4096)) if generator.random() < 0.05 else int(2 ** generator.uniform(0, most))


def _alone(rank: int, ranks: int, generator: random.Random) -> Calls:
    peer = generator.choice([each for each in range(ranks) if each != rank])
    return [ExchangeCall(generator.choice((PeerCall.Send, PeerCall.Recv)), DataType.int8, _size(generator), peer)]


def _all_to_all(rank: int, ranks: int, generator: random.Random) -> Calls:
    size = _size(generator, 31)
    return [call for peer in range(ranks) for call in _both(peer, (size, size))]


def _all_to_all_v(rank: int, ranks: int, generator: random.Random) -> Calls:
    middle = generator.uniform(0, 28)
    sizes = [int(2 ** generator.uniform(middle - 4, middle + 4)) for _ in range(2 * ranks)]
    return [call for peer in range(ranks) for call in _both(peer, (sizes[2 * peer], sizes[2 * peer + 1]))]


def _ring(rank: int, ranks: int, generator: random.Random) -> Calls:
    size = _size(generator)
    there, back = (ExchangeCall(call, DataType.int8, size, (rank + away) % ranks) for call, away in _RING)
    return [there, back]


_RING = ((PeerCall.Send, 1), (PeerCall.Recv, -1))


def _pipeline(rank: int, ranks: int, generator: random.Random) -> Calls:
    size, calls = _size(generator, 30), Calls()
    for _ in range(generator.randint(1, 8)):
        if rank + 1 < ranks:
            calls.append(ExchangeCall(PeerCall.Send, DataType.float16, size, rank + 1))
        if rank > 0:
            calls.append(ExchangeCall(PeerCall.Recv, DataType.float16, size, rank - 1))
    return calls


def _random(rank: int, ranks: int, generator: random.Random) -> Calls:
    calls, middle = Calls(), generator.uniform(0, 34)
    for _ in range(generator.choice((2, 10, 100, 400))):
        peer = generator.randrange(ranks)
        both = _both(peer, (min(_size(generator), int(2**middle)), min(_size(generator), int(2**middle))))
        calls += both if peer == rank else [generator.choice(both)]
    return calls


def _function(function: PeerCall) -> Callable[[int, int, random.Random], Calls]:
    def drawn(rank: int, ranks: int, generator: random.Random) -> Calls:
        dtype = generator.choice(list(DataType)[:10])
        return [
            ExchangeCall(function, dtype, _size(generator, 27), generator.randrange(ranks))
            for _ in range(generator.choice((1, 1, 3)))
        ]

    return drawn


KINDS: Mapping[str, Callable[[int, int, random.Random], Calls]] = {
    "alone": _alone,
    "all-to-all": _all_to_all,
    "all-to-all-v": _all_to_all_v,
    "ring": _ring,
    "pipeline": _pipeline,
    "random": _random,
    "ncclAlltoAll": _function(PeerCall.AllToAll),
    "ncclGather": _function(PeerCall.Gather),
    "ncclScatter": _function(PeerCall.Scatter),
}
