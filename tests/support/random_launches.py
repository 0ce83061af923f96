"""Random communicators and calls on them for launches in full; a seed is always the same ones."""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random

from tests.support.planned_communicators import hosts
from tuner import release
from tuner.base.errors import BadInput, NoAlgorithm, TunerError
from tuner.base.names import SYMMETRIC, Algorithm, Buffers, Collective, DataType, Op, Sides, WindowFlag, Windows
from tuner.emulator import full_launch
from tuner.emulator.group import Operation, not_emulated
from tuner.emulator.launches import Launch
from tuner.emulator.request import Request
from tuner.emulator.selection import Selection
from tuner.machine import catalogue
from tuner.oracle.api import Oracle
from tuner.oracle.conformance import launched_values
from tuner.oracle.conformance.check import reachable
from tuner.oracle.launches import IssuedCall
from tuner.scenario import Scenario
from tuner.scenario.p2p import heads_of

GATHERS = Request(Collective.AllGather, DataType.int8, Op.sum)
MOST_RANKS = 48
MOST_BYTES = 2**33
MOST_CALLS = 40
AT_ONCE = 100  # launches that libnccl is asked for together
MULTICASTING = ("dgx-h100", "dgx-h200", "dgx-b200", "aws-p5", "azure-nd-h100-v5", "hgx-h100-amd")
DOMAINS = ("gb200-nvl72", "aws-p6e-gb200")
ONE_RANK_PER_NODE = 0.25

# Forced algorithm: None leaves the choice to NCCL.
ALGORITHMS: tuple[Algorithm | None, ...] = (None, *Algorithm)
SETTINGS = (
    *({"NCCL_BUFFSIZE": text} for text in ("65536", "1048576", "1000000", "33554432")),
    *({"NCCL_LL_BUFFSIZE": text} for text in ("65536", "1000000")),
    *({"NCCL_LL128_BUFFSIZE": text} for text in ("491520", "1000000")),
    *({"NCCL_NVLS_CHUNKSIZE": text} for text in ("16384", "100000", "262144", "0x40000", "")),
    *({"NCCL_NVLSTREE_MAX_CHUNKSIZE": text} for text in ("16384", "65536", "300000")),
    *({"NCCL_MAX_NCHANNELS": text} for text in ("1", "2", "3", "7")),
    *({"NCCL_MIN_NCHANNELS": text} for text in ("5", "20", "24")),
    *({"NCCL_NTHREADS": text} for text in ("64", "128", "256")),
    *({"NCCL_MAX_CTAS": text} for text in ("4", "9")),
    {"NCCL_WORK_FIFO_DEPTH": "8192"},
    {"NCCL_WORK_ARGS_BYTES": "700"},
)
REACHING = (
    *({"NCCL_NET_GDR_LEVEL": text} for text in ("LOC", "PIX", "SYS")),
    *({"NCCL_NET_GDR_READ": text} for text in ("0", "1")),
    *({"NCCL_P2P_LEVEL": text} for text in ("LOC", "PIX", "PHB", "SYS")),
    *({name: "0"} for name in ("NCCL_LOCAL_REGISTER", "NCCL_GRAPH_REGISTER", "NCCL_NET_GDR_C2C")),
    {"NCCL_P2P_DISABLE": "1"},
    *({"NCCL_CROSS_NIC": "1", "NCCL_RUNTIME_CONNECT": text} for text in ("0", "1")),
    {"NCCL_RUNTIME_CONNECT": "0"},
)
FORCED = ("NCCL_ALGO", "NCCL_PROTO", "NCCL_COLLNET_ENABLE")
SIDES = (Sides.send, Sides.receive, Sides.both)
FLAGS = (WindowFlag.COLL_SYMMETRIC, WindowFlag.DEFAULT, WindowFlag.STRICT_ORDERING, WindowFlag.GIN_ONLY)
LEFT_OUT = ("never returns", "copy engines ", "where PAT connects several ranks", "one group with")
DIFFERENT_LINKS = ("pcie-l40s", "pcie-l40s-4nic", "gh200-4x", "ws-2x-a6000", "dgx-2")


