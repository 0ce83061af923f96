"""Opens the GPUs, libnccl and processes for measuring, or says why that is impossible."""

import os
from contextlib import AbstractContextManager, suppress
from functools import partial
from importlib.metadata import PackageNotFoundError, distribution
from mmap import ACCESS_READ, mmap
from pathlib import Path

from tuner.base.errors import BadInput
from tuner.base.spelling import option
from tuner.bench.backend import Options
from tuner.bench.gpu import process
from tuner.bench.gpu.backend import SEVERAL, GpuBackend
from tuner.bench.gpu.cuda import Cuda
from tuner.bench.gpu.nccl import Nccl
from tuner.bench.gpu.rendezvous import ALONE, RankAddress, Rendezvous, own_address
from tuner.oracle import library
from tuner.plugin.forcing import Forcing

WHEELS = tuple(library.WHEELS.values())
# Each rank's stream has a queue of the GPU for itself, so that no rank waits behind another. CUDA reads this variable
# at its first call.
_CONNECTIONS = {"CUDA_DEVICE_MAX_CONNECTIONS": "32"}
FORBIDDEN = ("NCCL_ALGO", "NCCL_PROTO", "NCCL_TUNER_PLUGIN", "NCCL_TUNER_TABLE", "NCCL_TUNER_CONFIG_FILE")


def open_gpus(options: Options | None = None) -> GpuBackend | None:
    """The backend, on rank 0. On other ranks it serves until rank 0 is done, and returns None.

    BadInput says what is missing: cupy, GPUs, a libnccl with tuner plugins, or a second rank.
    """
    here = own_address()
    gpu = open_at(here, options or Options())
    if here.rank == 0:
        return gpu
    gpu.serve()
    return None


def open_at(here: RankAddress, options: Options, backend: type[GpuBackend] | None = None) -> GpuBackend:
    """Opens this process's part of the communicator. BadInput says what is missing."""
    if set_here := [name for name in FORBIDDEN if name in os.environ]:
        raise BadInput(f"{', '.join(set_here)} is set, but measuring itself forces what NCCL chooses: unset it")
    with connections(options):
        return _opened(here, options, backend or GpuBackend)


def connections(options: Options) -> AbstractContextManager[None]:
    """Sets CUDA_DEVICE_MAX_CONNECTIONS inside the block if ranks share a GPU.

    CUDA reads the variable when it is first called.
    """
    return process.environment(_CONNECTIONS if options.ranks_per_gpu > 1 else {})


def _opened(here: RankAddress, options: Options, backend: type[GpuBackend]) -> GpuBackend:
    cuda = Cuda()
    path = library_of(options)
    if options.ranks_per_gpu > 1 and not allows_several(path):
        raise BadInput(
            f"{path} refuses several ranks on one GPU: set {option('ranks_per_gpu')} 1, or use NCCL 2.30.3 or later"
        )
    devices = devices_of(here, cuda.count, options.ranks_per_gpu)
    if here.world * len(devices) < 2:
        raise BadInput(
            "with one rank there is nothing to choose, because NCCL only copies: use two GPUs or more, or "
            f"{option('ranks_per_gpu')} 2 with NCCL 2.30.3 or later"
        )
    met = Rendezvous.meet(here, options.limit_s)
    try:
        nccl = partial(Nccl, path, cuda_error=cuda.error)
        return backend(met, devices, options, cuda=cuda, nccl=nccl, forcing=Forcing())
    except BaseException:
        met.close()
        raise


def devices_of(here: RankAddress, count: int, ranks_per_gpu: int) -> list[int]:
    """The GPU of each rank of this process: all GPUs without a launcher, else one.

    BadInput for more ranks than GPUs.
    """
    if here == ALONE:
        return [device for device in range(count) for _ in range(ranks_per_gpu)]
    device = here.local_rank // ranks_per_gpu
    if count > 1 and device >= count:
        raise BadInput(
            f"rank {here.rank} is number {here.local_rank} on its node, which has {count} GPUs: start no more ranks "
            f"than GPUs times {option('ranks_per_gpu')}"
        )
    return [device % count]  # a launcher may show each process only its own GPU


def allows_several(path: Path) -> bool:
    """Whether this libnccl has the variable that allows several ranks on one GPU (src/init.cc, v2.30.3-1)."""
    with path.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as content:
        return content.find(SEVERAL.encode()) >= 0


def library_of(options: Options) -> Path:
    """The given library, or else that of an installed wheel for any CUDA version, because the program that is tuned
    loads the same one.

    BadInput if no library is found.
    """
    if options.library is not None:
        if not options.library.is_file():
            raise BadInput(f"{options.library} does not exist: name a libnccl.so.2")
        return options.library.resolve()
    for wheel in WHEELS:
        with suppress(PackageNotFoundError):
            if (installed := Path(str(distribution(wheel).locate_file(library.MEMBER)))).is_file():
                return installed
    raise BadInput(f"no libnccl: none of {', '.join(WHEELS)} is installed: pip install {WHEELS[0]}")
