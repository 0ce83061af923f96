"""A libnccl for aarch64 beside that for x86-64: constants, defaults of variables, fused instructions, the model itself.

Functions of the library for aarch64 are run by qemu (``call_libnccl.c``), on communicators drawn at random.
"""

import contextlib
import json
import os
import random
import re
import shutil
import struct
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
from elftools.elf.elffile import ELFFile

from tuner.base.errors import BadInput
from tuner.base.files import cache_folder
from tuner.base.names import Algorithm, Protocol
from tuner.machine.graphs import EMPTY
from tuner.oracle import symbols
from tuner.oracle.messages import Symbols
from tuner.scenario import Scenario
from tuner.scenario.resolved import ResolvedScenario

PROGRAM = Path(__file__).with_name("call_libnccl.c")
CROSS, QEMU, DISASSEMBLER = "aarch64-linux-gnu-gcc", "qemu-aarch64", "aarch64-linux-gnu-objdump"
THERE = (QEMU, "-L", "/usr/aarch64-linux-gnu")
AARCH64_LIBRARIES = cache_folder() / "aarch64"  # RELEASE.so, as tests/scripts/fetch_arm.py fetches them
RUN_BY_TESTS = "2.28.9"
NOT_OURS = re.compile(r"__func__|nvtx|Nvtx|cuda|cudart|fatbin|3std|__PRETTY_FUNCTION__|^\.")
FUSED = re.compile(r"\t(fn?m(?:add|sub)|fml[as])\t")
FUNCTION = re.compile(r"^[0-9a-f]+ <(.*)>:")
PARAMETER = re.compile(r"^_Z\d+ncclParam\w+v$")
ARM = 3  # NCCL_TOPO_CPU_ARCH_ARM
NVLINK, PCI = 1, 4  # LINK_NVL and a type that is not: the model asks for no other
SIZES = tuple(1 << power for power in range(3, 35))
LATENCIES = Path(__file__).parents[1] / "golden" / "arm" / "latencies.json"
RECORDED = "2.28.9"  # the release whose latencies LATENCIES has, of
RECORDED_MACHINES = {"alps": (1, 2, 5, 13, 100), "gh200-4x": (2, 3, 7, 12, 33, 48, 64), "gb200-nvl72": (2, 3)}
MACHINES = {"alps": (1, 2, 4, 16), "gh200-4x": (1, 2, 4, 16), "gb200-nvl72": (1, 2, 4)}  # of the last, domains
SEED = 18
COMPARED = ("latencies", "bandwidths", "times", "picks")
COUNTS = ("communicators", *(f"{what}{which}" for what in COMPARED for which in ("", "_different")))
WRONG = ("constants_different", "variables_different", "bandwidths_different", "picks_different", "more_than_last_bit")


@dataclass(frozen=True, slots=True)
class Build:
    """One libnccl, and the command before a script of calls into it."""

    library: Path
    symbols: Symbols
    command: tuple[str, ...]

    def call(self, script: Iterable[str]) -> list[str]:
        """What the calls of a script print, line by line."""
        env = {key: value for key, value in os.environ.items() if not key.startswith("NCCL_")} | {"HOME": "/nowhere"}
        command = [*self.command, str(self.library.resolve()), f"{self.symbols.anchor[1]:x}"]
        ran = subprocess.run(command, input="\n".join(script), env=env, text=True, capture_output=True, check=True)
        return ran.stdout.split("\n")[:-1]

    def address(self, function: str) -> str:
        """Where a function is, as scripts have it."""
        return f"{self.symbols.functions[function][0][0]:x}"


def builds(x86: Path, aarch64: Path, folder: Path) -> tuple[Build, Build]:
    """Both libraries of a release, with a program in ``folder`` for each."""
    made = []
    for library, compiler, before in ((x86, "cc", ()), (aarch64, CROSS, THERE)):
        program = folder / compiler
        subprocess.run([compiler, "-std=gnu11", "-O1", PROGRAM, "-ldl", "-o", program], check=True)
        made.append(Build(library, symbols.read(library), (*before, str(program))))
    return made[0], made[1]


def missing_tools() -> list[str]:
    """What is not installed of the cross compiler, its tools and qemu."""
    return [name for name in ("cc", CROSS, QEMU, DISASSEMBLER) if shutil.which(name) is None]


