"""What a release of aws-ofi-nccl's tuner answers on one communicator, by regions or by a model: algorithm, protocol,
channels and chunks.

Source: src/tuner/nccl_ofi_tuner.cpp, nccl_ofi_regions.cpp and nccl_ofi_model.cpp, v1.21.1, and the same files before.
"""

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tuner.base import breakpoints
from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput
from tuner.base.names import ALGO_PROTOS, AlgoProto, Algorithm, Collective, Protocol
from tuner.base.numerics import FloatArray, IntArray, SizeArray, log2i
from tuner.emulator.aws_ofi_nccl.regions import Region
from tuner.emulator.aws_ofi_nccl.release import NAME, ModelConstants, TunerRelease
from tuner.emulator.communicator import Comm
from tuner.emulator.request import Request
from tuner.emulator.rules import candidate
from tuner.emulator.tuner_plugin import CHUNKS_SINCE, OWN, ChunkQuestion, TunerAnswers, TunerQuestion

TYPE = "OFI_NCCL_TUNER_TYPE"
INTERNAL = "Internal"  # with this value, the tuner leaves everything to NCCL
RAILS = "OFI_NCCL_FORCE_NUM_RAILS"
NUMBERS = {"OFI_NCCL_TUNER_NUM_CHANNELS": 8, "OFI_NCCL_TUNER_NET_LATENCY": 20, "OFI_NCCL_TUNER_NET_COMP_OVERHEAD": 3}
VARIABLES = (TYPE, RAILS, *NUMBERS)
MASKS = ("NCCL_ALGO", "NCCL_PROTO")
OF_ALL_WORDS = {"internal": "internal", "model": "model"}
NVLS_CELLS = ((Algorithm.NVLS, Protocol.Simple), (Algorithm.NVLSTree, Protocol.Simple))
MODEL_CELLS = (
    *((algorithm, protocol) for algorithm in (Algorithm.Tree, Algorithm.Ring) for protocol in Protocol),
    (Algorithm.NVLSTree, Protocol.Simple),
)
TREE_LL128 = (Algorithm.Tree, Protocol.LL128)
PAT_SIMPLE = (Algorithm.PAT, Protocol.Simple)
MIB = 1 << 20
FEW = 64  # up to this number of sizes are looked up one by one
MOST_ASKED = 2**62  # the largest size, in bytes


@dataclass(frozen=True, slots=True)
class Decliner:
    """The reason why a tuner leaves everything to NCCL."""

    reason: str


@dataclass(frozen=True, slots=True)
class LoadedTuner:
    """The tuner on a communicator: the platform that it recognises, whether it uses regions or the model, and the
    interface."""

    platform: str
    kind: str  # "regions" or "model"
    interface: int  # the version in ncclTunerPlugin_v*
    by_name: bool  # NCCL runs the algorithm and protocol that the tuner names; there is no cost table


