"""Issues collectives on rank 0 and hands back what was observed of them."""

import os
from collections.abc import Sequence
from dataclasses import astuple
from typing import Any

from tuner._native._sim import ffi, lib
from tuner.oracle.child import peers, ring, works
from tuner.oracle.child.world import Failure, World
from tuner.oracle.messages import Answers, Call, Calls, Group, GroupAnswer, GroupAnswers, Groups, Registration


def issue(world: World, request: Calls) -> Answers:
    """Each call on its own, up to the first that fails."""
    calls, how = _calls(request.calls), _how(world, request.simulated, request.captured)
    answers = ffi.new("struct sim_answer[]", len(calls))
    log_start = os.fstat(world.log_file).st_size
    _use_buffers(world, request.buffers)
    n = lib.sim_issue(how, calls, len(calls), answers)
    if n < 1:
        raise Failure("no address space for the buffers of the collective")
    failed = answers[n - 1].result
    return Answers(
        log_start=log_start,
        records=bytes(ffi.buffer(answers)),
        succeeded=n - (failed != 0),
        error=f"NCCL returned {world.error(failed)}" if failed else None,
    )


def issue_group(world: World, request: Group) -> GroupAnswer:
    """All calls in one group."""
    _use_buffers(world, request.buffers)
    peers.connect(world, request.rank, request.peers)
    calls, how = _calls(request.calls), _how(world, captured=request.captured, rank=request.rank)
    lib.sim_keep_proxy_operations(world.start.operation_bytes if request.in_full else 0)
    answer = ffi.new("struct sim_answer *")
    log_start = os.fstat(world.log_file).st_size
    if lib.sim_issue_group(how, calls, len(calls), answer) != 0:
        raise Failure("no address space for the buffers of the collectives")
    record, failed = answer.record, answer.result
    return GroupAnswer(
        log_start=log_start,
        log_end=answer.log_bytes,
        kernels=_copy(lib.sim_kernels(), record.kernels),
        operations=_copy(lib.sim_operations(), record.operations),
        questions=_copy(lib.sim_questions(), record.questions),
        works=works.read(world.start.works, world.base, record.kernels) if request.peers or request.in_full else (),
        proxy_operations=_proxy_operations() if request.in_full else b"",
        error=f"NCCL returned {world.error(failed)}" if failed else None,
    )


def issue_groups(world: World, request: Groups) -> GroupAnswers:
    """One group after the other."""
    answers: list[GroupAnswer] = []
    for group in request.groups:
        answers.append(issue_group(world, group))
        if answers[-1].error is not None:
            break
    return GroupAnswers(tuple(answers))


def _calls(calls: Sequence[Call]) -> Any:
    return ffi.new("struct sim_call[]", [astuple(call) for call in calls])


def _how(world: World, simulated: bool = False, captured: bool = False, rank: int = 0) -> Any:
    world.acknowledge_work(rank)
    comm = ffi.cast("void *", world.comms[rank])
    return ffi.new("struct sim_issue *", [comm, world.devices[rank], world.log_file, simulated, captured])


def _use_buffers(world: World, wanted: Registration) -> None:
    if wanted.kind != lib.SIM_PLAIN:
        ring.connect(world)
    comms = ffi.new("void *[]", [ffi.cast("void *", comm) for comm in world.comms])
    registration = ffi.new("struct sim_registration *", astuple(wanted))
    if (registered := lib.sim_use_buffers(comms, len(world.comms), registration)) > 0:
        raise Failure(f"registering the buffers returned {world.error(registered)}")


def _proxy_operations() -> bytes:
    size = ffi.new("uint64_t *")
    operations = lib.sim_proxy_operations(size)
    return bytes(ffi.buffer(operations, size[0])) if size[0] else b""


def _copy(items: Any, n: int) -> bytes:
    """The ``n`` items a pointer points to."""
    return bytes(ffi.buffer(items, n * ffi.sizeof(ffi.typeof(items).item))) if n else b""