def constants(library: Path) -> dict[str, bytes]:
    """NCCL's arrays and structs of constants by symbol: those of .rodata and .data without a pointer in them."""
    with library.open("rb") as file:
        elf = ELFFile(file)
        sections = {number: elf.get_section(number) for number in range(elf.num_sections())}
        kept = {number: each for number, each in sections.items() if each.name in (".rodata", ".data")}
        content = {number: each.data() for number, each in kept.items()}
        relocations: Any = elf.get_section_by_name(".rela.dyn")
        pointers = np.sort([one["r_offset"] for one in relocations.iter_relocations()])
        table: Any = elf.get_section_by_name(".symtab")
        found: dict[str, bytes] = {}
        for symbol in table.iter_symbols():
            number, start, size = symbol["st_shndx"], symbol["st_value"], symbol["st_size"]
            if symbol["st_info"]["type"] != "STT_OBJECT" or number not in kept or not size:
                continue
            if NOT_OURS.search(symbol.name) or np.ptp(np.searchsorted(pointers, (start, start + size))):
                continue
            begin = start - kept[number]["sh_addr"]
            found[symbol.name] = content[number][begin : begin + size]
    return found


def fused(library: Path) -> Counter[str]:
    """Instructions that multiply and add with a single rounding, by function of NCCL's; aarch64 only."""
    command = [DISASSEMBLER, "-d", "--no-show-raw-insn", str(library)]
    listing = subprocess.run(command, text=True, capture_output=True, check=True).stdout
    found: Counter[str] = Counter()
    function = ""
    for line in listing.splitlines():
        if (start := FUNCTION.match(line)) is not None:
            function = symbols.own_name(start[1])
        elif FUSED.search(line) and "cudart" not in function:
            found[function] += 1
    return found


def defaults(build: Build) -> dict[str, int]:
    """What each variable is where it is not set, by the name of NCCL's function for it."""
    named = sorted(name for name in build.symbols.functions if PARAMETER.match(name))
    return dict(zip(named, map(int, build.call(f"call {build.address(name)}" for name in named)), strict=True))


@dataclass(frozen=True, slots=True)
class Drawn:
    """A communicator, by members of struct ncclComm, and of each algorithm's struct ncclTopoGraph."""

    comm: Mapping[str, int]
    graphs: Sequence[Mapping[str, float]]


def draw(algorithms: int, random_numbers: random.Random) -> Drawn:
    """A communicator beside ARM processors with values that searches find."""
    choose = random_numbers.choice
    nodes, local = choose((1, 2, 3, 4, 5, 8, 16, 32, 64)), choose((1, 2, 4, 8, 16))
    if nodes * local == 1:
        local = 4
    latency = choose((0.0, 0.0, 1.0, 1.3, 2.5, 10.0))
    graphs = [
        {
            "nChannels": choose((1, 2, 4, 6, 8, 12, 16, 24, 32)),
            "bwIntra": choose((3.0, 6.0, 10.0, 12.0, 15.0, 18.0, 20.0, 20.6, 22.0, 24.0, 30.0, 40.0, 45.1, 60.0, 90.0)),
            "bwInter": choose((3.0, 6.0, 10.0, 12.0, 15.0, 18.0, 20.0, 22.0, 24.0, 30.0, 40.0, 45.0, 48.0, 60.0)),
            "latencyInter": latency,
            "typeIntra": choose((NVLINK, NVLINK, PCI)),
            "typeInter": PCI,
            "sameChannels": choose((0, 1)),
            "pattern": choose((1, 3)),
        }
        for _ in range(algorithms)
    ]
    comm = {"nNodes": nodes, "nRanks": nodes * local, "rank": 1, "nChannels": int(graphs[1]["nChannels"])}
    comm |= {"cpuArch": ARM, "cpuVendor": 0, "minCompCap": choose((80, 90, 100)), "maxTreePattern": choose((1, 3))}
    return Drawn(comm, graphs)


@dataclass(frozen=True, slots=True)
class Model:
    """What a build computed: latencies and bandwidths [collective, algorithm, protocol]; times [..., size], us."""

    latencies_us: np.ndarray
    bandwidths_gbs: np.ndarray
    times_us: np.ndarray