@dataclass(frozen=True, slots=True)
class Drawn:
    """A communicator, and the calls on it of one rank: alone, and in groups."""

    scenario: Scenario
    rank: int
    selection: Selection
    alone: tuple[Operation, ...]
    groups: tuple[tuple[Operation, ...], ...]


def drawn(nccl: str, seed: str, alone: int, groups: int, buffers: Buffers = Buffers.plain) -> Iterator[Drawn]:
    """Without end: communicators of a release, with so many calls on each, and more where there are no groups."""
    random = Random(f"{seed} {nccl}")
    while True:
        scenario = _scenario(nccl, random)
        try:
            rank = random.choice((0, scenario.ranks - 1, random.randrange(scenario.ranks)))
            if buffers is not Buffers.plain:
                scenario = _reaching_registered_buffers(scenario, random)
                scenario = _of_symmetric_kernels(scenario, random) if buffers is Buffers.window else scenario
                rank = min(rank, scenario.ranks - 1)
            selection = Selection(scenario.resolve().view_of(rank))
            selection.non_classic_paths(replace(GATHERS, buffers=buffers), [MOST_BYTES])  # or it is refused
            assert scenario.resolve().connected.ranks
            scenario.oracle_configuration()
        except TunerError:
            continue
        if buffers in (Buffers.registered, Buffers.graph) and selection.communicator.collnet:
            continue  # its launches in full are refused
        kinds = [kind for kind in _kinds(selection) if selection.usable(kind) and _has_forced(selection, kind)]
        if buffers is not Buffers.plain:
            windows = _windows(nccl, random) if buffers is Buffers.window else SYMMETRIC
            in_place = random.random() < 0.4 and windows.sides is Sides.both
            kinds = [replace(kind, buffers=buffers, in_place=in_place, windows=windows) for kind in kinds]
            kinds = _leaving(selection, kinds) or kinds if random.random() < 0.7 else kinds
        if not kinds:
            continue
        grouped = not_emulated(selection, kinds) is None
        calls = tuple(_call(selection, random.choice(kinds), random) for _ in range(alone if grouped else 4 * alone))
        in_groups = [_group(selection, kinds, random) for _ in range(groups if grouped else 0)]
        yield Drawn(scenario, rank, selection, calls, tuple(in_groups))


def compared(communicator: Drawn) -> Iterator[tuple[tuple[Operation, ...], Launch, dict[str, launched_values.Both]]]:
    """Each call and each group with what it is launched as here, and every value, here and in libnccl.

    What copy engines do is left out, and groups that are refused; libnccl never returns from some, and would
    fill the memory with empty plans.
    """
    resolved, rank = communicator.scenario.resolve(), communicator.rank
    with Oracle(communicator.scenario.oracle_configuration(), timeout_s=600) as oracle:
        for groups in in_batches((*((each,) for each in communicator.alone), *communicator.groups), AT_ONCE):
            planned = {group: _launch(communicator, group, lambda: heads_of(resolved, rank)) for group in groups}
            returning = {group: ours for group, ours in planned.items() if ours is not None}
            of = groups[0][0].request
            launched = oracle.launch_groups_in_full(
                [[issued(communicator.selection, each) for each in group] for group in returning],
                rank,
                of.buffers,
                of.windows,
            )
            for (operations, ours), theirs in zip(returning.items(), launched, strict=True):
                yield operations, ours, launched_values.compare(ours, theirs)


def _launch(communicator: Drawn, group: tuple[Operation, ...], heads: full_launch.HeadsOf) -> Launch | None:
    try:
        return full_launch.launch(communicator.selection, group, heads)
    except NoAlgorithm:  # a symmetric kernel that NCCL picks and does not have
        return None
    except BadInput as error:
        if any(words in str(error) for words in LEFT_OUT):
            return None
        raise


