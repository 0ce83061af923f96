"""`plugin compile`: a release's picks and times as tables, and tables from measurements."""

import re
from pathlib import Path

import numpy as np
import pytest

from tests.support.command_line import run
from tests.support.table_search import find
from tuner import release
from tuner.base.errors import BadInput, BadMeasurement
from tuner.base.names import Algorithm, Collective, Protocol
from tuner.base.nouns import Span
from tuner.emulator.rules import bounds
from tuner.emulator.rules.call import RuleCall
from tuner.emulator.selection import Selection
from tuner.oracle.conformance.check import sizes_bytes
from tuner.plugin import compile
from tuner.plugin.dry_run import DryRun, TunerCall
from tuner.plugin.formats import measured
from tuner.plugin.table import parse
from tuner.plugin.table.records import Table, TableChoice
from tuner.scenario import Scenario

AR = Collective.AllReduce
FEW = ["2.18.1", "2.21.5", "2.23.4", "2.27.7", "2.28.9", "2.30.7", "2.32.3"]
SHAPES = [("dgx-h100", 2, 8), ("dgx-h100", 1, 8), ("dgx-a100", 2, 2), ("dgx-b200", 2, 4), ("dgx-h100", 8, 1)]


def selection(nccl: str, machine: str = "dgx-h100", nodes: int = 2, gpus: int = 8) -> Selection:
    return Selection(Scenario(nccl=nccl, machine=machine, nodes=nodes, gpus_per_node=gpus).communicator())


@pytest.mark.each_choice
@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", FEW)
def test_costs_are_the_models_bits_in_the_plugins_arithmetic(
    name: str, shape: tuple[str, int, int], tmp_path: Path
) -> None:
    model = selection(name, *shape)
    path = tmp_path / "t"
    parse.write(path, Table(costs=tuple(compile.costs(model, Collective))))
    compared = 0
    with DryRun(path, ranks=model.communicator.ranks, nodes=model.communicator.nodes) as plugin:
        for collective in Collective:
            sizes = sizes_bytes(compile.request(collective), model.communicator.ranks, 2**60)[::3]
            for pipelined in (1, 7, 100):
                asked = compile.request(collective)
                wanted = model.cost_table(type(asked)(collective, asked.dtype, asked.op, pipelined), sizes)
                for size, expected in zip(sizes, wanted, strict=True):
                    asked_as = TunerCall(collective, size, pipelined=pipelined)
                    cells = plugin.ask(asked_as, np.where(expected < 0, -1, 1)).cost_us
                    last = np.minimum(expected, np.float32(3e9))  # slower than an hour, or PAT as the last choice
                    assert cells.tobytes() == np.where(expected < 0, np.float32(-1), last).tobytes()
                    compared += int((expected >= 0).sum())
    assert compared > 1000


@pytest.mark.slow
@pytest.mark.parametrize("name", release.names())
def test_a_table_of_any_release_can_be_written(name: str) -> None:
    model = selection(name)
    table = Table(tuple(compile.decisions(model, Collective)), tuple(compile.costs(model, Collective)))
    assert parse.from_text(parse.to_text(table)) == table
    for collective in Collective:
        sizes = sizes_bytes(compile.request(collective), 16)
        picks = model.pick(compile.request(collective), sizes)
        for at, size in enumerate(sizes):
            row = find(table.decisions, collective, size, ranks=16, nodes=2)
            assert row is not None
            assert row.choices[0].algo_proto == (picks.algorithm[at], picks.protocol[at])
    assert find(table.decisions, AR, 0, ranks=16, nodes=2)
    assert find(table.decisions, AR, 2**64 - 1, ranks=16, nodes=2)
    assert not find(table.decisions, AR, 8, ranks=8, nodes=1)


def test_channels_are_the_bound() -> None:
    model = selection("2.28.9")
    rows = compile.decisions(model, [AR], channels=True)
    assert len(rows) > 16
    for row in rows:
        for size in (max(row.bytes.low, 1), row.bytes.high or 2**40):
            algo_proto = row.choices[0].algo_proto
            bound = bounds.bound(RuleCall(model.communicator, compile.request(AR), algo_proto), model.tables, size)
            assert row.choices[0].channels == bound


