"""Parts of the double by themselves: formulas for data, kernels held to their source, faults as text."""

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from tests.support.available_releases import HERE
from tests.support.compiled_kernels import FFI, NUMPY, compiled
from tests.support.double import contents, errors
from tests.support.double.backend import Double
from tests.support.double.computer import Mark, Own, PlantedError, Stream
from tests.support.double.contents import Altered, Contents, Joined, Part, Reduced, Unset, looked_at, shallow
from tests.support.double.machine import Planted
from tests.support.double.settings import DoubleEnvironment, DoubleSettings, Fault, FaultKind
from tuner import release
from tuner.base.errors import BadInput, MeasuringFailed
from tuner.base.names import Algorithm, Collective, DataType, Op, Protocol
from tuner.bench.backend import Options
from tuner.bench.gpu.kernels import OPS, definitions
from tuner.scenario import Scenario
from tuner.times.measured.header import scenario_of
from tuner.times.measured.samples import Combination, Point

COUNT, SEED, RANKS = 1000, 7, 5


def defined(dtype: DataType, op: Op) -> contents.Compiled:
    return contents.Compiled.of([f"-D{name}={value}" for name, value in definitions(dtype, op, RANKS).items()])


@pytest.mark.slow
@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
@pytest.mark.parametrize("dtype", [*NUMPY, DataType.bfloat16], ids=lambda dtype: dtype.name)
def test_the_kernels_compute_what_their_source_says(tmp_path: Path, dtype: DataType, op: Op) -> None:
    library, ours = compiled(tmp_path, dtype, op, RANKS), defined(dtype, op)
    numbers = np.arange(COUNT, dtype=np.uint64)
    sent = [contents.Sent(ours, rank, SEED) for rank in range(RANKS)]
    for rank, each in enumerate(sent):
        filled = np.zeros(COUNT, f"u{ours.element_bytes}")
        library.fill(FFI.cast("void *", filled.ctypes.data), COUNT, rank, SEED)
        assert np.array_equal(each.at(numbers), filled)
    total = Reduced(tuple(sent), dtype, op)
    counter = FFI.new("uint64_t *")
    bits = np.ascontiguousarray(total.at(numbers))
    library.check(FFI.cast("void *", bits.ctypes.data), COUNT, 0, RANKS, 0, SEED, counter)
    assert counter[0] == 0
    everything, gathered = contents.Expected(COUNT, 0, RANKS, 0, SEED), contents.Expected(COUNT, 0, RANKS, 200, SEED)
    assert contents.wrong(ours, everything, total) == 0
    assert contents.wrong(ours, everything, Altered(total, COUNT - 1)) == 1
    assert contents.wrong(ours, everything, Unset(ours.element_bytes)) > COUNT // 4
    assert contents.wrong(ours, gathered, contents.gathered(sent, 200)) == 0
    assert contents.wrong(ours, contents.Expected(200, 400, RANKS, 0, SEED), Part(total, 400)) == 0


def test_of_many_elements_both_ends_and_others_are_looked_at() -> None:
    assert np.array_equal(looked_at(5), np.arange(5))
    many = looked_at(1 << 28)
    assert len(many) <= contents.MOST_LOOKED_AT
    assert {0, 1, (1 << 28) - 1} <= set(many.tolist())
    for part in range(8):
        assert ((many >> np.uint64(25)) == part).sum() > 100


def test_memory_is_what_was_written_last() -> None:
    memory, numbers = Contents(), np.arange(10, dtype=np.uint64)
    ours = defined(DataType.float32, Op.sum)
    first, second = contents.Sent(ours, 0, 1), contents.Sent(ours, 1, 1)
    memory.write(1000, 10, 4, first)
    memory.write(1012, 3, 4, second)
    found = memory.read(1000, 10, 4).at(numbers)
    assert np.array_equal(found[:3], first.at(numbers[:3]))
    assert np.array_equal(found[3:6], second.at(numbers[:3]))
    assert np.array_equal(found[6:], first.at(numbers[6:]))
    assert np.array_equal(memory.read(1016, 1, 4).at(numbers[:1]), second.at(numbers[1:2]))
    memory.forget(1000, 1004)
    unset = Unset(4).at(numbers)
    assert memory.read(1000, 2, 4).at(numbers[:2]).tolist() == [unset[0], found[1]]
    assert np.array_equal(memory.read(1038, 10, 4).at(numbers), unset), "half of an element"
    assert np.array_equal(memory.read(1000, 5, 8).at(numbers[:5]), Unset(8).at(numbers[:5])), "other elements"
    assert memory.read(5000, 1, 4) == Unset(4)


def test_results_of_results_are_given_up() -> None:
    formula: contents.Formula = contents.Sent(defined(DataType.int8, Op.sum), 0, 1)
    deep = [formula]
    for _ in range(contents.MOST_DEEP):
        deep.append(Joined((Part(deep[-1], 1), Unset(1)), (0, 1)))
    assert [shallow(each, 1) is each for each in deep] == [number <= 3 for number in range(len(deep))]
    assert shallow(deep[-1], 1) == Unset(1)


def test_work_of_a_stream_is_done_in_its_order() -> None:
    stream, mark, done = Stream(0), Mark(), []
    late = Mark()
    stream.put(mark, 3.0)
    stream.put(Own(lambda: done.append(stream.at_us)), 0.0)

    class Fails:
        def done_us(self, start_us: float) -> float | None:
            raise PlantedError(errors.number("cudaErrorIllegalAddress"))

    stream.put(Fails(), 0.0)
    stream.put(late, 0.0)
    assert not stream.go_on()
    assert (mark.at_us, done, late.at_us, stream.error, stream.busy) == (3.0, [3.0], None, 700, True)


