"""A map of a fleet: every machine of the catalogue, on 1 to 64 nodes, in every release that runs there, with all picks.

PYTHON benchmarks/fleet.py [MACHINE...]        prints communicators, picks, CPU seconds and the peak of memory

Any installation's Python runs it, so that two builds can be held beside each other. One process; checks nothing. Where
the build has them, communicators that choose alike share tables and picks.
"""

import resource
import sys
import time

import numpy as np

from tuner import release
from tuner.base.errors import TunerError
from tuner.base.names import Collective, DataType, Op
from tuner.emulator.request import Request
from tuner.emulator.selection import Selection
from tuner.machine import catalogue
from tuner.scenario import Scenario

try:
    from tuner.emulator.alike import Alike
except ImportError:  # a build before it: every communicator by itself

    class Alike:  # type: ignore[no-redef]
        """What builds without it do."""

        selection = staticmethod(Selection)
        pick = staticmethod(Selection.pick)


NODES = tuple(1 << power for power in range(7))
SIZES = np.unique(np.geomspace(1 << 10, 16 << 30, 400).astype(np.uint64))


def main() -> None:
    communicators = picks = refused = 0
    for machine in sys.argv[1:] or catalogue.names():
        alike = Alike()
        for nccl in release.names():
            for nodes in NODES:
                try:
                    selection = alike.selection(Scenario(nccl=nccl, machine=machine, nodes=nodes).communicator())
                    if selection.communicator.ranks == 1:
                        continue
                    for collective in Collective:
                        request = Request(collective, DataType.float32, Op.sum)
                        unit = np.uint64(request.unit_bytes(selection.communicator.ranks))
                        sizes = np.maximum(SIZES // unit, np.uint64(1)) * unit
                        picks += len(alike.pick(selection, request, sizes).bytes)
                    communicators += 1
                except TunerError:  # a machine or a number of nodes that NCCL, or the emulator, refuses
                    refused += 1
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"{communicators} communicators, {picks / 1e6:.1f} million picks, {refused} refused: "
        f"{time.process_time():.1f} CPU s, {peak_mib:.0f} MiB at most"
    )


if __name__ == "__main__":
    main()
