"""A call's own configuration, ncclCollConfig_t: which algorithms it allows, and how many blocks the call may have.

Source: src/config/{algorithm_parser,algorithm_registry,collconfig}.cc, v2.31.2-1, and ncclGetAlgoInfo of
src/enqueue/enqueue.cc; what NCCL does with invalid configurations is compared with the library.
"""

import re
from collections.abc import Iterator, Mapping
from functools import cache

from tuner.base.errors import BadInput
from tuner.base.names import AlgoProto, Algorithm, Buffers, Collective, Protocol
from tuner.emulator.communicator import Comm
from tuner.emulator.request import CALL_FIELDS, CallConfiguration, Request
from tuner.emulator.rules import symmetric_variables
from tuner.release.reader import first_with
from tuner.release.schema import Release

INVALID = "ncclInvalidArgument"
SYMMETRIC = "SYMK_"
MOST_CTAS = 64  # NCCL ignores values outside of 1 to MAXCHANNELS

_GENERAL: Mapping[str, AlgoProto] = {
    **{f"TREE_{protocol.name.upper()}": (Algorithm.Tree, protocol) for protocol in Protocol},
    **{f"RING_{protocol.name.upper()}": (Algorithm.Ring, protocol) for protocol in Protocol},
    "COLLNET_DIRECT_SIMPLE": (Algorithm.CollNetDirect, Protocol.Simple),
    "COLLNET_CHAIN_SIMPLE": (Algorithm.CollNetChain, Protocol.Simple),
    "NVLS_SIMPLE": (Algorithm.NVLS, Protocol.Simple),
    "NVLSTREE_SIMPLE": (Algorithm.NVLSTree, Protocol.Simple),
    "PAT_SIMPLE": (Algorithm.PAT, Protocol.Simple),
}
_REDUCES_AND_GATHERS = (Collective.AllReduce, Collective.AllGather, Collective.ReduceScatter)
_OF_COLLECTIVES: Mapping[Algorithm, tuple[Collective, ...]] = {
    Algorithm.Tree: (Collective.AllReduce,),
    Algorithm.Ring: tuple(Collective),
    Algorithm.CollNetDirect: _REDUCES_AND_GATHERS,
    Algorithm.CollNetChain: (Collective.AllReduce,),
    Algorithm.NVLS: _REDUCES_AND_GATHERS,
    Algorithm.NVLSTree: (Collective.AllReduce,),
    Algorithm.PAT: (Collective.AllGather, Collective.ReduceScatter),
}


def in_fields(configuration: CallConfiguration | None) -> tuple[tuple[str, int | str], ...]:
    """Fields of ncclCollConfig_t that are set, by NCCL's names."""
    if configuration is None:
        return ()
    values = ((name, getattr(configuration, own)) for name, own in CALL_FIELDS.items())
    return tuple((name, value) for name, value in values if value is not None)


def check(communicator: Comm, request: Request) -> None:
    """Raises BadInput if the call fails at once, because its selection is invalid or names nothing for the collective.

    Also raises it for releases whose calls have no configuration.
    """
    configuration, nccl = request.configuration, communicator.release
    if configuration is None:
        return
    if not _takes_configurations(nccl):
        first = first_with(_takes_configurations)
        raise BadInput(
            f"NCCL {nccl.name} takes no configuration with a call (ncclAllReduceConfig and the like): use {first} or "
            "later"
        )
    if not configuration.alg_selection:
        return
    if request.buffers is Buffers.window:
        raise BadInput(
            "algSelection in a call's configuration is only emulated on buffers outside of windows: remove the windows"
        )
    names = _names(communicator.release, request.collective)
    if not configuration.falls_back and not _selected(configuration.alg_selection, names, request.collective):
        text = configuration.alg_selection
        valid = ", ".join(name for name, own in names.items() if request.collective in own)
        raise BadInput(
            f"{request.collective.name} with algSelection={text} returns {INVALID}: valid are names or what they begin "
            f"with, combined by ',' (or), '+' (and) and '^' (not); names: {valid}"
        )


def _takes_configurations(nccl: Release) -> bool:
    """Whether calls pass their fewest and most blocks to the scheduler, as in releases with configurations."""
    return nccl.rules.launch == "shrink_within_ctas_then_cells"


def selected(communicator: Comm, request: Request) -> frozenset[AlgoProto] | None:
    """The cells that the call's selection allows; None if it allows all or has no effect.

    If NCCL_ALGO, NCCL_PROTO or NCCL_SYM_KERNEL names anything for the collective, the selection has no effect.
    """
    configuration = request.configuration
    if configuration is None or not configuration.alg_selection:
        return None
    if request.collective in symmetric_variables.requested_collectives(communicator):
        return None
    names = _names(communicator.release, request.collective)
    chosen = _selected(configuration.alg_selection, names, request.collective)
    if not chosen:
        return None
    return frozenset(_GENERAL[name] for name in chosen if name in _GENERAL)