@dataclass(frozen=True, slots=True)
class AwsTuner:
    """One release of the tuner on machines of one product; ``variables`` are the plugin's own variables, OFI_NCCL_*."""

    release: TunerRelease
    product: str | None
    variables: Mapping[str, str]

    @property
    def title(self) -> str:
        """Name and version: ``aws-ofi-nccl 1.21.1``."""
        return f"{NAME} {self.release.name}"

    @property
    def settings(self) -> Mapping[str, str]:
        """NCCL's variables that the network plugin sets on the machine, unless they are set already."""
        return self.release.environment(self.product)

    def loaded(self, communicator: Comm) -> LoadedTuner | Decliner:
        """The tuner that answers on this communicator, or the reason why NCCL's own picks stay.

        BadInput if the communicator's init fails, or if the tuner does something undefined.
        """
        release, nccl = self.release, communicator.release
        if nccl.plugin is None:
            return Decliner(f"NCCL {nccl.name} loads no tuner")
        newest = nccl.plugin.api
        interface = _interface(release, newest)
        if interface is None:
            has = ", ".join(f"v{each}" for each in release.interfaces)
            return Decliner(f"NCCL {nccl.name} looks up no interface that it has ({has})")
        if masks := [name for name in MASKS if communicator.environment.values.get(name) is not None]:
            if interface in release.declines_with_masks_in:
                return Decliner(f"{' and '.join(masks)} set, which interface v{interface} cannot follow")
            if interface not in release.ignores_masks_in:
                raise BadInput(
                    f"{self.title} makes the init of NCCL {nccl.name} fail with {' and '.join(masks)}: remove them, or "
                    "use no tuner plugin"
                )
        if interface == 1 and not release.first_interface_works:
            raise BadInput(
                f"{self.title} reads memory that is not its own when NCCL {nccl.name} calls it by interface v1, so its "
                "picks cannot be told"
            )
        platform = release.platform(self.product)
        if platform is None:
            return Decliner("it has nothing for this machine" if self.product else "the machine's product is not known")
        kind = self._kind(platform)
        if isinstance(kind, Decliner):
            return kind
        return LoadedTuner(platform, kind, interface, by_name=newest < 3)

    def _kind(self, platform: str) -> "str | Decliner":
        release = self.release
        described = self.variables.get(TYPE)
        word = None if described is None else _type_word(release.type_variable, described)
        if word == "internal":
            return Decliner(f"{TYPE}={described}")
        if release.declines_with_rails and RAILS in self.variables:
            return Decliner(f"{RAILS} set")
        if "regions" not in release.kinds:
            return "model"
        return "model" if word == "model" and platform in release.model_platforms else "regions"

    def why_not(self, communicator: Comm) -> str | None:
        """The reason why NCCL's own picks stay on this communicator; None if the tuner decides."""
        loaded = self.loaded(communicator)
        if isinstance(loaded, Decliner):
            return loaded.reason
        least = self._least_nodes(loaded)
        if communicator.nodes < least:
            return f"it leaves communicators of less than {least} nodes to NCCL"
        if loaded.kind == "regions" and not any(self._regions(loaded, communicator, each) for each in Collective):
            return "it has no regions for this number of ranks per node"
        return None

    def ignored_by(self, release: str) -> str | None:
        """Always None: this tuner works through NCCL's interface in every release."""
        return None

    def answers(self, question: TunerQuestion) -> TunerAnswers:
        """The cells and channels that the tuner names, as NCCL uses them. BadInput as in :meth:`loaded`."""
        communicator, sizes = question.communicator, len(question.nbytes)
        loaded = self.loaded(communicator)
        if isinstance(loaded, Decliner) or communicator.nodes < self._least_nodes(loaded):
            return TunerAnswers.none(sizes)
        if loaded.kind == "model":
            return self._by_model(loaded, question)
        return self._by_regions(loaded, question)

    def region(self, communicator: Comm, collective: Collective, number: int) -> Region | None:
        """The region with this number, from 1, that decided an answer; None for 0."""
        loaded = self.loaded(communicator)
        if isinstance(loaded, Decliner) or not number:
            return None
        return self._regions(loaded, communicator, collective)[number - 1]

    def may_flicker(self, communicator: Comm, request: Request) -> bool:
        """Whether only rounding decides which sizes are in a region; this is so on two nodes up to aws-ofi-nccl
        1.13.1."""
        loaded = self.loaded(communicator)
        if isinstance(loaded, Decliner) or communicator.nodes < self._least_nodes(loaded) or loaded.kind == "model":
            return False
        regions = self._regions(loaded, communicator, request.collective)
        return any(region.may_flicker(communicator.ranks) for region in regions)

    def breaks(self, communicator: Comm, request: Request) -> Sequence[int]:
        """Sizes in bytes between which the tuner's answers change at most once."""
        loaded = self.loaded(communicator)
        if isinstance(loaded, Decliner) or communicator.nodes < self._least_nodes(loaded):
            return ()
        if loaded.kind == "model":
            return self._model_breaks(loaded, communicator, request)
        regions = self._regions(loaded, communicator, request.collective)
        found = {size for region in regions for size in region.breaks(communicator.ranks)}
        found |= {4 * MIB, 32 * MIB + 1, 64 * 1024 * communicator.nodes + 1, 128 * 1024 * communicator.nodes + 1}
        return sorted(found)

    def chunk_bytes(self, question: ChunkQuestion) -> int | None:
        """The chunk size that the plugin's getChunkSize returns for a channel, also on few nodes; None if the plugin
        has no such function."""
        communicator, chunk_bytes = question.communicator, question.chunk_bytes
        plugin = communicator.release.plugin
        interface = None if plugin is None else _interface(self.release, plugin.api)
        if not self.release.chunk_sizes or interface is None or interface < CHUNKS_SINCE:
            return None
        loaded = self.loaded(communicator)
        if isinstance(loaded, Decliner) or loaded.kind != "regions" or communicator.ranks != communicator.nodes:
            return chunk_bytes
        if loaded.platform not in self.release.chunk_sizes:
            return chunk_bytes
        kind = (question.request.collective, question.algo_proto)
        if kind == (Collective.AllReduce, TREE_LL128):
            return _tree_chunk_bytes(question.channel_bytes, communicator.nodes)
        if kind == (Collective.AllGather, PAT_SIMPLE):
            return _pat_chunk_bytes(question.channel_bytes, communicator.nodes)
        return chunk_bytes

    def chunks_follow_choices(self, communicator: Comm) -> bool:
        """Always False: the chunk sizes depend only on the call."""
        return False

    def _least_nodes(self, loaded: LoadedTuner) -> int:
        return 3 if loaded.kind == "model" else self.release.least_nodes

    def _regions(self, loaded: LoadedTuner, communicator: Comm, collective: Collective) -> tuple[Region, ...]:
        per_node = communicator.ranks / communicator.nodes
        return self.release.regions.get((loaded.platform, int(per_node), collective), ()) if per_node % 1 == 0 else ()

    def _by_regions(self, loaded: LoadedTuner, question: TunerQuestion) -> TunerAnswers:
        communicator, collective = question.communicator, question.request.collective
        regions = self._regions(loaded, communicator, collective)
        if not regions:
            return TunerAnswers.none(len(question.nbytes))
        cells = dict.fromkeys(region.algo_proto for region in regions)
        passed_over = {each: self._passed_over(loaded, question, each) for each in cells}
        if all(isinstance(each, bool) or each.all() or not each.any() for each in passed_over.values()):
            kept = tuple(at for at, region in enumerate(regions, 1) if not np.any(passed_over[region.algo_proto]))
            region_of = _region_of(regions, kept, communicator.ranks, question.nbytes)
        else:
            of_regions = [np.broadcast_to(passed_over[each.algo_proto], question.nbytes.shape) for each in regions]
            region_of = _first_region(regions, communicator.ranks, question.nbytes, of_regions)
        cell = np.array([OWN, *(ALGO_PROTOS.index(region.algo_proto) for region in regions)], np.int64)[region_of]
        channels = np.zeros(cell.shape, np.int64)
        if loaded.interface >= 3:
            self._set_channels(loaded, question, cell, channels)
        if loaded.interface < 3 and not loaded.by_name:  # NCCL's own adapter drops cells that NCCL ignores
            self._drop_ignored(question, cell)
        return TunerAnswers(cell, channels, region_of)

    def _passed_over(
        self, loaded: LoadedTuner, question: TunerQuestion, algo_proto: AlgoProto
    ) -> NDArray[np.bool_] | bool:
        """The sizes at which the tuner skips a region because of its cell: a mask [size], or one value for all
        sizes."""
        if loaded.interface >= 3:
            return algo_proto not in question.usable and question.ignored(algo_proto)
        if algo_proto[0] is Algorithm.PAT and self.release.passes_over_pat_by_name:
            return True
        return algo_proto[0] is Algorithm.NVLSTree and ~_nvls(loaded, question)

    def _set_channels(self, loaded: LoadedTuner, question: TunerQuestion, cell: IntArray, channels: IntArray) -> None:
        """Writes the numbers of channels that the tuner sets with some cells on some platforms."""
        communicator, nbytes = question.communicator, question.nbytes
        small = nbytes <= np.uint64(32 * MIB)
        if loaded.platform in self.release.tree_channels and communicator.ranks == 8 * communicator.nodes:
            at = small & (nbytes >= np.uint64(4 * MIB)) & (cell == ALGO_PROTOS.index(TREE_LL128))
            channels[at] = _tree_channels(nbytes[at].astype(np.int64), communicator.nodes)
        if loaded.platform in self.release.pat_channels and communicator.ranks == communicator.nodes:
            at = small & (cell == ALGO_PROTOS.index(PAT_SIMPLE))
            each = np.uint64(communicator.nodes * 65536)
            channels[at] = np.select([nbytes[at] <= each, nbytes[at] <= each * np.uint64(2)], [1, 2], 0)

    def _by_model(self, loaded: LoadedTuner, question: TunerQuestion) -> TunerAnswers:
        """The cells with the lowest time in the tuner's own model, whatever times NCCL has (nccl_ofi_model.cpp)."""
        answers = TunerAnswers.none(len(question.nbytes))
        cell = answers.cell
        if question.request.collective is not Collective.AllReduce:
            # With interface 3 and later, the tuner writes outside of NCCL's table, which is undefined; NCCL's own pick
            # is assumed.
            return answers
        communicator, nbytes = question.communicator, question.nbytes
        constants, numbers = self.release.model[loaded.platform], self._numbers()
        nvls = _nvls(loaded, question) if loaded.interface < 3 else np.ones(nbytes.shape, np.bool_)
        least_us = np.full(nbytes.shape, np.finfo(np.float32).max, np.float32)
        for algo_proto in MODEL_CELLS:
            costs_us = _model_us(constants, numbers, question, algo_proto)
            less = (costs_us >= 0) & (costs_us < least_us)
            if algo_proto[0] is Algorithm.NVLSTree:
                less &= nvls
            cell[less], least_us[less] = ALGO_PROTOS.index(algo_proto), costs_us[less]
        shape = (communicator.nodes, communicator.ranks)
        if self.release.model_quirk and loaded.platform in ("any", "p5") and shape == (16, 128):
            quirk = (nbytes > np.uint64(3 << 30)) & (nbytes <= np.uint64(5 << 30)) & nvls
            cell[quirk] = ALGO_PROTOS.index((Algorithm.NVLSTree, Protocol.Simple))
        if loaded.interface < 3 and not loaded.by_name:
            self._drop_ignored(question, cell)
        return answers

    def _model_breaks(self, loaded: LoadedTuner, communicator: Comm, request: Request) -> list[int]:
        """Sizes at which the lines of two cells cross, and at which the exception for 16 nodes begins and ends."""
        sizes = np.array([1, 1 << 40], np.uint64)
        question = TunerQuestion(communicator, request, sizes, lambda _: np.zeros(2, np.float32))
        constants, numbers = self.release.model[loaded.platform], self._numbers()
        lines = []
        for algo_proto in MODEL_CELLS:
            first, last = _model_us(constants, numbers, question, algo_proto).tolist()
            lines.append((first, (last - first) / float(1 << 40)))
        places = {3 << 30, (3 << 30) + 1, 5 << 30, (5 << 30) + 1}
        for latency, slope in lines:
            for other, steeper in lines:
                if steeper != slope and 0 < (size := round((latency - other) / (steeper - slope))) < MOST_ASKED:
                    places |= {size, size + 1}
        return sorted(places)

    def _drop_ignored(self, question: TunerQuestion, cell: IntArray) -> None:
        for index in np.unique(cell[cell != OWN]).tolist():
            cell[(cell == index) & question.ignored(ALGO_PROTOS[index])] = OWN

    def _numbers(self) -> dict[str, int]:
        return {name: int(self.variables.get(name, value)) for name, value in NUMBERS.items()}


