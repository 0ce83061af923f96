"""Records golden data: asks libnccl what `test_golden.py` holds the emulator against. See golden_files.py.

What is recorded of the same library and the same topology is kept, so an interrupted run goes on where it stopped.

    python -m tests.scripts.record_golden                                        the machines recorded before
    python -m tests.scripts.record_golden --machine dgx-h100 --nccl 2.28.9 --again
"""

import dataclasses
import sys
import time

import click
import numpy as np

from tests.support import golden_files as recorded
from tests.support.golden_files import Answers, Golden
from tuner import release
from tuner.base.errors import TunerError
from tuner.machine import catalogue
from tuner.oracle import library


@click.command()
@click.option(
    "--machine", "names", multiple=True, type=click.Choice(catalogue.names()), help="[default: those recorded before]"
)
@click.option("--nccl", "releases", multiple=True, type=click.Choice(release.names()), help="[default: all]")
@click.option("--again", is_flag=True, help="Record even what is there.")
@click.option("--timeout", "timeout_s", default=600.0, show_default=True, help="Seconds for one shape's start.")
def main(names: tuple[str, ...], releases: tuple[str, ...], again: bool, timeout_s: float) -> None:
    failed = 0
    for name in names or recorded.machines():
        golden = fresh(name)
        for nccl in releases or recorded.releases(name):
            start = time.monotonic()
            try:
                if again or golden.libnccl_sha256.get(nccl) != library.find(nccl).sha256:
                    record(name, nccl, golden, timeout_s)
                    recorded.write(name, golden)
                    seconds, size = time.monotonic() - start, (recorded.FOLDER / f"{name}.npz").stat().st_size
                    click.echo(f"{name} {nccl}: {len(golden.shapes)} shapes in {seconds:.1f} s, {size:,} bytes in all")
            except TunerError as error:
                failed += 1
                click.echo(f"{name} {nccl}: NOT RECORDED: {error}", err=True)
    sys.exit(1 if failed else 0)


def fresh(name: str) -> Golden:
    """What is recorded, without what another topology, or another choice of shapes and sizes, has made stale."""
    golden, now, shapes = recorded.read(name), recorded.topology_sha256(name), recorded.shapes(name)
    sizes = recorded.sizes(shapes)
    same = np.array_equal(golden.shapes, shapes) and np.array_equal(golden.sizes_bytes, sizes)
    if golden.topology_sha256 == now and same:
        return golden
    return dataclasses.replace(
        golden, shapes=shapes, sizes_bytes=sizes, topology_sha256=now, libnccl_sha256={}, answers={}, algorithms={}
    )


def record(name: str, nccl: str, golden: Golden, timeout_s: float) -> None:
    """Adds one release."""
    shapes = zip(recorded.cases(nccl, name, golden.shapes), golden.sizes_bytes, strict=True)
    asked = [recorded.from_library(scenario, sizes, timeout_s) for scenario, sizes in shapes]
    arrays, algorithms, shas = zip(*asked, strict=True)
    golden.answers[nccl] = Answers(**{key: np.stack([one[key] for one in arrays]) for key in recorded.NAMES})
    golden.algorithms[nccl], golden.libnccl_sha256[nccl] = algorithms[0], shas[0]


if __name__ == "__main__":
    main()