def model(build: Build, drawn: Sequence[Drawn]) -> list[Model]:
    """NCCL's own tables of each communicator, by ncclTopoTuneModel, and the times by ncclTopoGetAlgoTime.

    Releases that compute times of a struct ncclInfo (before 2.22) give none.
    """
    dims = build.symbols.comm.members["latencies"].dims
    of_comm = any("ncclTopoGetAlgoTime" in name and "P8ncclComm" in name for name in build.symbols.functions)
    cells = [(*cell, size) for cell in np.ndindex(*dims) for size in SIZES] if of_comm else []
    script = [f"new {build.symbols.system.bytes}", "new 8", "new 8"]
    for number, each in enumerate(drawn):
        script += _script(build, each, 3 + number * (2 + dims[1]), cells)
    printed = [line for line in build.call(script) if line.startswith("= ")]
    rows = np.split(np.concatenate([_floats(line[2:]) for line in printed]), len(drawn))
    count = int(np.prod(dims))
    return [
        Model(row[:count].reshape(dims), row[count : 2 * count].reshape(dims), row[2 * count :].reshape(*dims, -1))
        for row in rows
    ]


def _script(build: Build, each: Drawn, block: int, cells: Iterable[tuple[int, ...]]) -> Iterator[str]:
    """Lays out one communicator from ``block`` on, has its tables made, and prints them and the times of ``cells``."""
    comm, graph, pointers = build.symbols.comm, build.symbols.graph, block + 1
    yield from (f"new {comm.bytes}", f"new {8 * len(each.graphs)}", f"point {block} {comm.members['topo'].offset} 0")
    for name, value in each.comm.items():
        if name in comm.members:
            yield f"set {block} {comm.members[name].offset} {struct.pack('<i', value).hex()}"
    for number, values in enumerate(each.graphs):
        own = pointers + 1 + number
        yield from (f"new {graph.bytes}", f"point {pointers} {8 * number} {own}")
        for name, of_graph in values.items():
            kind = "<f" if graph.members[name].type == "float32" else "<i"
            yield f"set {own} {graph.members[name].offset} {struct.pack(kind, of_graph).hex()}"
    if "ncclTopoInitTunerConstants" in build.symbols.functions:
        yield f"call {build.address('ncclTopoInitTunerConstants')} b{block}"
    capability = each.comm["minCompCap"]
    yield f"call {build.address('ncclTopoTuneModel')} b{block} {capability} {capability} b{pointers}"
    for name in ("latencies", "bandwidths"):
        member = comm.members[name]
        yield f"print {block} {member.offset} {4 * int(np.prod(member.dims))}"
    for cell in cells:
        yield f"call {build.address('ncclTopoGetAlgoTime')} b{block} {' '.join(map(str, cell))} 1 b1 b2"
        yield "print 1 0 4"


def _floats(text: str) -> np.ndarray:
    return np.frombuffer(bytes.fromhex(text), "<f4")


def compare(name: str, x86: Build, aarch64: Build, communicators: int) -> dict[str, Any]:
    """Counts of a release as docs/arm.toml has them: tables and picks of so many random communicators, and the rest."""
    here, there = constants(x86.library), constants(aarch64.library)
    named = {symbol for symbol in here.keys() | there.keys() if not symbol.startswith("CSWTCH")}  # made by the compiler
    unset, unset_there = defaults(x86), defaults(aarch64)
    variables = unset.keys() | unset_there.keys()
    row: dict[str, Any] = {
        "sha256": sha256(aarch64.library.read_bytes()).hexdigest(),
        "constants": len(named),
        "constants_bytes": sum(len(here.get(symbol, b"")) for symbol in named),
        "constants_different": sum(here.get(symbol) != there.get(symbol) for symbol in named),
        "variables": len(variables),
        "variables_different": sum(unset.get(variable) != unset_there.get(variable) for variable in variables),
        "fused": dict(sorted(fused(aarch64.library).items())),
    }
    return row | models(name, x86, aarch64, communicators)


