"""PAT's ReduceScatter and AllGather on numbers, as the device code does them: buffers, slots, and what is new in them.

It follows PatRSAlgorithm and PatAGAlgorithm of src/include/collectives.h, and patReduce and patCopy of
src/device/prims_simple.h, v2.28.9-1, line by line, and uses nothing of tuner.emulator.steps.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[Any]
STEPS = 8  # NCCL_STEPS


def mirror_invert(i: int, most: int) -> int:
    found, mask, mirrored = 0, 1, most // 2
    while mask < most:
        if not i & mask:
            found += mirrored
        mask, mirrored = mask << 1, mirrored >> 1
    return found


def first_bit_set(i: int, most: int) -> int:
    return (i & -i).bit_length() - 1 if i else most


def new_peer(i: int, pow2: int) -> bool:
    return ((i ^ (pow2 - 1)) + 1).bit_count() == 1


@dataclass
class PatStep:
    recv_dim: int = -1
    send_dim: int = -1
    recv_offset: int = -1
    send_offset: int = -1
    step_offset: int = 0
    post_recv: bool = False
    post_send: bool = False
    nelem: int = 0
    inp_ix: int = 0
    out_ix: int = 0
    skipped: bool = False
    last: bool = False


@dataclass
class Algorithm:
    """What both classes have in common; sizes in elements."""

    chunk_count: int
    offset: int
    end: int
    count: int
    rank: int
    nranks: int

    def __post_init__(self) -> None:
        self.nr_pow2 = self.agg_delta = 1 << (self.nranks - 1).bit_length()
        self.agg_factor, channel_size = 1, self.end - self.offset
        while self.chunk_count // (channel_size * self.agg_factor) >= 2 and self.agg_factor < self.nranks // 2:
            self.agg_factor *= 2
            self.agg_delta //= 2
        self.post_freq, depth = self.agg_factor, STEPS
        while depth > 1 and self.agg_factor < self.nranks // 2:
            depth //= 2
            self.agg_factor *= 2
            self.agg_delta //= 2
        self.parallel_factor = min(16, self.post_freq)
        self.reset()

    def reset(self) -> None:
        raise NotImplementedError

    def nelem(self) -> int:
        return min(self.chunk_count, self.end - self.offset)


class ReduceScatter(Algorithm):
    def reset_a(self) -> None:
        self.a = self.send_skipped = self.step_offset = 0
        self.last_a = self.agg_factor
        if self.phase >= 2:
            self.last_a //= 2 * self.scale
        if self.phase == 4:
            self.last_a = 1

    def reset(self) -> None:
        self.n, self.phase, self.scale, self.as_ = self.nelem(), 0, 1, self.agg_delta - 1
        self.reset_a()

    def next(self) -> PatStep:
        ps = PatStep(nelem=self.n, out_ix=self.offset, step_offset=self.step_offset)
        skip, a, freq, n, rank = False, self.a, self.post_freq, self.nranks, self.rank
        full = (a % freq) + 1 >= freq or a == self.last_a - 1
        if a >= self.last_a:
            skip = True
        elif self.phase == 0:
            s = mirror_invert(a, self.last_a) * self.agg_delta + self.as_
            skip = s >= n
            ps.inp_ix, ps.send_dim, ps.out_ix = (rank + s) % n * self.count + self.offset, 0, 0
            ps.send_offset, ps.post_send = (a % freq) * self.n, full
        elif self.phase == 1:
            s = mirror_invert(a, self.last_a) * self.agg_delta + self.as_
            skip = s >= n
            ps.recv_dim = first_bit_set(s, self.nr_pow2)
            ps.send_offset = ps.recv_offset = (a % freq) * self.n
            ps.post_send, ps.post_recv = ps.recv_dim == 0 and full, full
            s -= 1 << ps.recv_dim
            ps.inp_ix = (rank + n + s) % n * self.count + self.offset
            ps.send_dim = first_bit_set(s, self.nr_pow2) if s else -1
            if ps.send_dim == -1:
                ps.send_offset = -1
            elif self.as_ - (1 << ps.recv_dim) == 0:
                if new_peer(a, self.agg_factor):
                    self.send_skipped = a
                    ps.step_offset = self.step_offset = 0
                ps.send_offset = (a - self.send_skipped) % freq * self.n
            recv_dim = ps.recv_dim
            if s < n and skip:
                ps.recv_dim, ps.recv_offset, ps.post_recv, skip = -1, -1, False, False
            if recv_dim > 0 and (a - self.send_skipped) % freq + 1 >= freq and not skip:
                self.step_offset += 1
        elif self.phase == 2:
            s = (2 * mirror_invert(a, self.last_a) + 1) * self.scale * self.agg_delta + 1
            skip = s >= n
            ps.recv_dim, ps.post_send = 0, a == self.last_a - 1
            s -= 1
            if s < n and skip:
                ps.recv_dim, ps.recv_offset, skip = -1, -1, False
            elif not skip:
                foffset = a + self.agg_factor - self.agg_factor // self.scale
                ps.post_recv, ps.recv_offset = (foffset + 1) % freq == 0, foffset % freq * self.n
            ps.inp_ix = (rank + n + s) % n * self.count + self.offset
            ps.send_dim = first_bit_set(s, self.nr_pow2) if s else -1
            ps.post_send |= (a + 1) % freq == 0
            ps.send_offset = a % freq * self.n
        elif self.phase == 3:
            s = (2 * mirror_invert(a, self.last_a) + 1) * self.scale * self.agg_delta
            ps.post_recv = a == self.last_a - 1
            skip = s >= n
            ps.recv_dim = first_bit_set(s, self.nr_pow2)
            s -= 1 << ps.recv_dim
            ps.post_recv |= (a + 1) % freq == 0
            ps.recv_offset = a % freq * self.n
            ps.inp_ix = (rank + n + s) % n * self.count + self.offset
            ps.send_dim = first_bit_set(s, self.nr_pow2) if s else -1
            if s < n and skip:
                ps.recv_dim, ps.recv_offset, ps.post_recv, skip = -1, -1, False, False
            if new_peer(a, self.agg_factor // (2 * self.scale)):
                self.send_skipped = a
                ps.step_offset = self.step_offset = 0
            foffset = a - self.send_skipped
            if foffset % freq + 1 >= freq and not skip:
                self.step_offset += 1
            ps.send_offset = foffset % freq * self.n if ps.send_dim >= 0 else -1
        elif self.phase == 4:
            ps.recv_dim, ps.inp_ix = 0, rank * self.count + self.offset
            ps.recv_offset, ps.post_recv = (self.agg_factor - 1) % freq * self.n, True
            self.offset += self.chunk_count
        self.a += 1
        if self.a >= self.last_a and self.a >= self.parallel_factor:
            p = self.phase
            if p == 1:
                self.as_ -= 1
            if p == 3:
                self.scale *= 2
            after_leaves = (2 if self.agg_factor > 1 else 4) if self.as_ == 1 else 1
            self.phase = {
                0: after_leaves,
                1: 0 if self.as_ % 2 == 1 else 1,
                2: 3,
                3: 2 if self.scale < self.agg_factor else 4,
            }.get(p, 5)
            if p == 4:
                if self.offset >= self.end:
                    ps.last = True
                else:
                    self.reset()
            else:
                self.reset_a()
        ps.skipped = skip
        return ps


class AllGather(Algorithm):
    def reset_a(self) -> None:
        self.a, self.last_a = 0, self.agg_factor
        if self.phase >= 2:
            self.last_a //= 2 * self.scale

    def reset(self) -> None:
        self.as_dim = (self.agg_delta - 1).bit_length()
        self.n, self.scale, self.v = self.nelem(), self.agg_factor // 2, 0
        self.phase = 2 if self.scale else 1
        self.bit_count = [self.as_dim - i for i in range(self.as_dim)]
        self.bit_zero_step = [1] * self.as_dim
        self.as_ = self.next_as()
        self.reset_a()

    def next_as(self) -> int:
        for d in range(self.as_dim):
            p = 1 << d
            self.bit_count[d] -= 1
            if self.bit_count[d] == 0:
                self.v ^= p
                self.bit_count[d] = p
                if not self.v & p:
                    self.bit_count[d] += first_bit_set(self.bit_zero_step[d], self.as_dim) - 1
                    if self.bit_count[d] == 0:
                        self.v ^= p
                        self.bit_count[d] = p
                    self.bit_zero_step[d] += 1
        return self.v

    def next(self) -> PatStep:
        ps = PatStep(nelem=self.n, inp_ix=self.offset)
        skip, a, freq, n, rank, delta = False, self.a, self.post_freq, self.nranks, self.rank, self.agg_delta
        if a >= self.last_a:
            skip = True
        elif self.phase == 0:
            s = a * delta + self.as_
            skip = s >= n
            ps.out_ix = (rank + s) % n * self.count + self.offset
            ps.recv_dim, ps.inp_ix, ps.recv_offset = 0, 0, a % freq * self.n
            ps.post_recv = a % freq == freq - 1 or (a + 1) * delta + self.as_ >= n
        elif self.phase == 1:
            s = a * delta + self.as_
            skip = s >= n
            ps.send_dim = first_bit_set(s, self.nr_pow2)
            s -= 1 << ps.send_dim
            ps.out_ix = (rank + n + s) % n * self.count + self.offset
            ps.recv_dim = first_bit_set(s, self.nr_pow2) if s else -1
            ps.send_offset = ps.recv_offset = a % freq * self.n
            ps.post_send = a % freq == freq - 1 or (a + 1) * delta + self.as_ >= n
            ps.post_recv = ps.send_dim == 0 and (a % freq == freq - 1 or (a + 1) * delta + self.as_ - 1 >= n)
            ps.step_offset = 0 if ps.send_dim == 0 else a // freq
            if ps.recv_dim == -1:
                ps.recv_offset, ps.post_recv = -1, False
            elif self.as_ - (1 << ps.send_dim) == 0:
                foffset = (a * delta) >> (ps.recv_dim + 1)
                ps.recv_offset = foffset % freq * self.n
                enough = ((foffset + 1) * 2 + 1) << ps.recv_dim >= n
                ps.post_recv = ps.send_dim == 0 and (foffset % freq == freq - 1 or enough)
                ps.step_offset = 0 if ps.send_dim == 0 else foffset // freq
            if s < n and ps.send_dim == 0 and skip:
                ps.send_dim, ps.send_offset, ps.post_send, skip = -1, -1, False, False
        elif self.phase == 2:
            s = (2 * a + 1) * self.scale * delta
            ps.post_send = a % freq == freq - 1 or (2 * (a + 1) + 1) * self.scale * delta >= n
            skip = s >= n
            ps.send_dim = first_bit_set(s, self.nr_pow2)
            s -= 1 << ps.send_dim
            ps.send_offset, ps.step_offset = a % freq * self.n, a // freq
            ps.out_ix = (rank + n + s) % n * self.count + self.offset
            ps.recv_dim = first_bit_set(s, self.nr_pow2) if s else -1
            if ps.recv_dim != -1:
                foffset = (a * 2 * self.scale * delta) >> (ps.recv_dim + 1)
                ps.recv_offset, ps.step_offset = foffset % freq * self.n, foffset // freq
        self.a += 1
        if self.a >= self.last_a and self.a >= self.parallel_factor:
            p, as_ = self.phase, self.as_
            if p == 2:
                self.scale //= 2
            self.phase = (2 if self.scale else 1) if p == 2 else (0 if as_ % 2 == 1 else 1) if p == 1 else 1
            if p == 0 or (p == 1 and as_ % 2 == 0):
                self.as_ = self.next_as()
            if p == 0 and self.as_ == delta // 2:
                self.offset += self.chunk_count
                if self.offset >= self.end:
                    ps.last = True
                else:
                    self.reset()
            else:
                self.reset_a()
        ps.skipped = skip
        return ps


@dataclass
class Wire:
    """One connection's buffer, STEPS slots, with NCCL's counters."""

    slot: int  # elements
    dtype: Any
    head: int = 0
    tail: int = 0
    accumulated: int = 0  # accSize of the end that adds, or that copies
    send_step: int = 0
    recv_step: int = 0
    log: list[int] = field(default_factory=list)  # of each message posted, elements

    def __post_init__(self) -> None:
        self.buffer = np.zeros(STEPS * self.slot, self.dtype)

    def at(self, step: int, offset: int, count: int) -> Numbers:
        begin = step % STEPS * self.slot + offset
        return self.buffer[begin : begin + count]


@dataclass
class Rank:
    """One block of a rank."""

    algorithm: Algorithm
    rank: int
    wires: dict[tuple[int, int], Wire]  # by sender and dimension
    source: Numbers
    result: Numbers

    def run(self) -> Iterator[None]:
        local_accumulated, reduces = 0, isinstance(self.algorithm, ReduceScatter)
        away = 1 if reduces else -1
        while True:
            ps: PatStep = self.algorithm.next()  # type: ignore[attr-defined]
            if not ps.skipped:
                comes = goes = None
                if ps.recv_dim >= 0:
                    peer = (self.rank - away * (1 << ps.recv_dim)) % self.algorithm.nranks
                    comes = self.wires[peer, ps.recv_dim]
                    ahead = 0 if reduces else ps.step_offset
                    while comes.tail < comes.recv_step + ahead + 1:
                        yield
                if ps.send_dim >= 0:
                    goes = self.wires[self.rank, ps.send_dim]
                    ahead = ps.step_offset if reduces else 0
                    while goes.head + STEPS < goes.send_step + ahead + 1:
                        yield
                if reduces:
                    local_accumulated = self._reduce(ps, comes, goes, local_accumulated)
                else:
                    local_accumulated = self._copy(ps, comes, goes, local_accumulated)
                if goes is not None and ps.post_send:
                    goes.send_step += 1
                    goes.tail = goes.send_step
                    goes.log.append(ps.send_offset + ps.nelem)
                if comes is not None and ps.post_recv:
                    comes.recv_step += 1
                    comes.head = comes.recv_step
            if ps.last:
                return

    def _reduce(self, ps: PatStep, comes: Wire | None, goes: Wire | None, local_accumulated: int) -> int:
        n = ps.nelem
        if goes is not None:
            step = goes.send_step + ps.step_offset
            target = goes.at(step, ps.send_offset, n)
            new = goes.accumulated < ps.send_offset + n + step * goes.slot
            goes.accumulated = max(goes.accumulated, ps.send_offset + n + step * goes.slot)
        else:
            target = self.result[ps.out_ix : ps.out_ix + n]
            new = local_accumulated < ps.out_ix + n
            local_accumulated = max(local_accumulated, ps.out_ix + n)
        own = self.source[ps.inp_ix : ps.inp_ix + n] if new else target.copy()
        target[:] = own if comes is None else comes.at(comes.recv_step, ps.recv_offset, n) + own
        return local_accumulated

    def _copy(self, ps: PatStep, comes: Wire | None, goes: Wire | None, local_accumulated: int) -> int:
        n = ps.nelem
        if comes is not None:
            step = comes.recv_step + ps.step_offset
            source = comes.at(step, ps.recv_offset, n)
            new = comes.accumulated < ps.recv_offset + n + step * comes.slot
            comes.accumulated = max(comes.accumulated, ps.recv_offset + n + step * comes.slot)
        else:
            source = self.source[ps.inp_ix : ps.inp_ix + n]
            new = local_accumulated < ps.inp_ix + n
            local_accumulated = max(local_accumulated, ps.inp_ix + n)
        if new:
            self.result[ps.out_ix : ps.out_ix + n] = source
        if goes is not None:
            goes.at(goes.send_step, ps.send_offset, n)[:] = source
        return local_accumulated


def execute(
    kind: type[Algorithm], sizes: tuple[int, int, int, int], inputs: list[Numbers]
) -> tuple[list[Numbers], dict[tuple[int, int], Wire]]:
    """One channel of a call: what each rank has, and the connections. ``sizes``: chunk, offset, end, count."""
    ranks, chunk, count = len(inputs), sizes[0], sizes[3]
    wires = {
        (rank, bit): Wire(chunk, inputs[0].dtype) for rank in range(ranks) for bit in range((ranks - 1).bit_length())
    }
    whole = count if kind is ReduceScatter else count * ranks
    results = [np.zeros(whole, inputs[0].dtype) for _ in range(ranks)]
    running = [Rank(kind(*sizes, rank, ranks), rank, wires, inputs[rank], results[rank]).run() for rank in range(ranks)]
    while running:
        before = sum(wire.tail + wire.head for wire in wires.values())
        left = [each for each in running if _goes_on(each)]
        moved = sum(wire.tail + wire.head for wire in wires.values()) != before
        assert moved or len(left) < len(running), "every block waits for another"
        running = left
    return results, wires


def _goes_on(each: Iterator[None]) -> bool:
    for _ in each:
        return True
    return False
