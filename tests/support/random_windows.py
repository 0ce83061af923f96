"""Calls on registered buffers and on windows of every kind, on random machines, types, sizes and variables."""

from dataclasses import replace
from random import Random

from tuner import release
from tuner.base.errors import BadInput, NoAlgorithm
from tuner.base.names import SYMMETRIC, Buffers, Collective, DataType, Op, Sides, WindowFlag, Windows
from tuner.emulator.request import Request
from tuner.emulator.rules.symmetric_variables import WITHOUT_WINDOWS
from tuner.emulator.selection import Selection
from tuner.scenario import Scenario

# A domain is one node; the others have one to three nodes, between which only some networks let GPUs start transfers.
MACHINES = {"dgx-h100": 8, "dgx-b200": 8, "dgx-a100": 8, "hgx-h100-amd": 8, "a100-4x-1nic": 4, "gb200-nvl72": 4}
# Of which NVLink does not join all GPUs.
FARTHER = {"pcie-l40s": 8, "pcie-l40s-no-p2p": 8, "pcie-rtxpro6000": 8, "dgx-1v": 8, "ws-2x-a6000": 2}
ALL_MACHINES = MACHINES | FARTHER
COLLECTIVES = (Collective.AllGather, Collective.AllReduce, Collective.ReduceScatter, Collective.Broadcast)
VALUES = {
    "NCCL_SYM_CTAS": ("0", "1", "2", "7", "16", "64", "65", "-3", "4294967299"),
    "NCCL_SYM_CE_THRESHOLD": ("0", "1", "4096", "100000", "-1", ""),
    "NCCL_SYM_TMA_ENABLE": ("0", "1"),
    "NCCL_SYM_NOWIN_ENABLE": ("0", "1"),
    "NCCL_WIN_ENABLE": ("0", "1"),
    "NCCL_WIN_STRIDE": ("274877906944", "-1"),
    "NCCL_LOCAL_REGISTER": ("0", "1"),
    "NCCL_ALGO": ("Ring", "allreduce:tree", "^Ring;allgather:nvls"),
    "NCCL_PROTO": ("LL", "allgather:Simple"),
    "NCCL_MIN_CTAS": ("2", "5", "33"),
    "NCCL_MAX_CTAS": ("1", "6", "20"),
    "NCCL_NVLS_ENABLE": ("0", "1"),
    "NCCL_SYM_GIN_KERNELS_ENABLE": ("0", "1"),
    "NCCL_SYM_RS_GIN_CHUNK_SIZE": ("1", "100000", "1048576", "0", "-5", "3000000000"),
    "NCCL_NUM_RMA_CTX": ("0", "1", "-1"),
    "NCCL_CROSS_NIC": ("0", "1", "2"),
    "NCCL_P2P_LEVEL": ("LOC", "NVL", "PIX", "PXB", "SYS"),
    "NCCL_P2P_DISABLE": ("1",),
    "NCCL_IGNORE_DISABLED_P2P": ("0", "1", "2"),
    "NCCL_CTA_POLICY": ("0", "1", "2", "3", "zero", "EFFICIENCY|zero"),
}
WITH_WINDOWS = [name for name in release.names() if release.load(name).rules.non_classic_path != "classic_path_only"]
SYM_KERNEL, GIN_TYPE = "NCCL_SYM_KERNEL", "NCCL_GIN_TYPE"
UNKNOWN = ("^", "", "none such", "allreduce_agxll_r", "AllGather_LL,AllGather_ST")  # as releases before lists read them
SIDES = (Sides.both, Sides.both, Sides.send, Sides.receive)
SYMMETRIC_FLAGS = (WindowFlag.COLL_SYMMETRIC, WindowFlag.COLL_SYMMETRIC | WindowFlag.STRICT_ORDERING)
FLAGS = (*SYMMETRIC_FLAGS, *SYMMETRIC_FLAGS, WindowFlag.DEFAULT, WindowFlag.STRICT_ORDERING, WindowFlag.GIN_ONLY)
BUFFERS = (Buffers.window, Buffers.window, Buffers.window, Buffers.plain, Buffers.registered)

# Communicators whose buffers are registered.
REGISTERING = (
    *("dgx-1v", "dgx-a100", "dgx-h100", "pcie-l40s", "pcie-l40s-no-p2p", "pcie-l40s-4nic"),
    *("a100-4x-1nic", "gh200-4x"),
)
SHAPES = ((1, 2), (1, 4), (1, 8), (2, 1), (3, 1), (2, 4))  # nodes, GPUs of each
RING = {"NCCL_ALGO": "Ring", "NCCL_PROTO": "Simple"}
CHANNELS = {"NCCL_MIN_NCHANNELS": "20", "NCCL_MAX_NCHANNELS": "20"}
OF_REGISTERED: tuple[dict[str, str], ...] = (  # variables that reach registered buffers
    RING,
    RING | CHANNELS,
    {"NCCL_ALGO": "Ring,Tree"} | CHANNELS,
    {"NCCL_LOCAL_REGISTER": "0"},
    {"NCCL_GRAPH_REGISTER": "0"},
    {"NCCL_MIN_CTAS": "3"},
    {"NCCL_NET_GDR_LEVEL": "SYS"},
    {"NCCL_NET_GDR_LEVEL": "LOC"},
    {"NCCL_NET_GDR_READ": "0"},
    {"NCCL_NET_GDR_C2C": "0"},
    RING | CHANNELS | {"NCCL_P2P_LEVEL": "PIX"},
    RING | CHANNELS | {"NCCL_P2P_LEVEL": "SYS"},
    {"NCCL_ALGO": "Ring,Tree"} | CHANNELS | {"NCCL_P2P_DISABLE": "1"},
)
ROOM = {"NCCL_WORK_ARGS_BYTES": ("600", "1000", "2000"), "NCCL_WORK_FIFO_BYTES": ("4096", "65536")}