def _first_region(
    regions: Sequence[Region], ranks: int, nbytes: SizeArray, passed_over: Sequence[NDArray[np.bool_]] = ()
) -> IntArray:
    """The number of the first region, from 1, that contains each size and is not skipped, [size]; 0 if no region
    does."""
    plane = regions[0].plane
    at_bytes, at_ranks = plane.scaled_sizes(nbytes), plane.scaled(float(ranks))
    region_of, undecided = np.zeros(nbytes.shape, np.int64), np.ones(nbytes.shape, np.bool_)
    for number, region in enumerate(regions, start=1):
        places = np.flatnonzero(undecided & ~passed_over[number - 1] if len(passed_over) else undecided)
        places = places[region.holds(at_bytes[places], at_ranks)]
        region_of[places], undecided[places] = number, False
    return region_of


def _region_of(regions: tuple[Region, ...], kept: tuple[int, ...], ranks: int, nbytes: SizeArray) -> IntArray:
    """The number of the first of the kept regions, from 1, that contains each size, [size]; 0 if no region does."""
    some = tuple(regions[number - 1] for number in kept)
    if not some:
        return np.zeros(nbytes.shape, np.int64)
    numbers = np.array([0, *kept], np.int64)
    if len(nbytes) < FEW or any(region.may_flicker(ranks) for region in some):
        return numbers[_first_region(some, ranks, nbytes)]
    starts, first = _steps(some, ranks)
    return numbers[first[np.searchsorted(starts, nbytes, side="right") - 1]]


