"""What libnccl does with a variable that a process sets between two communicators, on simulated GPUs.

A process that was started with the variable, one that was started without it, and one that sets it before its second
communicator while the first stays open are asked for the same: graphs, tables, cells, launches of collectives, of
sends and receives. The third is as the first (NCCL reads the variable at each communicator), as the second (once per
process), or as neither. The first communicator of the third has made its calls before.
"""

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tuner.base.errors import BadInput, OracleFailed, TunerError
from tuner.base.names import Buffers, Collective, DataType, Op, PeerCall
from tuner.emulator.request import Request
from tuner.oracle.api import Oracle
from tuner.oracle.conformance.check import TABLES
from tuner.oracle.launches import IssuedCall
from tuner.oracle.search import ordered_graphs
from tuner.release.variables import in_library
from tuner.scenario.describe import describe
from tuner.scenario.oracle_configuration import OracleConfiguration

EACH, ONCE, NEITHER = "each", "once", "neither"
SIZES_BYTES = (4 << 10, 64 << 10, 1 << 20, 64 << 20, 256 << 20)
COLLECTIVES = tuple(Request(collective, DataType.float32, Op.sum) for collective in Collective)

H100 = {"machine": "dgx-h100", "nodes": 2, "gpus_per_node": 4}
SMALL = {"machine": "dgx-h100", "nodes": 2, "gpus_per_node": 2}
NODE = {"machine": "dgx-h100", "nodes": 1}
FOUR = {"machine": "dgx-h100", "nodes": 4, "gpus_per_node": 2}
ONE_EACH = {"machine": "dgx-h100", "nodes": 4, "gpus_per_node": 1}
PAIR = {"machine": "dgx-h100", "nodes": 2, "gpus_per_node": 1}
WHOLE = {"machine": "dgx-h100", "nodes": 2}
ALONE = {**NODE, "without_tuner": True}
SPLIT = {"machine": "pcie-l40s-4nic", "nodes": 1}
PCIE = {"machine": "pcie-l40s-4nic", "nodes": 2}
APART = {"machine": "pcie-l40s-no-p2p", "nodes": 1}
C2C = {"machine": "gh200-4x", "nodes": 2}
V100 = {"machine": "dgx-1v", "nodes": 2}
A100 = {"machine": "a100-4x-1nic", "nodes": 2}
AWS = {"machine": "aws-p5", "nodes": 2, "gpus_per_node": 4}
REDUCING = {"machine": "dgx-h100", "nodes": 2, "gpus_per_node": 4, "collnet": True}
RACK = {"machine": "gb200-nvl72", "nodes": 1, "trays": 2}
TWO_RACKS = {**RACK, "nodes": 2}
REFUSED_VALUE = "absent"  # a network or file that is not there, at which init ends

