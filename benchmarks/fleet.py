"""A map of a fleet: every machine of the catalogue, on 1 to 64 nodes, in every release that runs there, with all picks.

PYTHON benchmarks/fleet.py [--sum] [MACHINE...]    prints communicators, picks, CPU seconds and the peak of memory

Any installation's Python runs it, so that two builds can be held beside each other. One process; checks nothing. With
--sum it also prints a digest of all picks. Where the build has them, communicators that choose alike share tables and
picks.
"""

import hashlib
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

        def forget(self) -> None:
            """Nothing is kept."""


NODES = tuple(1 << power for power in range(7))
SIZES = np.geomspace(1 << 10, 16 << 30, 400).astype(np.uint64)  # all of them different
FIELDS = ("bytes", "algorithm", "protocol", "time_us", "channels", "threads")


def main() -> None:
    communicators = picks = refused = 0
    digest, summed = hashlib.sha256(), "--sum" in sys.argv
    alike = Alike()
    for machine in [name for name in sys.argv[1:] if name != "--sum"] or catalogue.names():
        alike.forget()
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
                        found = alike.pick(selection, request, sizes)
                        picks += len(found.bytes)
                        if summed:
                            digest.update(b"".join(getattr(found, name).tobytes() for name in FIELDS))
                    communicators += 1
                except TunerError:  # a machine or a number of nodes that NCCL, or the emulator, refuses
                    refused += 1
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"{communicators} communicators, {picks / 1e6:.1f} million picks, {refused} refused: "
        f"{time.process_time():.2f} CPU s, {peak_mib:.0f} MiB at most" + f", sha256 {digest.hexdigest()}" * summed
    )


if __name__ == "__main__":
    main()
