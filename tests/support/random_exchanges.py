"""Groups of sends and receives for the tests: what people write, and what nobody would; the same for one seed."""

import random
from collections.abc import Callable, Mapping

from tuner.base.names import DataType, PeerCall
from tuner.emulator.exchange.plan import ExchangeCall

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
]


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
    "ncclAlltoAll": _function(PeerCall.AlltoAll),
    "ncclGather": _function(PeerCall.Gather),
    "ncclScatter": _function(PeerCall.Scatter),
}