# By variable: values unlike the default, and where each is tried until one has an effect.
TRIED: Mapping[str, tuple[tuple[str, Mapping[str, Any]], ...]] = {
    "NCCL_ALGO": (("Tree", SMALL),),
    "NCCL_PROTO": (("Simple", SMALL),),
    "NCCL_NTHREADS": (("128", SMALL),),
    "NCCL_LL128_NTHREADS": (("320", SMALL),),
    "NCCL_THREAD_THRESHOLDS": (("16 32 64 16 32 64", SMALL),),
    "NCCL_MIN_NCHANNELS": (("20", SMALL),),
    "NCCL_MAX_NCHANNELS": (("2", SMALL),),
    "NCCL_MIN_NRINGS": (("20", SMALL),),
    "NCCL_MAX_NRINGS": (("2", SMALL),),
    "NCCL_MIN_CTAS": (("20", SMALL),),
    "NCCL_MAX_CTAS": (("2", SMALL),),
    "NCCL_COLLNET_ENABLE": (("1", REDUCING),),
    "NCCL_COLLNET_NODE_THRESHOLD": (("3", {**REDUCING, "env": {"NCCL_COLLNET_ENABLE": "1"}}),),
    "NCCL_NVLS_ENABLE": (("0", NODE),),
    "NCCL_NVLS_NCHANNELS": (("8", NODE), ("4", NODE)),
    "NCCL_PAT_ENABLE": (("0", FOUR), ("0", ONE_EACH)),
    "NCCL_NET_OVERHEAD": (("40", SMALL),),
    "NCCL_LL128_C2C": (("0", H100), ("0", C2C)),
    "NCCL_WORK_ARGS_BYTES": (("96", NODE),),
    "NCCL_CTA_POLICY": (("1", ALONE),),
    "NCCL_LOCAL_REGISTER": (("0", NODE),),
    "NCCL_GRAPH_REGISTER": (("0", NODE),),
    "NCCL_NET": ((REFUSED_VALUE, PAIR),),
    "NCCL_GRAPH_FILE": ((REFUSED_VALUE, SMALL),),
    "NCCL_CROSS_NIC": (("0", PCIE), ("1", PCIE), ("0", A100), ("1", H100)),
    "NCCL_P2P_LEVEL": (("LOC", PCIE), ("SYS", PCIE)),
    "NCCL_NET_GDR_LEVEL": (("LOC", H100),),
    "NCCL_NET_GDR_C2C": (("0", C2C), ("1", C2C)),
    "NCCL_NET_GDR_READ": (("0", PAIR), ("1", PCIE)),
    "NCCL_PXN_DISABLE": (("1", H100),),
    "NCCL_NVB_DISABLE": (("1", V100),),
    "NCCL_PXN_C2C": (("0", C2C), ("1", C2C), ("0", RACK), ("1", RACK)),
    "NCCL_P2P_DISABLE": (("1", SMALL),),
    "NCCL_SHM_DISABLE": (("1", PCIE),),
    "NCCL_NET_DISABLE_INTRA": (("1", SPLIT),),
    "NCCL_IGNORE_DISABLED_P2P": (("2", APART), ("1", APART)),
    "NCCL_NETDEVS_POLICY": (("MAX:1", AWS), ("ALL", H100), ("ALL", AWS)),
    "NCCL_MNNVL_ENABLE": (("0", RACK),),
    "NCCL_MNNVL_SCATTER_NETS_ENABLE": (("0", TWO_RACKS), ("1", TWO_RACKS)),
    "NCCL_MNNVL_RAIL_PER_HOST": (("1", TWO_RACKS), ("0", TWO_RACKS)),
    "NCCL_SYM_KERNEL": (("AllReduce_AGxLL_R", NODE),),
    "NCCL_WIN_ENABLE": (("0", NODE),),
    "NCCL_SYM_CTAS": (("4", NODE),),
    "NCCL_NCHANNELS_PER_NET_PEER": (("4", SMALL),),
    "NCCL_MIN_P2P_NCHANNELS": (("32", SMALL),),
    "NCCL_MAX_P2P_NCHANNELS": (("1", SMALL),),
    "NCCL_P2P_LL_THRESHOLD": (("0", SMALL),),
    "NCCL_P2P_NET_CHUNKSIZE": (("262144", SMALL),),
    "NCCL_P2P_NVL_CHUNKSIZE": (("65536", NODE),),
    "NCCL_P2P_PCI_CHUNKSIZE": (("65536", SPLIT), ("65536", {**PCIE, "nodes": 1, "gpus_per_node": 4})),
    "NCCL_BUFFSIZE": (("1048576", SMALL),),
    "NCCL_LL_BUFFSIZE": (("65536", SMALL),),
    "NCCL_LL128_BUFFSIZE": (("524288", SMALL),),
    "NCCL_CHUNK_SIZE": (("131072", SMALL),),
    "NCCL_NVLS_CHUNKSIZE": (("65536", NODE),),
    "NCCL_NVLSTREE_MAX_CHUNKSIZE": (("32768", WHOLE),),
}


@dataclass(frozen=True)
class Reading:
    """How a release reads a variable; None where no value had an effect anywhere."""

    when: str | None
    value: str = ""
    where: str = ""


def readings(name: str, variables: Sequence[str] = tuple(TRIED)) -> dict[str, Reading]:
    """By variable, of those that stand in the release's libnccl."""
    found = {variable: Reading(None) for variable in variables if variable in in_library(name)}
    tries = [(variable, number) for number in range(4) for variable in found if number < len(TRIED[variable])]
    for number in range(4):
        of_place: dict[str, list[str]] = {}
        for variable, at in tries:
            if at == number and found[variable].when is None:
                of_place.setdefault(json.dumps(TRIED[variable][at][1], sort_keys=True), []).append(variable)
        for place, some in of_place.items():
            values = {variable: TRIED[variable][number][0] for variable in some}
            found.update(_at(name, json.loads(place), values))
    return found


