"""The double's stand-in for cupy refuses what cupy and CUDA refuse: types, devices, wrong states."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.double.settings import VARIABLE, DoubleEnvironment, DoubleSettings, Fault, FaultKind
from tuner.scenario import Scenario

pytestmark = pytest.mark.live

SCRIPT = """
import sys
import cupy
from cupy import cuda, uint64
from cupy.cuda import runtime
from tuner.base.names import DataType, Op
from tuner.bench.gpu import kernels


def refused(what, *errors):
    try:
        what()
    except errors as error:
        print(type(error).__name__, error)
    else:
        print("nothing was refused")


with cuda.Device(0):
    stream, event, memory = cuda.Stream(non_blocking=True), cuda.Event(), cuda.Memory(1 << 20)
with cuda.Device(1):
    other, elsewhere = cuda.Stream(non_blocking=True), cuda.Event()
    print(runtime.getDevice(), memory.device.id)
cuda.Device(0).use()
definitions = kernels.definitions(DataType.float32, Op.sum, 2)
options = tuple(f"-D{word}={value}" for word, value in definitions.items())
module = cupy.RawModule(code=kernels.SOURCE, options=options)
fill = module.get_function("fill")
arguments = tuple(map(uint64, (memory.ptr, 4, 0, 1)))
runtime_error, driver_error = runtime.CUDARuntimeError, cuda.driver.CUDADriverError
refused(lambda: cuda.Device("0"), TypeError)
refused(lambda: runtime.setDevice(2), runtime_error)
refused(lambda: runtime.getDeviceProperties(-1), runtime_error)
refused(lambda: cuda.Memory(1.5), TypeError)
refused(lambda: cuda.Memory(100 << 30), cuda.memory.OutOfMemoryError)
refused(lambda: cuda.MemoryPointer(memory.ptr, 0), TypeError)
refused(lambda: cuda.Stream(), NotImplementedError)
refused(lambda: cuda.Event(disable_timing=True), NotImplementedError)
refused(lambda: event.record(stream.ptr), TypeError)
refused(lambda: elsewhere.record(stream), runtime_error)
refused(lambda: cupy.RawModule(code=b"", options=()), TypeError)
refused(lambda: module.get_function("empty"), driver_error)
another = cupy.RawModule(code=kernels.SOURCE + "int x;", options=options)
refused(lambda: another.get_function("fill"), NotImplementedError)
refused(lambda: cupy.RawModule(code=kernels.SOURCE).get_function("fill"), cuda.compiler.CompileException)
refused(lambda: fill(1024, (256,), arguments, stream=stream), ValueError)
refused(lambda: fill((1024,), (256,), arguments[:3], stream=stream), TypeError)
refused(lambda: fill((1024,), (256,), (memory.ptr, 4, 0, 1), stream=stream), TypeError)
refused(lambda: fill((1024,), (256,), arguments, stream=other), driver_error)
refused(lambda: stream.end_capture(), runtime_error)
stream.begin_capture()
print(stream.is_capturing())
refused(lambda: stream.begin_capture(), runtime_error)
graph = stream.end_capture()
stream.begin_capture()
refused(lambda: graph.upload(stream), runtime_error)
stream.end_capture()
graph.upload(stream)
graph.launch(stream)
del graph
print(event.done, runtime.eventQuery(event.ptr))
stream.record(event)
last = stream.record()
last.synchronize()
print(stream.done, cuda.get_elapsed_time(event, last), runtime.streamQuery(stream.ptr))
refused(lambda: cuda.get_elapsed_time(event, other.record(elsewhere)), runtime_error)
runtime.check_status(0)
free = runtime.memGetInfo()[0]
del memory
print(runtime.memGetInfo()[0] - free)
"""


def test_what_cupy_refuses(tmp_path: Path) -> None:
    with DoubleEnvironment(DoubleSettings(Scenario("2.28.9", 1, machine="dgx-h100", gpus_per_node=2))) as environment:
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT],
            env=environment.variables(),
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    assert done.stderr == ""
    invalid = "CUDARuntimeError cudaErrorInvalidResourceHandle: invalid resource handle"
    assert done.stdout.splitlines() == [
        "1 0",
        "TypeError an int is required, not str",
        "CUDARuntimeError cudaErrorInvalidDevice: invalid device ordinal",
        "CUDARuntimeError cudaErrorInvalidDevice: invalid device ordinal",
        "TypeError an int is required, not float",
        "OutOfMemoryError Out of memory allocating 107,374,182,400 bytes.",
        "TypeError Memory and int are required",
        "NotImplementedError the double has streams that do not block: Stream(non_blocking=True)",
        "NotImplementedError the double has events with times, of one process",
        "TypeError the double has no default stream to record on",
        invalid,
        "TypeError code has to be a str, and options a tuple of str",
        "CUDADriverError CUDA_ERROR_NOT_FOUND: named symbol not found",
        "NotImplementedError the double knows the kernels fill and check of tuner.bench.gpu, not fill",
        "CompileException fill: KeyError('K_TYPE') in ()",
        "ValueError grid and block have to be tuples of one to three numbers",
        f"TypeError fill takes 4 arguments of 64 bits without a sign: {done.stdout.splitlines()[16].split(': ', 1)[1]}",
        f"TypeError fill takes 4 arguments of 64 bits without a sign: {done.stdout.splitlines()[17].split(': ', 1)[1]}",
        "CUDADriverError CUDA_ERROR_INVALID_HANDLE: invalid resource handle",
        "CUDARuntimeError cudaErrorIllegalState: the operation cannot be performed in the present state",
        "True",
        "CUDARuntimeError cudaErrorIllegalState: the operation cannot be performed in the present state",
        "CUDARuntimeError cudaErrorStreamCaptureUnsupported: operation not permitted when stream is capturing",
        "True 0",
        "True 0.0 0",
        invalid,
        str(1 << 20),
    ]


def test_variables_of_another_double_do_not_reach_a_process(tmp_path: Path) -> None:
    planned = DoubleSettings(
        Scenario("2.28.9", 1, machine="dgx-h100", gpus_per_node=2, environment={"NCCL_MAX_CTAS": "4"})
    )
    given = {
        "PATH": "/bin",
        "NCCL_ALGO": "Ring",
        "CUDA_VISIBLE_DEVICES": "",
        VARIABLE: "/old",
        "PYTHONPATH": "/old:/own",
    }
    with DoubleEnvironment(planned) as environment:
        found = environment.variables(given)
        folder = str(environment.folder)
    assert (found[VARIABLE], found["LD_LIBRARY_PATH"], found["NCCL_MAX_CTAS"]) == (folder, folder, "4")
    assert found["PYTHONPATH"].startswith(folder)
    assert found["PYTHONPATH"].endswith(":/own")
    assert not {"NCCL_ALGO", "CUDA_VISIBLE_DEVICES"} & found.keys()
    assert not environment.folder.exists()


def test_the_environment_of_a_double_is_gone_afterwards() -> None:
    fault = Fault(FaultKind.hang)
    with DoubleEnvironment(DoubleSettings(Scenario("2.28.9", 1, machine="dgx-h100"), faults=(fault,))) as environment:
        folder = environment.folder
        assert (folder / "cupy" / "cuda").is_dir()
    assert not folder.exists()
