"""The search for channels in C (csrc/picks/channels.c). It finds the same graphs as :mod:`tuner.graphs.channels`, in
less time.

C only makes the moves of the search. This module gives it the lists of GPUs and adapters, and what each path takes from
which links. It computes these with the functions of the Python search, once per system or when a path is first needed.
"""

import ctypes
from collections.abc import Callable, Iterable, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from tuner.base.errors import TunerError
from tuner.base.extras import NotBuilt, shared_object
from tuner.base.names import Pattern
from tuner.base.numerics import f32
from tuner.graphs.nets import ANY_GPU
from tuner.graphs.routes import path_between, way_back_type
from tuner.graphs.system import DeviceKind, Link, SystemDevice
from tuner.graphs.trial import HANDICAP, Trial

if TYPE_CHECKING:
    from tuner.graphs.network_channels import NetworkChannels

# GPUs on a node, and GPUs of all channels together, each of which is one more nested call in C
MOST_GPUS, MOST_STEPS = 256, 1 << 14
FARTHER_THAN_ALL = 1 << 20
_STARTS = {"widest_unused_first": 0, "widest_in_turn": 1, "widest_reached_in_turn": 1}
_NEAREST = 2
_NEIGHBOURS = {"none": 0, "first": 1, "only": 2}
_ENDS = (
    (DeviceKind.GPU, DeviceKind.GPU),
    (DeviceKind.NET, DeviceKind.GPU),
    (DeviceKind.GPU, DeviceKind.NET),
)  # by the number that C uses for each
# C's number for what traffic of 8 GB/s takes in the other direction: nothing, as much, or an eighth
_REVERSE = {0.0: 0, 8.0: 1, 1.0: 2}

_INT, _ADDRESS = ctypes.c_int32, ctypes.c_void_p
_FIND_PATH = ctypes.CFUNCTYPE(_INT, _INT, _INT, _INT)
_FIND_WIDEST = ctypes.CFUNCTYPE(_INT, _INT)


def _fields(kind: Any, names: str) -> list[tuple[str, Any]]:
    return [(name, kind) for name in names.split()]


class _Lists(ctypes.Structure):
    """``struct channel_lists`` of csrc/picks."""

    _fields_ = _fields(_ADDRESS, "starts items")


class _Path(ctypes.Structure):
    """``struct channel_path`` of csrc/picks."""

    _fields_ = [("steps", _ADDRESS), *_fields(_INT, "known count type way_back_type pci_overhead")]


class _System(ctypes.Structure):
    """``struct channel_system`` of csrc/picks."""

    _fields_ = [
        *_fields(_INT, "gpus nets several_nodes disconnected_type no_hops_succeed trees_need_way_back"),
        *_fields(_INT, "nets_rotate always_replays pci_order_first starts neighbours"),
        *_fields(_INT, "pci_order_tries"),
        *_fields(_ADDRESS, "left net_left connections between entering leaving"),
        ("path", _FIND_PATH),
        ("widest_of", _FIND_WIDEST),
        *_fields(_ADDRESS, "first_of_id net_ids net_latency_us in_network"),
        ("same_port", _Lists),
        ("start_gpus", _Lists),
        *_fields(_ADDRESS, "reached widest_gbs pci_links peer_starts peers"),
        ("by_paths", _Lists),
        *_fields(_ADDRESS, "from_net_hops from_net_gbs"),
    ]


class _Trial(ctypes.Structure):
    """``struct channel_trial`` of csrc/picks."""

    _fields_ = [
        *_fields(_INT, "is_tree is_balanced in_network same_channels alternates"),
        *_fields(_INT, "min_channels max_channels type_intra type_inter back round"),
        *_fields(ctypes.c_float, "bw_intra bw_inter"),
        ("listed", _Lists),
        ("near", _Lists),
        ("may_leave", _ADDRESS),
        ("best_gbs", ctypes.c_float),
        *_fields(_INT, "best_hops best_is_alike tries hops found failed"),
        ("latency_us", ctypes.c_double),
        *_fields(_INT, "found_channels found_hops"),
        ("found_latency_us", ctypes.c_double),
        *_fields(_ADDRESS, "intra inter"),
    ]


