"""Latencies as the libnccl for aarch64 computes them: its compiler rounds a product and the sum it goes into once.

The one for x86-64, and the emulator, round the product first. Rings alone are done
here: on the catalogue's machines with ARM processors nothing else comes out otherwise.
"""

from fractions import Fraction

import numpy as np

from tuner.base.names import Algorithm, Collective, Protocol
from tuner.base.numerics import Float, f32
from tuner.emulator.model import latency_us
from tuner.emulator.rules import latency
from tuner.emulator.rules.call import ModelPoint


def fused(point: ModelPoint) -> Float:
    """The latency of a cell, us, as ncclTopoTuneModel of aarch64 has it (2.23 to 2.30)."""
    if point.algorithm is not Algorithm.Ring:
        return latency_us(point)
    base = latency.base(f32(0), point)
    if point.collective not in (Collective.Reduce, Collective.Broadcast):
        between = point.rules.ring_network_steps(point)
        inside = max(point.hw_latency_us("intra"), latency._net_overhead_us(point))
        network = f32(between) * latency._between_us(point)
        return base + multiply_add(f32(point.steps - between), inside, network)
    if point.graph.same_channels:
        return latency_us(point)
    row = Algorithm.Tree if point.protocol is Protocol.Simple else None
    return multiply_add(f32(point.steps), point.hw_latency_us("here", row), base)


def multiply_add(one: Float, other: Float, added: Float) -> Float:
    """``one * other + added``, rounded to the nearest float once; to an even last bit where two are as near."""
    exact = Fraction(float(one)) * Fraction(float(other)) + Fraction(float(added))
    about = f32(float(exact))
    near = (about, np.nextafter(about, f32(np.inf)), np.nextafter(about, f32(-np.inf)))
    return min(near, key=lambda each: (abs(Fraction(float(each)) - exact), int(each.view(np.uint32)) & 1))