def test_faults_that_only_end_a_run_are_no_part_of_its_times() -> None:
    faults = tuple(Fault.parsed(text) for text in ("killed:after=9", "wrong", "hang", "launch-error", "slow", "error"))
    settings = DoubleSettings(Scenario("2.28.9", 1, machine="dgx-h100"), faults=faults)
    assert [str(each.kind) for each in settings.of_times().faults] == ["wrong", "slow"]


@pytest.mark.parametrize(
    "text",
    [
        "hang",
        "killed:rank=1,after=20",
        "error:error=cudaErrorECCUncorrectable",
        "replaced:forced=tree/ll,instead=ring/ll",
    ],
)
def test_faults_are_texts(text: str) -> None:
    fault = Fault.parsed(text)
    assert Fault.parsed(str(fault)) == fault
    settings = DoubleSettings(Scenario("2.28.9", 1, machine="dgx-h100"), faults=(fault,))
    assert DoubleSettings.from_record(settings.record()).faults == (fault,)
    assert settings.of_rank(fault.kind, fault.rank) == fault
    assert settings.of_rank(fault.kind, 7) is None


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("hangs", r"^fault 'hangs'; valid: hang, error, launch-error, killed, wrong, slow, replaced$"),
        ("hang:node=1", r"valid: KIND:rank=N,after=N,error=NAME,forced=tree/ll,instead=ring/ll$"),
        ("hang:rank=x", r"valid: KIND:rank=N"),
        ("error:error=cudaErrorBogus", r"^error 'cudaErrorBogus'; valid: cudaErrorInvalidValue, "),
        ("replaced:forced=tre/ll,instead=ring/ll", r": forced=tre/ll; valid: tree/ll, tree/ll128, "),
        ("replaced:forced=tree/ll,instead=ring/lll", r": instead=ring/lll; valid: tree/ll, "),
        ("replaced:forced=tree/ll", r"valid: replaced:forced=tree/ll,instead=ring/ll$"),
    ],
)
def test_what_is_no_fault(text: str, complaint: str) -> None:
    with pytest.raises(BadInput, match=complaint):
        Fault.parsed(text)


def test_errors_have_cudas_names() -> None:
    assert errors.text(700) == "cudaErrorIllegalAddress: an illegal memory access was encountered"
    assert errors.text(9999) == "cudaErrorUnknown: unknown error"
    with pytest.raises(BadInput, match=r"^error 'oops'; valid: cudaErrorInvalidValue, "):
        errors.number("oops")


def test_every_kind_of_fault_is_documented() -> None:
    page = (Path(__file__).parents[2] / "CONTRIBUTING.md").read_text("utf-8")
    assert [kind for kind in FaultKind if f"| `{kind}" not in page] == []


NCCL = next(name for name in HERE if release.load(name).environment.shares_gpus is not None)
POINT = Point(Collective.AllReduce, 8 << 20)
RING_SIMPLE = Combination(Algorithm.Ring, Protocol.Simple)
MULTIPROCESSORS = 132


def settings(ranks_per_gpu: int, process_per_rank: bool = False, **environment: str) -> DoubleSettings:
    scenario = Scenario(
        NCCL, 1, machine="dgx-h100", gpus_per_node=1, ranks_per_gpu=ranks_per_gpu, environment=environment or None
    )
    return DoubleSettings(scenario, noise=0.0, process_per_rank=process_per_rank)


@pytest.mark.parametrize(("ranks_per_gpu", "process_per_rank"), [(4, False), (2, True)])
@pytest.mark.live
def test_ranks_that_share_a_gpu(tmp_path: Path, ranks_per_gpu: int, process_per_rank: bool) -> None:
    planned = settings(ranks_per_gpu, process_per_rank)
    with closing(Double(planned, Options(topology=tmp_path / "topology.xml"))) as double:
        assert (double.ranks, double.header.ranks_per_gpu) == (ranks_per_gpu, ranks_per_gpu)
        described = scenario_of(double.header)
        assert described.ranks == ranks_per_gpu
        truth = Planted(planned).truth(ranks_per_gpu, described.environment)
        for requested in (None, *double.combinations(POINT)):
            run = double.run(POINT, requested, 1)
            ((_, launched),) = double.launched
            assert launched.channels * ranks_per_gpu <= MULTIPROCESSORS, "all blocks run at once"
            assert (run.executed, run.wrong) == (launched, 0)
            assert run.times_us == pytest.approx((truth.time_us(POINT, launched),), rel=1e-5)


@pytest.mark.live
def test_more_blocks_than_the_gpu_runs_at_once_hang(tmp_path: Path) -> None:
    options = Options(topology=tmp_path / "topology.xml", limit_s=2.0)
    with (
        closing(Double(settings(4, NCCL_MAX_CTAS="64", NCCL_MIN_CTAS="64"), options)) as double,
        pytest.raises(MeasuringFailed, match=r"^a collective was not done within 2 s: a rank is missing or hangs$"),
    ):
        double.run(POINT, RING_SIMPLE, 1)


@pytest.mark.live
def test_releases_that_refuse_it() -> None:
    with pytest.raises(BadInput, match=r"NCCL 2\.30\.3 or later$"):
        DoubleEnvironment(DoubleSettings(Scenario("2.28.9", 1, machine="dgx-h100", gpus_per_node=1, ranks_per_gpu=2)))