class CompiledSearch:
    """Searches of one system in C, for those requests that :meth:`takes` accepts."""

    def __init__(self, search: "NetworkChannels", library: Any) -> None:
        self.search, self._library = search, library
        self._kept: list[Any] = []  # arrays whose addresses C has, kept alive
        self._listed: dict[int, _Lists] = {}
        self._near: dict[Pattern, _Lists] = {}
        self._may_leave: dict[tuple[Pattern, int], Any] = {}
        self._error: Exception | None = None
        # Whether a tree may leave by an adapter that reaches no GPU, and then has to look for the way back from there
        rules = search.rules
        self._one_way = rules.trees_need_way_back and rules.disconnected == "followed"
        self._one_way &= any(DeviceKind.GPU not in net.paths for net in search.system.nets)
        self._left = np.array(search.load.left, np.float32)
        self._net_left = np.array(search.net_left, np.float32)
        self._system = self._of_system()

    def takes(self, trial: Trial) -> bool:
        """Whether C can do this search. C cannot search for heads, and it cannot search if a device without paths may
        cause an error."""
        gpus = self.search.gpus
        if (
            trial.heads_only
            or (trial.is_tree and self._one_way)
            or gpus > MOST_GPUS
            or gpus * trial.max_channels > MOST_STEPS
        ):
            return False
        try:
            if self.search.system.several_nodes:
                self._nets_by_gpu(trial.type_inter)
        except TunerError:
            return False
        return True

    def run(self, trial: Trial, best: Trial, tries: int) -> tuple[int, bool]:
        """Searches channels as ``trial`` requests. Returns the number of tries left, and whether ``best`` was improved.

        Raises BadInput in the same cases as the Python search.
        """
        search = self.search
        rows = trial.max_channels + 1
        intra, inter = np.zeros((rows, search.gpus), np.int32), np.zeros((rows, 2), np.int64)
        asked = self._of_trial(trial, best, tries)
        asked.intra, asked.inter = intra.ctypes.data, inter.ctypes.data
        self._left[:], self._net_left[:] = search.load.left, search.net_left
        self._error = None
        if self._library.nccl_tuner_search(ctypes.byref(self._system), ctypes.byref(asked)) < 0:
            raise MemoryError
        if self._error is not None:
            raise self._error
        search.load.left[:], search.net_left[:] = self._left.tolist(), self._net_left.tolist()
        trial.hops, trial.latency_us = asked.hops, asked.latency_us
        if asked.found:
            best.take(trial)
            channels = best.channels = asked.found_channels
            best.hops, best.latency_us = asked.found_hops, asked.found_latency_us
            best.intra, best.inter = intra[:channels].tolist(), inter[:channels].tolist()
        return asked.tries, asked.found > 0

    def _of_trial(self, trial: Trial, best: Trial, tries: int) -> _Trial:
        search, several = self.search, self.search.system.several_nodes
        last = search.gpus - 1
        back = {Pattern.Ring: last, Pattern.SplitTree: 1}.get(trial.pattern, 0) if several else -1
        best_gbs = f32(best.channels) * f32(best.bw_intra)
        if search.rules.handicap_of_crossing:
            best_gbs = best_gbs * f32(1.0 - (best.cross_nic - trial.cross_nic) * HANDICAP)
        return _Trial(
            is_tree=trial.is_tree,
            is_balanced=trial.pattern is Pattern.BalancedTree,
            in_network=trial.in_network,
            same_channels=trial.same_channels,
            alternates=search.nets.alternate_if_odd(trial),
            min_channels=trial.min_channels,
            max_channels=trial.max_channels,
            type_intra=trial.type_intra,
            type_inter=trial.type_inter,
            back=back,
            round=last if trial.pattern is Pattern.Ring else -1,
            bw_intra=trial.bw_intra,
            bw_inter=trial.bw_inter,
            listed=self._nets_by_gpu(trial.type_inter) if several else _Lists(),
            near=self._neighbours(trial.pattern),
            may_leave=self._ends(trial) if several else None,
            best_gbs=best_gbs,
            best_hops=best.hops,
            best_is_alike=trial.pattern is best.pattern and trial.cross_nic == best.cross_nic,
            tries=tries,
            hops=trial.hops,
            latency_us=trial.latency_us,
        )

    def _array(self, values: Any, dtype: Any) -> int:
        array = np.ascontiguousarray(values, dtype)
        self._kept.append(array)
        return array.ctypes.data

    def _lists(self, lists: Iterable[Sequence[int]]) -> _Lists:
        lists = list(lists)
        starts = np.cumsum([0, *map(len, lists)])
        return _Lists(self._array(starts, np.int32), self._array([item for each in lists for item in each], np.int32))

    def _nets_by_gpu(self, farthest: int) -> _Lists:
        if farthest not in self._listed:
            gpus = [*range(self.search.gpus), ANY_GPU]
            self._listed[farthest] = self._lists(self.search.nets.listed(farthest, gpu) for gpu in gpus)
        return self._listed[farthest]

    def _neighbours(self, pattern: Pattern) -> _Lists:
        if pattern not in self._near:
            order = self.search.order
            self._near[pattern] = self._lists(order.neighbours_of(gpu, pattern) for gpu in range(self.search.gpus))
        return self._near[pattern]

    def _ends(self, trial: Trial) -> int:
        key = trial.pattern, trial.cross_nic
        if key not in self._may_leave:
            nets = self.search.nets
            pairs = [[nets.may_pair(trial, net, start) for net in nets.devices] for start in nets.devices]
            self._may_leave[key] = self._array(pairs, np.uint8)
        address: int = self._may_leave[key]
        return address

    def _of_system(self) -> _System:
        search, rules = self.search, self.search.rules
        system, order, nets = search.system, search.order, search.nets
        gpus, net_count = search.gpus, len(system.nets)
        self._paths = [(_Path * (gpus * gpus))(), (_Path * (net_count * gpus))(), (_Path * (gpus * net_count))()]
        nearest = rules.starts not in _STARTS
        reached = [len(net.paths.get(DeviceKind.GPU, ())) for net in system.nets]
        starts = [nets.starts(net) for net in range(net_count)] if nearest else []
        widest = (
            [nets.widest_of(net) if reached[net] else (-1.0, []) for net in range(net_count)] if not nearest else []
        )
        # An adapter that reaches no GPU ends the search if a channel enters by it.
        from_net = [each or [(0, 0)] * gpus for each in order.from_net]
        between, entering, leaving = map(ctypes.addressof, self._paths)
        return _System(
            gpus=gpus,
            nets=net_count,
            several_nodes=system.several_nodes,
            disconnected_type=system.types.DIS if rules.disconnected != "followed" else FARTHER_THAN_ALL,
            no_hops_succeed=rules.no_hops_succeed,
            trees_need_way_back=rules.trees_need_way_back,
            nets_rotate=rules.nets_rotate,
            always_replays=rules.replay == "always",
            pci_order_first=rules.pci_order_first == "always" or not system.switched,
            starts=_STARTS.get(rules.starts, _NEAREST),
            neighbours=_NEIGHBOURS[order.neighbours],
            pci_order_tries=search.tries.pci_order,
            left=self._left.ctypes.data,
            net_left=self._net_left.ctypes.data,
            connections=self._array(search.connections, np.int32),
            between=between,
            entering=entering,
            leaving=leaving,
            path=_FIND_PATH(partial(self._asked, self._make_path)),
            widest_of=_FIND_WIDEST(partial(self._asked, nets.widest_of)),
            first_of_id=self._array([nets.number_of[net.id] for net in system.nets], np.int32),
            net_ids=self._array([net.id for net in system.nets], np.int64),
            net_latency_us=self._array([net.latency_us for net in system.nets], np.float64),
            in_network=self._array([net.in_network for net in system.nets], np.int32),
            same_port=self._lists(nets.same_port),
            start_gpus=self._lists([each for each, _ in starts] if nearest else [each for _, each in widest]),
            reached=self._array([there for _, there in starts] if nearest else reached, np.int32),
            widest_gbs=self._array([gbs for gbs, _ in widest], np.float32),
            pci_links=self._array([(-1, -1) if links is None else links for links in order.pci], np.int32),
            peer_starts=self._array(np.cumsum([0, *map(len, order.peers)]), np.int32),
            peers=self._array([peer for of_gpu in order.peers for peer in of_gpu], np.int32),
            by_paths=self._lists([peer for peer, _, _ in each] for each in order.by_peers),
            from_net_hops=self._array([[hops for hops, _ in each] for each in from_net], np.int32),
            from_net_gbs=self._array([[gbs for _, gbs in each] for each in from_net], np.int32),
        )

    def _asked(self, answer: Callable[..., object], *numbers: int) -> int:
        """The answer of a callback to C. After an error it is 0, and the error is raised when C has returned."""
        try:
            answer(*numbers)
        except Exception as error:  # ctypes would print the error and continue
            self._error = self._error or error  # the first error, which the Python search would raise
            return 0
        return 1

    def _make_path(self, ends: int, number: int, to: int) -> None:
        """Gives C what a path takes from each link."""
        kind, to_kind = _ENDS[ends]
        system = self.search.system
        start, count = system.nodes[kind][number], len(system.nodes[to_kind])
        path = path_between(system, (kind, number, to_kind, to))
        made = self._paths[ends][number * count + to]
        made.steps = self._array([self._step(start, link) for link in path.links], np.int32)
        made.count, made.type = len(path.links), path.type
        if self.search.rules.trees_need_way_back and kind in system.nodes[to_kind][to].paths:
            made.way_back_type = way_back_type(system, (kind, number, to_kind, to))
        made.pci_overhead, made.known = self.search.load.has_pci_overhead(start, path), True

    def _step(self, start: SystemDevice, link: Link) -> tuple[int, int, bool, int]:
        """``struct channel_step`` of csrc/picks."""
        load = self.search.load
        reverse = _REVERSE[load.reverse_gbs(link, start, 8.0)]
        back = load.number(load.way_back(link)) if reverse else -1
        return load.number(link), back, link.kind == "PIX", reverse


def of(search: "NetworkChannels") -> CompiledSearch | None:
    """The search of a system in C. None if the C part was not built, or if a part of the system causes an error."""
    library = _library()
    try:
        return None if library is None else CompiledSearch(search, library)
    except TunerError:
        return None  # the search in Python raises the error when it comes to that part


@cache
def _library() -> Any:
    """The library made from csrc/picks; None if it was not built."""
    try:
        library: Any = ctypes.CDLL(str(shared_object("nccl_tuner_picks")))
    except (NotBuilt, OSError):
        return None
    library.nccl_tuner_search.restype = _INT
    library.nccl_tuner_search.argtypes = (_ADDRESS, _ADDRESS)
    return library