def in_batches(groups: Sequence[tuple[Operation, ...]], most: int) -> Iterator[Sequence[tuple[Operation, ...]]]:
    """All of them, at most so many at once."""
    return (groups[start : start + most] for start in range(0, len(groups), most))


def issued(selection: Selection, operation: Operation) -> IssuedCall:
    """A call as libnccl is asked for it."""
    request, unit_bytes = operation.request, operation.request.unit_bytes(selection.communicator.ranks)
    count = operation.bytes // unit_bytes
    return IssuedCall(request.collective, request.dtype, count, operation.root, request.op, request.in_place)


def _scenario(nccl: str, random: Random) -> Scenario:
    algorithm = random.choice(ALGORITHMS)
    settings: dict[str, str] = {}
    for each in random.sample(SETTINGS, k=random.choice((0, 0, 1, 2))):
        settings |= each
    if algorithm is not None:
        settings["NCCL_ALGO"] = algorithm.name
    if algorithm in (Algorithm.Ring, Algorithm.Tree) and random.random() < 0.6:
        settings["NCCL_PROTO"] = random.choice(("LL", "LL128", "Simple"))
    needs_network = algorithm in (Algorithm.CollNetDirect, Algorithm.CollNetChain)
    if needs_network or (algorithm is Algorithm.NVLS and random.random() < 0.5):
        settings["NCCL_COLLNET_ENABLE"] = "1"
    machines = [
        name for name in hosts(nccl) if algorithm not in (Algorithm.NVLS, Algorithm.NVLSTree) or name in MULTICASTING
    ]
    machine = random.choice(machines)
    whole = catalogue.load(machine).gpus_per_node
    alone = algorithm is Algorithm.PAT and random.random() < 0.7
    gpus = (
        1 if alone or random.random() < ONE_RANK_PER_NODE else random.choice((whole, random.randint(2, max(whole, 2))))
    )
    gpus = min(gpus, whole)
    least = 2 if gpus == 1 or needs_network else 1
    most = max(least, min(MOST_RANKS // gpus, 12)) if catalogue.load(machine).topology.nets else 1
    nodes = random.choice((least, min(2, most), random.randint(least, max(least, most))))
    described = Scenario(nccl, nodes, machine=machine, gpus_per_node=gpus, collnet=True, environment=settings)
    return random.choice((_whole, _whole, _whole, _whole, _mixed, _of_domains, _sharing))(described, random)


def _reaching_registered_buffers(described: Scenario, random: Random) -> Scenario:
    """With variables that say who can read and write them, and on machines where not all can."""
    settings = random.choice(({}, {}, *REACHING))
    machine = random.choice((*[described.machine] * 3, *DIFFERENT_LINKS))
    variables = {**(described.environment or {}), **settings}
    if described.nodes > 1:
        variables["NCCL_GIN_TYPE"] = "0"
    if described.others or described.trays is not None:
        return replace(described, environment=variables)
    gpus = min(described.gpus_per_node or 1, catalogue.load(str(machine)).gpus_per_node)
    return replace(described, machine=machine, gpus_per_node=gpus, environment=variables)


def _of_symmetric_kernels(described: Scenario, random: Random) -> Scenario:
    """Half of them on one node, or between nodes whose network has GIN, where NCCL chooses."""
    if described.others or random.random() < 0.5:
        return described
    settings = {name: text for name, text in (described.environment or {}).items() if name not in FORCED}
    nodes = random.choice((1, 1, described.nodes)) if (described.gpus_per_node or 2) > 1 else described.nodes
    return replace(described, nodes=nodes, environment=settings | ({"NCCL_GIN_TYPE": "3"} if nodes > 1 else {}))


def _leaving(selection: Selection, kinds: list[Request]) -> list[Request]:
    """Those of which a symmetric kernel does some sizes."""
    leaving = []
    for kind in kinds:
        with contextlib.suppress(NoAlgorithm):  # a kernel that NCCL picks and does not have
            if any(path and path.kernel for path in selection.non_classic_paths(kind, [1 << 12, 1 << 22])):
                leaving.append(kind)
    return leaving


def _windows(nccl: str, random: Random) -> Windows:
    """A third of them symmetric ones of both buffers, of which alone there are groups."""
    known = release.load(nccl).symmetric.window_flags
    flags = random.choice([each for each in FLAGS if all(flag.name in known for flag in each)])
    return random.choice((SYMMETRIC, *[Windows(random.choice(SIDES), flags)] * 2))


def _whole(described: Scenario, random: Random) -> Scenario:
    return described


def _mixed(described: Scenario, random: Random) -> Scenario:
    """With other nodes behind: fewer GPUs, or another machine."""
    machine = random.choice((described.machine, "dgx-a100", "dgx-h100"))
    other = replace(described, machine=machine, nodes=random.randint(1, 2), gpus_per_node=random.randint(1, 4))
    return replace(described, nodes=min(described.nodes, 2), others=(other,))


def _of_domains(described: Scenario, random: Random) -> Scenario:
    """Hosts that NVLink joins."""
    machine = random.choice(DOMAINS)
    return replace(
        described, machine=machine, nodes=random.randint(1, 3), trays=random.randint(1, 4), gpus_per_node=None
    )


def _sharing(described: Scenario, random: Random) -> Scenario:
    """Several ranks on a GPU, which older releases refuse."""
    gpus = min(described.gpus_per_node or 1, 4)
    return replace(described, nodes=min(described.nodes, 3), gpus_per_node=gpus, ranks_per_gpu=2)


def _has_forced(selection: Selection, kind: Request) -> bool:
    """Whether there is a forced algorithm for the collective; up to 2.23 NCCL would take Ring otherwise."""
    communicator = selection.communicator
    forced = communicator.environment.text("NCCL_ALGO")
    return forced is None or Algorithm[forced] in communicator.rules.exists[kind.collective]


def _kinds(selection: Selection) -> list[Request]:
    communicator = selection.communicator
    types = tuple(DataType)[: communicator.release.limits.data_types]
    return [
        Request(collective, dtype, op)
        for collective in Collective
        for dtype in types
        for op in Op
        if op is Op.sum or not Request(collective, dtype, op).moves_only
    ]


def _call(selection: Selection, kind: Request, random: Random) -> Operation:
    nbytes = int(2 ** random.uniform(0, 33))
    if random.random() < 0.3:  # near where chunks and channels change
        nbytes = (1 << random.randint(8, 32)) + random.randint(-2, 2) * kind.unit_bytes(selection.communicator.ranks)
    size = reachable(kind, selection.communicator.ranks, min(max(nbytes, 1), MOST_BYTES))
    return Operation(kind, size, _root(selection, kind, random))


def _group(selection: Selection, kinds: list[Request], random: Random) -> tuple[Operation, ...]:
    among = random.choice((kinds, [random.choice(kinds)], random.sample(kinds, k=min(3, len(kinds)))))
    middle, spread = 2 ** random.uniform(8, 28), random.choice((0.0, 0.3, 3.0, 20.0))
    ranks, one = selection.communicator.ranks, random.randrange(selection.communicator.ranks)
    together = selection.communicator.release.exchange.broadcasts_together  # from several roots: tests of exchanges
    operations = list[Operation]()
    for kind in random.choices(among, k=random.randint(2, MOST_CALLS)):
        size = int(min(max(middle * 2 ** random.uniform(-spread, spread), 1), MOST_BYTES))
        root = one if together and kind.collective is Collective.Broadcast else _root(selection, kind, random)
        operations.append(Operation(kind, reachable(kind, ranks, size), root))
    return tuple(operations)


def _root(selection: Selection, kind: Request, random: Random) -> int:
    rooted = kind.collective in (Collective.Broadcast, Collective.Reduce)
    return random.randrange(selection.communicator.ranks) if rooted else 0
