"""A libnccl for aarch64 beside that for x86-64: constants, defaults of variables, fused instructions, the model itself.

Functions of the library for aarch64 are run by qemu (``call_libnccl.c``), on communicators drawn at random.
"""

import os
import random
import re
import shutil
import struct
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from elftools.elf.elffile import ELFFile

from tuner.base.files import cache_folder
from tuner.oracle import symbols
from tuner.oracle.symbols import Symbols

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