def models(name: str, x86: Build, aarch64: Build, communicators: int) -> dict[str, int]:
    """Tables and picks of both builds, where a release has one function for them (before 2.31)."""
    row = dict.fromkeys((*COUNTS, "more_than_last_bit"), 0)
    if "ncclTopoTuneModel" not in x86.symbols.functions:
        return row
    algorithms, numbers = x86.symbols.comm.members["latencies"].dims[1], random.Random(SEED)
    drawn = [draw(algorithms, numbers) for _ in range(communicators)] + of_machines(name, algorithms)
    for here, there in zip(model(x86, drawn), model(aarch64, drawn), strict=True):
        one, other = picks(here), picks(there)
        row["communicators"] += 1
        row["latencies"] += int((here.latencies_us != 0).sum())
        row["latencies_different"] += int((here.latencies_us != there.latencies_us).sum())
        row["more_than_last_bit"] += int((last_bits(here.latencies_us, there.latencies_us) > 1).sum())
        row["bandwidths"] += int((here.bandwidths_gbs != 0).sum())
        row["bandwidths_different"] += int((here.bandwidths_gbs != there.bandwidths_gbs).sum())
        row["times"] += int((here.times_us > 0).sum())
        row["times_different"] += int((here.times_us != there.times_us).sum())
        row["picks"] += one.size
        row["picks_different"] += int((one != other).sum())
    return row


def last_bits(here: np.ndarray, there: np.ndarray) -> Any:
    """How many floats lie between the two."""
    return np.abs(here.view("<i4").astype(np.int64) - there.view("<i4"))


def picks(model: Model) -> np.ndarray:
    """The combination with the least time [collective, size], of those that have a bandwidth."""
    times = np.moveaxis(np.where(model.times_us > 0, model.times_us, np.inf), -1, 1)
    return times.reshape(*times.shape[:2], times.shape[2] * times.shape[3]).argmin(axis=-1) if times.size else times


def of_machines(name: str, algorithms: int) -> list[Drawn]:
    """The catalogue's machines with ARM processors, as the emulator has them, where the release runs on them."""
    made = []
    for machine, each in MACHINES.items():
        for nodes in each:
            with contextlib.suppress(BadInput):
                made.append(of_machine(name, machine, nodes, algorithms))
    return made


def record(aarch64: Build) -> None:
    """Writes the latencies of a few communicators as the build for aarch64 has them."""
    each = [(machine, nodes) for machine, several in RECORDED_MACHINES.items() for nodes in several]
    made = model(aarch64, [of_machine(RECORDED, *one, len(Algorithm)) for one in each])
    lines = (
        json.dumps(
            {"machine": machine, "nodes": nodes, "latencies_us": table.latencies_us.astype("<f4").tobytes().hex()}
        )
        for (machine, nodes), table in zip(each, made, strict=True)
    )
    LATENCIES.parent.mkdir(exist_ok=True)
    LATENCIES.write_text("[\n" + ",\n".join(lines) + "\n]\n")


def recorded() -> Iterator[tuple[str, int, np.ndarray]]:
    """Machine, nodes and latencies [collective, algorithm, protocol], us, as :func:`record` wrote them."""
    for one in json.loads(LATENCIES.read_text()):
        table = np.frombuffer(bytes.fromhex(one["latencies_us"]), "<f4")
        yield one["machine"], one["nodes"], table.reshape(-1, len(Algorithm), len(Protocol))


def of_machine(name: str, machine: str, nodes: int, algorithms: int) -> Drawn:
    """A communicator of one machine, all GPUs."""
    made = ResolvedScenario(Scenario(name, nodes, machine=machine)).views[0]
    graphs = [made.graphs.get(algorithm, EMPTY) for algorithm in list(Algorithm)[:algorithms]]
    comm = {"nNodes": made.nodes, "nRanks": made.ranks, "rank": 1, "nChannels": made.graphs[Algorithm.Ring].channels}
    comm |= {"cpuArch": ARM, "cpuVendor": 0, "minCompCap": made.min_comp_cap}
    comm["maxTreePattern"] = 0 if made.tree_pattern is None else int(made.tree_pattern)
    return Drawn(
        comm,
        [
            {
                "nChannels": graph.channels,
                "bwIntra": graph.bw_intra_gbs,
                "bwInter": graph.bw_inter_gbs,
                "latencyInter": graph.latency_inter_us,
                "typeIntra": NVLINK if graph.type_intra == "NVL" else PCI,
                "typeInter": PCI,
                "sameChannels": int(graph.same_channels),
                "pattern": 0 if graph.pattern is None else int(graph.pattern),
            }
            for graph in graphs
        ],
    )