@lru_cache(maxsize=256)
def _steps(regions: tuple[Region, ...], ranks: int) -> tuple[SizeArray, IntArray]:
    """The sizes at which the first region that contains a point with this many ranks changes, and the new region at
    each."""
    breaks = sorted({size for region in regions for size in region.breaks(ranks)})
    starts = breakpoints.find(lambda sizes: _first_region(regions, ranks, sizes), 1, MOST_ASKED, breaks, steps=0)
    return starts, _first_region(regions, ranks, starts)


def _interface(release: TunerRelease, newest: int) -> int | None:
    """The newest interface that NCCL and the tuner both have. NCCL releases whose newest is version 1 or 2 look for no
    other."""
    known = (newest,) if newest < 3 else range(2, newest + 1)
    return max((each for each in release.interfaces if each in known), default=None)


def _type_word(read: str, text: str) -> str | None:
    """The recognised value of OFI_NCCL_TUNER_TYPE: internal, model, or None for any other."""
    if read == "none":
        return None
    if read == "exact":
        return {"Internal": "internal", "Model": "model"}.get(text)
    return OF_ALL_WORDS.get(text.lower())


def _nvls(loaded: LoadedTuner, question: TunerQuestion) -> NDArray[np.bool_]:
    """Whether interfaces 1 and 2 tell the tuner that NVLS is supported, [size]: NCCL's adapter looks for a cell of
    NVLS."""
    if loaded.by_name:
        missing = candidate.nvls_reduces_every_operation(question.communicator, question.request, Algorithm.NVLS)
        return np.full(question.nbytes.shape, missing is None)
    supported: NDArray[np.bool_] = ~question.ignored(NVLS_CELLS[0]) | ~question.ignored(NVLS_CELLS[1])
    return supported