def test_channels_that_nccl_would_not_check_are_left_out() -> None:
    several = Scenario(
        nccl="2.28.9", machine="dgx-a100", nodes=2, collnet=True, environment={"NCCL_COLLNET_ENABLE": "1"}
    )
    rows = compile.decisions(Selection(several.communicator()), [AR], channels=True)
    network = [row.choices[0] for row in rows if row.choices[0].algorithm is Algorithm.CollNetDirect]
    assert network
    assert all(choice.channels is None for choice in network)


def test_a_time_that_grades_with_the_size_is_refused() -> None:
    with pytest.raises(BadInput, match=r"AllReduce Ring/Simple in NCCL 2\.32\.3: its time changes continuously"):
        compile.costs(selection("2.32.3", "dgx-b200", 1), [AR])


def test_rows_that_the_other_release_cannot_run_are_left_out() -> None:
    alone = selection("2.28.9", nodes=8, gpus=1)
    rows = compile.decisions(alone, [Collective.AllGather])
    assert Algorithm.PAT in [row.choices[0].algorithm for row in rows]
    kept, notes = compile.for_release(rows, selection("2.22.3", nodes=8, gpus=1))
    assert [row.choices[0].algorithm for row in kept] == [Algorithm.Ring] * len(kept)
    assert len(kept) + len(notes) == len(rows)
    assert "keeps its own choice: PAT does not do AllGather" in notes[0]
    assert any("LL128" in note for note in compile.for_release([], selection("2.21.5"))[1])
    assert len(compile.for_release([], selection("2.20.5"))[1]) == 2
    costs = compile.costs(alone, [Collective.AllGather])
    on_costs = compile.notes_on_costs(costs, selection("2.22.3", nodes=8, gpus=1))
    assert on_costs == ["AllGather PAT/Simple cannot run there: PAT does not do AllGather"]


HEADER = (
    "collective,size_bytes,algorithm,protocol,channels,nodes,ranks,pipeOps,regBuff,cost_metric,bandwidth_gbps,latency_us"
)  # fmt: skip


def samples(folder: Path, *rows: str) -> Path:
    path = folder / "sweep.csv"
    path.write_text("\n".join([HEADER, *rows, ""]))
    return path


