"""Calls whose claimed orders of additions are compared, bit for bit, with an execution of the steps."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.random import Generator

from tests.support import device_steps
from tests.support.drawn_works import GRAINS, numbers
from tuner.answers.alone import Alone, calls_alone
from tuner.base.errors import NoAlgorithm
from tuner.base.names import Algorithm, Collective, DataType, Op, Protocol
from tuner.emulator.connect import Connected, summarize
from tuner.emulator.launches import ChannelShare, Sharing, Work
from tuner.emulator.request import Request
from tuner.emulator.steps.orders import REDUCING, Orders, Term, orders
from tuner.oracle.api import Oracle
from tuner.oracle.launches import IssuedCall, LaunchInFull
from tuner.scenario import Scenario

ALGORITHMS = (Algorithm.Ring, Algorithm.Tree)  # whose orders are claimed
DEFAULT_BUFFER_BYTES = {Protocol.LL: 512 * 8 * 16 * 8, Protocol.LL128: 640 * 120 * 8 * 8, Protocol.Simple: 1 << 22}
RING_STEPS_OF_A_CHUNK = {Collective.AllReduce: 4, Collective.ReduceScatter: 4, Collective.Reduce: 1}  # Simple
MACHINES = ("dgx-h100", "dgx-a100", "dgx-1v", "pcie-l40s", "ws-2x-a6000", "gh200-4x")


def added(term: Term, inputs: list[np.ndarray], where: slice) -> np.ndarray:
    """The numbers of a range, added as the term says, each sum rounded to float32."""
    if isinstance(term, int):
        return inputs[term][where]
    total = added(term[0], inputs, where)
    for each in term[1:]:
        total = total + added(each, inputs, where)
    return total


def claimed(found: Orders, inputs: list[np.ndarray]) -> np.ndarray:
    result = np.empty(found.count, np.float32)
    for start, end, which in zip(found.starts, found.ends(), found.which, strict=True):
        result[start:end] = added(found.terms[which], inputs, slice(start, end))
    return result


def executed(
    work: Work, connected: Connected, inputs: list[np.ndarray], scale: np.float32 | None = None
) -> list[np.ndarray]:
    """What each rank has of the whole result."""
    outputs, _ = device_steps.execute(work, [rank.channels for rank in connected.ranks], inputs, scale)
    if work.collective is Collective.ReduceScatter:
        return [np.concatenate(outputs)]
    return [outputs[work.root]] if work.collective is Collective.Reduce else outputs


def compare(random: Generator, work: Work, connected: Connected, runs: Work | None = None) -> Orders:
    """The orders claimed of a work, which have the bits of the steps; ``runs``: the work that is executed, if another.

    AssertionError where they have not.
    """
    found = orders(work, summarize(connected))
    assert found.starts[0] == 0
    assert np.all(np.diff(found.starts) > 0)
    assert found.starts[-1] < found.count
    inputs = [numbers(random, found.count) for _ in connected.ranks]
    expected = claimed(found, inputs)
    for result in executed(runs or work, connected, inputs):
        assert result.tobytes() == expected.tobytes()
    return found


def drawn_scenario(random: Generator, nccl: str) -> Scenario:
    """A communicator, whose variables leave rings or trees."""
    environment = {"NCCL_ALGO": str(random.choice(["Ring", "Tree", "Ring,Tree"]))}
    if random.random() < 0.5:
        environment["NCCL_PROTO"] = str(random.choice(["LL", "LL128", "Simple"]))
    if random.random() < 0.4:
        environment["NCCL_MAX_NCHANNELS"] = str(int(random.integers(1, 9)))
    nodes = int(random.choice([1, 2, 3, 5]))
    return Scenario(nccl, nodes, machine=str(random.choice(MACHINES)), environment=environment)


def drawn_calls(random: Generator, nccl: str, calls: int) -> tuple[Scenario, list[Alone]]:
    """A communicator, and calls on it that add."""
    while True:
        scenario, found = drawn_scenario(random, nccl), []
        try:
            for _ in range(calls):
                (call,) = calls_alone(scenario, *_drawn_call(random, scenario))
                assert isinstance(call, Alone)
                found.append(call)
        except NoAlgorithm:  # such as LL128 where it is not safe
            continue
        return scenario, found


def _drawn_call(random: Generator, scenario: Scenario) -> tuple[Request, list[int], int]:
    """Kind, nBytes and root of a call."""
    collective = Collective(random.choice([int(each) for each in REDUCING]))
    if "Tree" in (scenario.environment or {})["NCCL_ALGO"]:
        collective = Collective.AllReduce
    request = Request(collective, DataType.float32, Op.sum)
    unit = request.unit_bytes(scenario.ranks)
    size = int(2 ** random.uniform(2, 22 if random.random() < 0.2 else 18))
    return request, [max(1, size // unit) * unit], int(random.integers(scenario.ranks))


def work_of(launched: LaunchInFull, work: Work) -> Work:
    """The work that libnccl handed its kernel, from its structures alone: ``work`` tells the call and the cell."""
    (kernel,) = launched.kernels
    found = {channel: batches[0].works[0] for channel, batches in kernel.works.channels.items()}
    first = next(iter(found.values()))
    shares = tuple(_shares(found, work))
    count = first["count"] if "count" in first else sum(share.count for share in shares)
    sharing = Sharing.turns if "lastChunkSize" in first else Sharing.ranges
    return replace(work, count=count, warps=first["nWarps"], root=first["root"], sharing=sharing, shares=shares)


def _shares(found: dict[int, dict[str, int]], work: Work) -> Iterator[ChannelShare]:
    size, unused = work.dtype.size_bytes, work.shares[0].proxy
    for channel, struct in sorted(found.items()):
        if "cbd.countLo" in struct:  # ncclCollCbdPart
            low, high = struct["channelLo"], struct["channelHi"]
            which = "Lo" if channel == low else "Hi" if channel == high else "Mid"
            offset = {
                "Lo": 0,
                "Mid": struct["cbd.countLo"] + (channel - low - 1) * struct["cbd.countMid"],
                "Hi": struct["cbd.countLo"] + (high - low - 1) * struct["cbd.countMid"],
            }[which]
            chunk = struct[f"cbd.chunkGrains{which}"] * GRAINS[work.protocol] // size
            yield ChannelShare(channel, channel - low, offset, struct[f"cbd.count{which}"], chunk, None, unused)
        elif "workCount" in struct:
            last, ends = struct["lastChunkCount"], (struct["workOffset"], struct["workCount"])
            yield ChannelShare(channel, 0, *ends, struct["chunkCount"], last, unused)
        else:  # up to 2.19 the device finds its chunks itself, from the sizes of the buffers
            last = struct["lastChunkSize"]
            chunk = _whole_chunk(work) // size
            if work.algorithm is Algorithm.Tree and work.protocol is not Protocol.LL:
                chunk = last
            yield ChannelShare(channel, struct["bid"], 0, struct["count"], chunk, last, unused)


def _whole_chunk(work: Work) -> int:
    """calcBytePerStep, and several steps for the Simple protocol. Source: src/device/primitives.h, v2.19.4-1."""
    step = DEFAULT_BUFFER_BYTES[work.protocol] // 8
    if work.protocol is Protocol.Simple:
        return step * RING_STEPS_OF_A_CHUNK[work.collective]
    return step // 2 if work.protocol is Protocol.LL else step // 16 * 15


def compare_with_libnccl(random: Generator, oracle: Oracle, theirs: Connected, call: Alone) -> str | None:
    """The call's orders against steps executed on the work and on the channels of the real libnccl; what differs."""
    count = call.bytes // call.request.unit_bytes(call.ranks)
    issued = IssuedCall(call.request.collective, call.request.dtype, count, call.work.root, call.request.op)
    runs = work_of(oracle.launch_in_full([issued]), call.work)
    found = orders(call.work, call.across)
    inputs = [numbers(random, found.count) for _ in theirs.ranks]
    expected = claimed(found, inputs)
    for rank, result in enumerate(executed(runs, theirs, inputs)):
        if result.tobytes() != expected.tobytes():
            return f"{call.title}: result {rank}, {np.flatnonzero(result != expected)[:1]}"
    return None