def _at(name: str, place: Mapping[str, Any], values: Mapping[str, str]) -> Iterator[tuple[str, Reading]]:
    """Those of ``values`` that have an effect at ``place``."""
    env, alone = place.get("env", {}), place.get("without_tuner", False)
    try:
        described = describe(nccl=name, **{key: value for key, value in place.items() if key not in _OWN_KEYS})
        asked = replace(described.resolve().oracle_configuration(), env=env, without_tuner=alone)
        oracle = Oracle(asked, warned=True)
    except TunerError:  # the release does not run on the machine
        return
    told = " ".join(f"{key}={value}" for key, value in place.items())
    with oracle:
        without = seen(oracle)
        oracle.start_again({})
        assert seen(oracle) == without, f"{name}, {told}: a second communicator differs without any change"
        for variable, value in values.items():
            wanted = _of_a_fresh_process(replace(asked, env={**env, variable: value}))
            if wanted in (None, without):
                continue
            second: object = _REFUSED
            with contextlib.suppress(OracleFailed):
                oracle.start_again({variable: value})
                second = seen(oracle)
                oracle.start_again({variable: None})
            when = EACH if second == wanted else ONCE if second == without else NEITHER
            yield variable, Reading(when, value, told)
            if second == _REFUSED:  # nothing more is made in that process
                rest = list(values)[list(values).index(variable) + 1 :]
                yield from _at(name, place, {each: values[each] for each in rest})
                return


def _of_a_fresh_process(asked: OracleConfiguration) -> object:
    """None where it crashes."""
    if REFUSED_VALUE in asked.env.values():
        return _REFUSED
    try:
        with Oracle(asked, warned=True) as fresh:
            return seen(fresh)
    except OracleFailed:
        return None


_REFUSED = "refused"
_OWN_KEYS = ("env", "without_tuner")


def seen(oracle: Oracle) -> dict[str, object]:
    """All that the communicator that was made last answers."""
    found: dict[str, object] = {"facts": oracle.facts, "graphs": ordered_graphs(oracle)}
    found |= {table: getattr(oracle.tables, table).tobytes() for table in TABLES}
    ranks = oracle.facts.n_ranks
    registers = oracle.facts.n_nodes in (1, ranks)
    for collective in Collective:
        plain = Request(collective, DataType.float32, Op.sum)
        sizes = [size // plain.unit_bytes(ranks) * plain.unit_bytes(ranks) for size in SIZES_BYTES]
        found[f"{plain.collective.name} cells"] = _or_error(lambda r=plain, s=sizes: oracle.costs(r, s).tobytes())
        found[f"{collective.name}"] = _or_error(lambda r=plain, s=sizes: oracle.launch(r, s))
        for buffers in (Buffers.registered, Buffers.graph, Buffers.window) if registers else ():
            given = replace(plain, buffers=buffers)
            found[f"{collective.name} {buffers.name}"] = _or_error(
                lambda r=given, s=sizes: oracle.launch_on_any_path(r, s)
            )
    for size in SIZES_BYTES[::2]:
        calls = [IssuedCall(call, DataType.int8, size, peer) for peer in {1, ranks - 1} for call in _PEERS]
        found[f"sends and receives {size}"] = _or_error(lambda c=calls: _kernels(oracle, c))
    return found


def _kernels(oracle: Oracle, calls: Sequence[IssuedCall]) -> list[object]:
    return [
        (kernel.name, kernel.channels, kernel.threads, [_numbers(batch.works) for batch in each])
        for kernel in oracle.launch_in_full(calls).kernels
        for each in kernel.works.channels.values()
    ]


def _numbers(works: Sequence[Mapping[str, int]]) -> list[dict[str, int]]:
    """Without addresses and counters."""
    return [{name: value for name, value in work.items() if not any(p in name for p in _CHANGING)} for work in works]


_PEERS = (PeerCall.Send, PeerCall.Recv)
_CHANGING = ("Addr", "buff", "Buff", "opCount", "Handle")


def _or_error(ask: Callable[[], object]) -> object:
    try:
        return ask()
    except (BadInput, OracleFailed) as error:
        return type(error).__name__


# Variables that reach a pick and are not asked, each with the reason.
_MERGES = "later communicators of a process have the adapters that the first one merged, too"
_QUEUE = "reaches groups of more calls than are made here"
NOT_ASKED: Mapping[str, str] = {
    "NCCL_IB_HCA": "of NCCL's own InfiniBand network, in whose place the simulated one stands",
    "NCCL_IB_MERGE_NICS": _MERGES,
    "NCCL_NET_FORCE_MERGE": _MERGES,
    "NCCL_NET_MERGE_LEVEL": _MERGES,
    "NCCL_NET_MERGE_POLICY": _MERGES,
    "NCCL_WORK_FIFO_BYTES": _QUEUE,
    "NCCL_WORK_FIFO_DEPTH": _QUEUE,
}