def test_the_best_median_wins_up_to_halfway(tmp_path: Path) -> None:
    rows, notes = measured.decisions(
        measured.read(
            samples(
                tmp_path,
                "allreduce,1024,ring,ll,-1,2,16,-1,-1,0,0,9",
                "allreduce,1024,ring,ll,-1,2,16,-1,-1,0,0,5",
                "allreduce,1024,ring,ll,-1,2,16,-1,-1,0,0,5",
                "allreduce,1024,tree,ll,4,2,16,-1,-1,0,0,6",
                "allreduce,2048,tree,ll,4,2,16,-1,-1,0,0,7",
                "allreduce,2048,ring,ll,-1,2,16,-1,-1,0,0,7",
                "allreduce,4097,nvls_tree,Simple,8,2,16,-1,-1,0,0,7",
                "allreduce,4097,ring,ll,-1,2,16,-1,-1,0,0,8",
                "allreduce,8192,nvls_tree,Simple,8,2,16,-1,-1,0,0,9",
                "AllReduce,64,tree,ll,-1,-1,-1,1,1,0,0,9",
                "AllReduce,64,tree,ll,-1,-1,-1,1,1,0,0,9",
                "AllReduce,64,ring,ll,-1,-1,-1,1,1,0,0,10",
            )
        )
    )
    assert [(row.bytes, row.choices) for row in rows] == [
        (Span(0, 3072), (TableChoice(Algorithm.Ring, Protocol.LL),)),
        (Span(3073, None), (TableChoice(Algorithm.NVLSTree, Protocol.Simple, 8),)),
        (Span(0, None), (TableChoice(Algorithm.Tree, Protocol.LL),)),
    ]
    assert [(row.ranks.high, row.nodes.high, row.pipelined, row.registered) for row in rows] == [
        (16, 2, Span(0), None),
        (16, 2, Span(0), None),
        (None, None, Span(1, 1), True),
    ]
    assert notes == [
        "AllReduce of 2048 bytes: 2 choices are equally fast",
        "AllReduce of 2048 bytes: a single sample of the fastest",
        "AllReduce of 4097 bytes: a single sample of the fastest",
        "AllReduce of 8192 bytes: a single sample of the fastest",
        "AllReduce of 8192 bytes: nothing to compare with",
    ]


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ("allreduce,x,ring,ll,-1,2,16,-1,-1,0,0,9", "2: size_bytes 'x'"),
        ("allreduce,-1,ring,ll,-1,2,16,-1,-1,0,0,9", "2: size_bytes '-1'"),
        ("allreduce,8,rings,ll,-1,2,16,-1,-1,0,0,9", "2: unknown algorithm 'rings'; valid: Tree, Ring"),
        ("allreduce,8,ring,ll,99,2,16,-1,-1,0,0,9", "2: channels '99'; valid: -1, 1 to 64"),
        ("allreduce,8,ring,ll,-1,2,16,-1,2,0,0,9", "2: regBuff '2'; valid: -1, 0 to 1"),
        ("allreduce,8,ring,ll,-1,2,16,-1,-1,0,0,", "2: latency_us '' is not a time"),
        ("allreduce,8,ring,ll,-1,2,16,-1,-1,0,0,nan", "2: latency_us 'nan' is not a time"),
        ("allreduce,8,ring,ll", "2: channels ''"),
    ],
)
def test_a_bad_sample(tmp_path: Path, row: str, says: str) -> None:
    with pytest.raises(BadMeasurement, match=re.escape(f"sweep.csv:{says}")):
        measured.read(samples(tmp_path, row))


def test_no_samples(tmp_path: Path) -> None:
    with pytest.raises(BadMeasurement, match="no measurement"):
        measured.read(samples(tmp_path))
    (tmp_path / "sweep.csv").write_text("a,b\n1,2\n")
    with pytest.raises(BadMeasurement, match=r"sweep\.csv:1: column collective is missing"):
        measured.read(tmp_path / "sweep.csv")
    with pytest.raises(BadMeasurement, match="No such file"):
        measured.read(tmp_path / "none.csv")


def test_the_command(tmp_path: Path) -> None:
    out = tmp_path / "o.table"
    scenario = ("--machine", "dgx-h100", "--nodes", "2", "--nccl", "2.28.9")
    done = run("plugin", "compile", "allreduce", *scenario, "--for", "2.21.5", "--out", str(out))
    assert done.stdout == f"{out}: 4 rows\n"
    assert done.stderr == "note: NCCL 2.21.5 hands over no times: LL128 and CollNet need NCCL_TUNER_UNCHECKED=1\n"
    written = parse.read(out)
    assert written.provenance["release"] == "NCCL 2.28.9"
    assert (
        written.provenance["by"] == f"nccl-tuner plugin compile allreduce {' '.join(scenario)} --for 2.21.5 --out {out}"
    )
    run("plugin", "compile", *scenario, "--as", "costs", "--out", str(out), "--json")
    assert {row.collective for row in parse.read(out).costs} == set(Collective)
    run("plugin", "compile", *scenario, "--as", "costs", "--channels", "--out", str(out), code=2)
    file = str(samples(tmp_path, "allreduce,8,ring,ll,-1,2,16,-1,-1,0,0,9"))
    run("plugin", "compile", *scenario, "--measured", file, "--out", str(out), code=2)
    assert "1 row" in run("plugin", "compile", "--measured", file, "--out", str(out)).stdout
    lost = run("plugin", "compile", *scenario, "--out", str(tmp_path / "no" / "folder"), code=2)
    assert "No such file or directory" in lost.stderr