def _model_us(
    constants: ModelConstants, numbers: Mapping[str, int], question: TunerQuestion, algo_proto: AlgoProto
) -> FloatArray:
    """The time of a cell in us by the tuner's model, [size]. The time is computed in float32, except that the logarithm
    makes its sum a double."""
    f32: Any = np.float32
    algorithm, protocol = algo_proto
    communicator = question.communicator
    ranks, nodes = communicator.ranks, communicator.nodes
    read = numbers["OFI_NCCL_TUNER_NET_LATENCY"] if constants.reads_net_latency else constants.net_latency_us
    net_us = f32(read)
    if protocol is Protocol.Simple:
        net_us = net_us + f32(numbers["OFI_NCCL_TUNER_NET_COMP_OVERHEAD"])
    peer_us = f32(constants.nvlink_latency_us[algorithm][protocol])
    # Bytes per microsecond.
    network = f32(constants.internode_gbs * 1024 * 1024 * 1024 * 1e-6) * f32(constants.rails)
    inside = f32(constants.intranode_gbs * 1024 * 1024 * 1024 * 1e-6)
    channels = f32(numbers["OFI_NCCL_TUNER_NUM_CHANNELS"])
    if algorithm is Algorithm.Ring:
        steps, network_steps = 2 * (ranks - 1), 2 * nodes
        latency_us = f32(network_steps) * net_us + f32(steps - network_steps) * peer_us
        bandwidth = network * channels
    elif algorithm is Algorithm.NVLSTree:
        latency_us = f32(2 * (float(peer_us) + math.log2(nodes) * float(net_us)))
        bandwidth = min(inside, network / f32(2)) * channels
    else:
        local_us = f32(2 * (ranks // nodes - 1)) * peer_us
        latency_us = f32(float(local_us) + 2 * math.log2(nodes) * float(net_us))
        bandwidth = network * channels / f32(2)
    share = {Protocol.LL: 0.5, Protocol.LL128: 0.9375}.get(protocol)
    if share is not None:
        bandwidth = f32(float(bandwidth) * share)
    times_us: FloatArray = latency_us * f32(question.request.pipelined) + question.nbytes.astype(np.float32) / bandwidth
    return times_us


def _tree_channels(nbytes: IntArray, nodes: int) -> IntArray:
    """The number of channels (16, 24 or 32) with the largest chunk of LL128; the largest number if several are
    equal."""
    best, largest = np.zeros(nbytes.shape, np.int64), np.zeros(nbytes.shape, np.int64)
    for channels in (16, 24, 32):
        chunk = _tree_ll128_chunk(nbytes, channels, log2i(nodes))
        more = (chunk > largest) | (chunk == largest)
        best[more], largest[more] = channels, chunk[more]
    return best


def _tree_ll128_chunk(nbytes: IntArray, channels: int, depth: int) -> IntArray:
    """NCCL's own chunk of Tree/LL128 for eight ranks per node, in whole grains of 1920 bytes."""
    local = 8
    steps = 1 + depth + 0.1 * local
    chunk = np.full(nbytes.shape, 120 * 640 * 8 // 16 * 15, np.int64)
    for share, least in ((64, 131072), (16, 32768)):
        while True:
            halved = (nbytes // (channels * chunk) < steps * share / local) & (chunk > least)
            if not halved.any():
                break
            chunk[halved] //= 2
    return chunk // 1920


def _tree_chunk_bytes(nbytes: int, nodes: int) -> int:
    """The chunk of AllReduce by Tree/LL128 on p5en with one rank per node (chunkSizeTuningTreeLL128P5en)."""
    steps = 1 + log2i(nodes)
    chunk = 288000
    if nbytes // chunk < 2 * steps * steps:
        chunk //= 2
    if nbytes // chunk < int(1.5 * steps):
        chunk //= 2
    while nbytes // chunk < steps + 1 and chunk > 18000:
        chunk //= 2
    return chunk


def _pat_chunk_bytes(nbytes: int, nodes: int) -> int:
    """The chunk of AllGather by PAT/Simple on p5en with one rank per node (chunkSizeTuningAllGatherPatSimpleP5en)."""
    most = 524288 if nodes >= 16 else 1048576
    chunk = most
    fewest = (32 if nodes >= 16 else min(nodes, 8) + 1, most // 2), (min(nodes, 16), 65536), (min(nodes, 8), 32768)
    for chunks, least in fewest:
        while nbytes // chunk < chunks and chunk > least:
            chunk //= 2
    return chunk