def notes(communicator: Comm, request: Request) -> Iterator[str]:
    """Sentences about a call's configuration: what NCCL silently ignores, and what a selection means."""
    own = request.configuration
    if own is None:
        return
    if own.alg_selection and request.collective in symmetric_variables.requested_collectives(communicator):
        yield (
            f"algSelection={own.alg_selection} counts for nothing: NCCL_ALGO, NCCL_PROTO or NCCL_SYM_KERNEL names "
            f"something for {request.collective.name}"
        )
    elif own.alg_selection:
        yield from _selected_by_beginning(communicator, request, own.alg_selection)
    for name, value in (("minCTAs", own.min_ctas), ("maxCTAs", own.max_ctas), ("nvlsCTAs", own.nvls_ctas)):
        if value is not None and not 1 <= value <= MOST_CTAS:
            yield f"{name}={value} of the call is passed over: NCCL takes 1 to {MOST_CTAS}"
    if own.min_ctas is not None and own.max_ctas is not None and own.min_ctas > own.max_ctas >= 1:
        yield f"minCTAs={own.min_ctas} of the call is above its maxCTAs={own.max_ctas}, which counts"


def _selected_by_beginning(communicator: Comm, request: Request, text: str) -> Iterator[str]:
    """Sentences about names in a selection that are only beginnings of names: which of the collective's names they
    mean."""
    names = _names(communicator.release, request.collective)
    own = [name for name, collectives in names.items() if request.collective in collectives]
    for tag in _tags(text):
        meant = [name for name in own if name.lower().startswith(tag.lower())]
        if not meant:
            yield f"algSelection: no name for {request.collective.name} begins with {tag}"
        elif [name.lower() for name in meant] != [tag.lower()]:
            yield f"algSelection: {tag} means every name that begins with it: {', '.join(meant)}"
    chosen = _selected(text, names, request.collective)
    if not chosen:  # only possible if the call may fall back
        yield f"algSelection={text} leaves nothing for {request.collective.name}: NCCL chooses by itself"


def _tags(text: str) -> list[str]:
    """Each name in a selection once, as the user wrote it."""
    return list(dict.fromkeys(filter(None, re.split(r"[,+^]", re.sub(r"[ \t\n\r]", "", text)))))


def nothing_selected(request: Request) -> str:
    """The text of the error for a call whose selection names nothing that can run on this communicator."""
    text = request.configuration.alg_selection if request.configuration else None
    return (
        f"call config algSelection={text}: nothing of it can run {request.collective.name} here: the group ends with "
        f"{INVALID}; valid: another selection, or forceAlgSelection=0"
    )


def ctas(communicator: Comm, request: Request) -> tuple[int, int]:
    """The fewest and the most blocks of a call. Both numbers come from the environment, else from the call, else from
    the communicator."""
    environment, own = communicator.environment, request.configuration or CallConfiguration()
    low, high = communicator.ctas
    most = _first(environment.of_process("NCCL_MAX_CTAS"), None if own.max_ctas is None else min(own.max_ctas, high))
    least = _first(environment.of_process("NCCL_MIN_CTAS"), own.min_ctas)
    least, most = low if least is None else least, high if most is None else min(most, high)
    return (least if least <= most else 1), most


def nvls_ctas(communicator: Comm, request: Request) -> int | None:
    """The largest number of channels of a call that uses the channels of NVLS; None if there is no such bound."""
    own = request.configuration.nvls_ctas if request.configuration else None
    requested = _first(communicator.environment.of_process("NCCL_NVLS_NCHANNELS"), own)
    if requested is None:
        requested = communicator.environment.optional("NCCL_NVLS_NCHANNELS")
    return requested if requested is not None and requested >= 1 else None


def _first(*numbers: int | None) -> int | None:
    return next((number for number in numbers if number is not None and 1 <= number <= MOST_CTAS), None)


def _names(nccl: Release, collective: Collective) -> Mapping[str, tuple[Collective, ...]]:
    return _registry(nccl.symmetric.names)


@cache
def _registry(kernels: tuple[str, ...]) -> Mapping[str, tuple[Collective, ...]]:
    """Every name with its collectives; kernels of different collectives may have the same name."""
    names = {name: _OF_COLLECTIVES[algorithm] for name, (algorithm, _) in _GENERAL.items()}
    for kernel in kernels:
        collective, _, own = kernel.partition("_")
        name = f"{SYMMETRIC}{own}"
        names[name] = (*names.get(name, ()), Collective[collective])
    return names


def _selected(text: str, names: Mapping[str, tuple[Collective, ...]], collective: Collective) -> frozenset[str]:
    """The names that a selection allows for a collective; empty for an invalid selection, as in NCCL."""
    everything, chosen = frozenset((name, each) for name, own in names.items() for each in own), frozenset[object]()
    for term in filter(None, re.sub(r"[ \t\n\r]", "", text).split(",")):
        left, factors = everything, [factor for factor in term.split("+") if factor]
        for factor in factors:
            tag = factor.removeprefix("^").lower()
            matching = frozenset(row for row in everything if tag and row[0].lower().startswith(tag))
            if not matching:
                return frozenset()
            left = left - matching if factor.startswith("^") else left & matching
        if not factors or not left:
            return frozenset()
        chosen |= left
    return frozenset(name for name, each in everything if each is collective and (name, each) in chosen)