SIZES = 120


def kernels(name: str, draw: Random) -> str:
    """A value of NCCL_SYM_KERNEL: one name, or in releases with lists any list."""
    of_release = release.load(name)
    names = of_release.symmetric.names
    if of_release.rules.symmetric_requested == "one_kernel_or_all":
        return draw.choice((*names, *names, *UNKNOWN))
    of_one = [f"{draw.choice(('', '^'))}{','.join(draw.sample(names, draw.randint(1, 5)))}" for _ in range(2)]
    of_two = f"{of_one[0]};{draw.choice(COLLECTIVES).name.lower()}:{of_one[1]}"
    return draw.choice((draw.choice(names), of_one[0], of_two, f"{draw.choice(COLLECTIVES).name}:{of_one[0]}", ""))


def drawn(name: str, draw: Random) -> tuple[Scenario, Request, list[int]]:
    """A scenario with some variables, one request, and sizes of it, as NCCL's nBytes."""
    machine = draw.choice((*MACHINES, *MACHINES, *FARTHER))
    names = draw.sample(list(VALUES), draw.randint(0, 3))
    environment = {variable: draw.choice(VALUES[variable]) for variable in names}
    if draw.random() < 0.4:
        environment[SYM_KERNEL] = kernels(name, draw)
    nodes, trays = draw.choice((1, 1, 1, 2, 2, 3)), draw.randint(1, 3) if machine.endswith("nvl72") else None
    gpus = draw.randint(1 if nodes > 1 or trays else 2, ALL_MACHINES[machine])
    if nodes > 1:
        environment[GIN_TYPE] = draw.choice(("0", "3", "3"))
    of_process = draw.choice((1, 1, 1, 2, gpus))
    scenario = Scenario(
        nccl=name,
        machine=machine,
        nodes=nodes,
        trays=trays,
        gpus_per_node=gpus,
        gpus_per_process=of_process if gpus % of_process == 0 else 1,
        environment=environment,
    )
    op = draw.choice((Op.sum, Op.sum, Op.sum, Op.avg, Op.max))
    kind = draw.choice(BUFFERS)
    windows = drawn_windows(name, draw) if kind is Buffers.window else SYMMETRIC
    request = Request(draw.choice(COLLECTIVES), draw.choice(list(DataType)), op, buffers=kind, windows=windows)
    unit = request.unit_bytes(nodes * (trays or 1) * gpus)
    sizes = sorted({unit * max(1, int(2 ** draw.uniform(0, 33.9)) // unit) for _ in range(SIZES)})
    return scenario, request, sizes


def registering(name: str, draw: Random) -> Scenario:
    """A communicator of a release, every other one with variables."""
    (nodes, gpus), machine = draw.choice(SHAPES), draw.choice(REGISTERING)
    settings = draw.choice(OF_REGISTERED) if draw.random() < 0.5 else {}
    gpus = min(gpus, 4) if "4x" in machine else gpus
    own = Scenario(name, nodes, machine=machine, gpus_per_node=gpus, environment=settings)
    return replace(own, gpus_per_process=min(gpus, draw.choice((1, 2, 8))))


def of_groups(name: str, draw: Random) -> Scenario:
    """A communicator of a release for groups on any buffers: variables of windows, and of what a kernel holds, too."""
    machine = draw.choice((*REGISTERING, *MACHINES, *MACHINES))
    nodes, gpus = draw.choice((1, 1, 1, 2, 2, 3)), draw.choice((1, 2, 4, 4, 8, 8))
    gpus = min(gpus, 4) if "4x" in machine or "nvl72" in machine else gpus
    gpus = 2 if nodes == 1 and gpus == 1 else gpus
    environment = dict(draw.choice(OF_REGISTERED)) if draw.random() < 0.3 else {}
    variables = {**VALUES, **ROOM}  # up to 2.21 nobody empties the ring of works here
    environment |= {each: draw.choice(variables[each]) for each in draw.sample(list(variables), draw.randint(0, 2))}
    if draw.random() < 0.25:
        environment[SYM_KERNEL] = kernels(name, draw)
    if draw.random() < 0.2:
        environment[WITHOUT_WINDOWS] = "1"
    if nodes > 1:
        environment[GIN_TYPE] = draw.choice(("0", "3"))
    trays = draw.randint(1, 2) if machine.endswith("nvl72") else None
    per_process = draw.choice((1, 1, 1, 2))
    own = Scenario(name, nodes, machine=machine, trays=trays, gpus_per_node=gpus, environment=environment)
    return replace(own, gpus_per_process=per_process if gpus % per_process == 0 else 1)


def drawn_windows(name: str, draw: Random) -> Windows:
    """Of one side or both, with flags that the release has."""
    known = [of for of in FLAGS if all(flag.name in release.load(name).symmetric.window_flags for flag in of)]
    return Windows(draw.choice(SIDES), draw.choice(known))


def emulated(scenario: Scenario, request: Request, sizes: list[int]) -> bool:
    """Whether the emulator answers such calls; one without any algorithm is an answer."""
    try:
        selection = Selection(scenario.communicator())
        paths = selection.non_classic_paths(request, sizes)
    except (BadInput, NoAlgorithm):
        return False
    try:
        if None in paths:
            selection.classic_pick(request, sizes)
    except NoAlgorithm:
        return True
    except BadInput:
        return False
    return True
