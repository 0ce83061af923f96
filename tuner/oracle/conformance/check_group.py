"""A group as emulated against the same group as libnccl launched it: every value, exactly."""

import contextlib
from collections.abc import Iterator, Sequence

from tuner.base.errors import BadInput, NoAlgorithm
from tuner.base.names import Algorithm, Protocol
from tuner.base.numerics import shortest
from tuner.emulator.call_kind import COPY_ENGINES
from tuner.emulator.group import Group, Operation, not_emulated, plan
from tuner.emulator.request import Request
from tuner.emulator.selection import Selection
from tuner.oracle.api import Oracle
from tuner.oracle.groups import Call, LaunchedGroup

Both = tuple[object, object]  # the emulator's value and libnccl's


def compare(selection: Selection, oracle: Oracle, ours: Group) -> dict[str, Both]:
    """Everything the release shows of a group, by what it is."""
    request = ours.picks[0].operation.request  # all have the same buffers
    calls = [_call(pick.operation) for pick in ours.picks]
    theirs = oracle.launch_group(calls, request.buffers, request.in_place, request.windows)
    return {**_kernels(selection, ours, theirs), **_choices(ours, theirs)}


def standard(selection: Selection, requests: Sequence[Request]) -> Iterator[Group]:
    """Groups of 2 to 40 calls of these kinds: equal sizes, sizes over six powers of four, kinds mixed.

    Each is of one kind of buffers. None where groups are not emulated, and none that NCCL never returns from, as with
    too small a ring of works, or fails at; nor of copies between nodes, for which it waits if a communicator has many.
    """
    kinds: dict[object, list[Request]] = {}
    for request in requests:
        kinds.setdefault((request.buffers, request.in_place, request.windows), []).append(request)
    for same in kinds.values():
        for operations in _groups(selection, same) if _emulated(selection, same) else ():
            with contextlib.suppress(BadInput, NoAlgorithm):
                ours = plan(selection, operations)
                if selection.communicator.nodes == 1 or all(kernel.path is not COPY_ENGINES for kernel in ours.kernels):
                    yield ours


def _emulated(selection: Selection, requests: Sequence[Request]) -> bool:
    try:
        return not_emulated(selection, requests) is None
    except BadInput:
        return False


def _groups(selection: Selection, requests: Sequence[Request]) -> Iterator[list[Operation]]:
    ranks = selection.communicator.ranks
    usable = [request for request in requests if selection.usable(request)]
    for request in usable:
        for count, nbytes in ((2, 1 << 20), (5, 25 << 20), (40, 1 << 14)):
            yield [Operation(request, reachable(request, ranks, nbytes))] * count
    for count in (3, 13, 40):
        kinds = [usable[place * 7 // 3 % len(usable)] for place in range(count)] if usable else []
        sizes = [5 << 8 + place * 5 % 13 for place in range(count)]
        if kinds:
            yield [Operation(each, reachable(each, ranks, size)) for each, size in zip(kinds, sizes, strict=True)]


def reachable(request: Request, ranks: int, nbytes: int) -> int:
    """The next smaller size that a call of this kind can have."""
    step = request.unit_bytes(ranks)
    return max(step, nbytes // step * step)


def _call(operation: Operation) -> Call:
    request = operation.request
    return Call(request.collective, request.dtype, request.op, operation.bytes)


def _kernels(selection: Selection, ours: Group, theirs: LaunchedGroup) -> dict[str, Both]:
    launched = [kernel for kernel in ours.kernels if kernel.path is not COPY_ENGINES]
    values: dict[str, Both] = {"kernels": (len(launched), len(theirs.kernels))}
    ranks = selection.communicator.ranks
    for number, (our, their) in enumerate(zip(launched, theirs.kernels, strict=False)):
        at = f"kernel {number}"
        values[f"{at}: channels"] = len(our.channels), their.channels
        values[f"{at}: threads"] = our.threads, their.threads
        if our.path is not None or their.symmetric is not None:
            requests = [(ours.picks[place].operation, ours.picks[place].operation.request) for place in our.places]
            counts = sum(operation.bytes // request.parts(ranks) for operation, request in requests)
            said = their.symmetric
            values[f"{at}: symmetric"] = (
                (our.path and our.path.kernel, len(our.places), counts),
                (said and said.name, said and said.calls, said and said.bytes),
            )
            continue
        values[f"{at}: calls"] = len(our.places), len(their.operations)
        for place, operation in zip(our.places, their.operations, strict=False):
            pick, where = ours.picks[place], f"{at} call {place}"
            request = pick.operation.request
            values[f"{where}: pick"] = (
                (_named(pick.algorithm), _named(pick.protocol)),
                (operation.algorithm.name, operation.protocol.name),
            )
            values[f"{where}: channels"] = pick.channels, operation.channels
            values[f"{where}: type"] = request.device_dtype.name, operation.dtype.name
            if operation.collective is not None:
                logged = pick.operation.bytes // request.parts(ranks)
                values[f"{where}: collective"] = (
                    (request.collective.name, logged),
                    (operation.collective.name, operation.bytes),
                )
    return values


def _named(chosen: Algorithm | Protocol | None) -> str | None:
    return None if chosen is None else chosen.name


def _choices(ours: Group, theirs: LaunchedGroup) -> dict[str, Both]:
    count = len(ours.choices)
    asked = [each for each in theirs.questions if (each.costs_us >= 0).any()]  # others: of symmetric kernels and copies
    questions = asked[max(len(asked) - count, 0) :]  # those before were for symmetric kernels and decide nothing
    values: dict[str, Both] = {"choices": (count, len(questions))}
    for number, (choice, question) in enumerate(zip(ours.choices, questions, strict=False)):
        cost_us = question.costs_us[choice.algorithm, choice.protocol]
        values[f"choice {number}: numPipeOps"] = choice.pipelined, question.pipelined
        values[f"choice {number}: time"] = shortest(choice.time_us), shortest(cost_us)
        if question.collective is not None:
            values[f"choice {number}: bytes"] = (
                (choice.request.collective.name, choice.bytes),
                (question.collective.name, question.bytes),
            )
    return values
