"""Ranks that were started with different things: the real library asked as each kind of rank, against ``preflight``.

The ranks of an oracle share one environment and one library. So it is asked once for each kind of rank: with its
host first, where hosts differ, and with its variables, release and decision table on all ranks. What ranks do not
exchange (variables of the choice, tables, processors up to 2.23) is so the kind's own, and what they exchange is that
of all hosts.
"""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.available_releases import HERE
from tests.support.preflight_records import AMD, INTEL, Host, with_processor, write
from tuner import plugin, release
from tuner.base.names import Collective, DataType, Op
from tuner.base.nouns import Span
from tuner.emulator.request import Request
from tuner.jobs.preflight.alone import DifferingPicks, RankPick, all_differing_picks
from tuner.jobs.preflight.reading import read
from tuner.jobs.preflight.settings import DescribedNodes, RankSetting, Views, assemble, node_of
from tuner.oracle.api import Oracle
from tuner.plugin import loading
from tuner.scenario.node import ResolvedNode
from tuner.scenario.oracle_configuration import OracleConfiguration

pytestmark = pytest.mark.live
REQUESTS = tuple(Request(kind, DataType.float32, Op.sum) for kind in (Collective.AllReduce, Collective.AllGather))
MOST_BYTES = 1 << 30
MOST_SIZES = 60  # of each collective
WITH_TABLES = [name for name in HERE if loading.has_plugins(release.load(name))]


def hosts(nccl: str) -> dict[str, tuple[Host, ...]]:
    """Two ranks on each host, by what differs."""
    h100, a100 = Host("a", "dgx-h100", nccl, ranks=2), Host("b", "dgx-a100", nccl, ranks=2)
    other = replace(h100, name="b")
    slower = [{**adapter, "gbps": 100.0} for adapter in h100.record(0)["adapters"]]
    fewer = h100.record(0)["adapters"][:1]
    return {
        "Intel and AMD": (with_processor(h100, INTEL), with_processor(other, AMD)),
        "AMD and Intel": (with_processor(h100, AMD), with_processor(other, INTEL)),
        "H100 and A100": (h100, a100),
        "A100 and H100": (a100, replace(h100, name="c")),
        "slower adapters": (h100, replace(other, more={"adapters": slower})),
        "fewer adapters": (h100, replace(other, more={"adapters": fewer})),
        "one rank with another NCCL_ALGO": (h100, replace(other, env_of_rank={1: {"NCCL_ALGO": "Ring"}})),
        "a host with another NCCL_PROTO": (h100, other.with_env(NCCL_PROTO="^LL")),
        "a host with more channels": (h100, other.with_env(NCCL_MIN_NCHANNELS="24")),
        "a host with fewer threads": (h100, other.with_env(NCCL_NTHREADS="256")),
        "another release": (h100, replace(other, nccl=HERE[0] if nccl != HERE[0] else HERE[-1])),
    }


def views_of(folder: Path, *those: Host) -> Views:
    return Views(assemble(read(write(folder, *those)), DescribedNodes()).hosts)


def configuration(views: Views, own: RankSetting) -> OracleConfiguration:
    """The communicator with a host of these ranks first, and all that ranks share as these have it."""
    nccl = release.load(own.nccl)
    first = next(host for host in views.hosts if own in host.settings)
    each = [
        ResolvedNode(node_of(own if own in host.settings else host.settings[0], nccl)).for_oracle(host.count)
        for host in [first, *(other for other in views.hosts if other is not first)]
    ]
    others = tuple(host for other in each[1:] for host in other.hosts)
    return replace(each[0], others=others, env=dict(own.environment))


def sizes_of(differing_picks: list[DifferingPicks], request: Request, ranks: int) -> list[int]:
    """Both ends of ranges at which ranks part, their neighbours, and powers of two: as far as a call can have them."""
    unit = request.unit_bytes(ranks)
    ends = {
        end
        for each in differing_picks
        for end in (each.from_bytes, each.to_bytes)
        if each.collective is request.collective
    }
    near = {end + beside for end in ends for beside in (-unit, 0, unit)} | {1 << power for power in range(3, 30, 2)}
    reachable = sorted({size // unit * unit for size in near if unit <= size <= MOST_BYTES})
    return reachable[:: -(-len(reachable) // MOST_SIZES)]


def pick_at(differing_picks: list[DifferingPicks], size: int, at: int) -> RankPick | None:
    return next((each.picks[at] for each in differing_picks if each.from_bytes <= size <= each.to_bytes), None)


@pytest.mark.each_choice
@pytest.mark.parametrize("case", hosts(HERE[0]))
@pytest.mark.parametrize("nccl", HERE)
def test_each_kind_of_rank_launches_what_it_is_said_to(nccl: str, case: str, tmp_path: Path) -> None:
    views = views_of(tmp_path, *hosts(nccl)[case])
    assert len(views.settings) == 2
    differing_picks = all_differing_picks(views, REQUESTS, Span(high=MOST_BYTES))
    launched: dict[tuple[Collective, int], list[tuple[object, ...]]] = {}
    for at, own in enumerate(views.settings):
        with Oracle(configuration(views, own)) as oracle:
            for request in REQUESTS:
                of_one = [each for each in differing_picks if each.collective is request.collective]
                sizes = sizes_of(of_one, request, oracle.facts.n_ranks)
                picks = views.selection(own).pick(request, sizes)
                for row, real in enumerate(oracle.launch(request, sizes)):
                    libnccl = real.algorithm, real.protocol, real.channels
                    assert libnccl == (picks.algorithm[row], picks.protocol[row], picks.channels[row]), sizes[row]
                    if (said := pick_at(of_one, sizes[row], at)) is not None:
                        assert libnccl == (said.algorithm, said.protocol, said.channels), sizes[row]
                        assert said.threads in (None, real.threads), sizes[row]
                    launched.setdefault((request.collective, sizes[row]), []).append((*libnccl, real.threads))
    threads = 4 if any(release.load(own.nccl).ranks.threads_divide_data for own in views.settings) else 3
    for (collective, size), of_kinds in launched.items():
        if len(of_kinds) == 2:  # a size that both can have
            part = any(
                each.collective is collective and each.from_bytes <= size <= each.to_bytes for each in differing_picks
            )
            assert (of_kinds[0][:threads] != of_kinds[1][:threads]) == part, f"{collective.name} {size}"


@pytest.mark.parametrize("nccl", WITH_TABLES)
def test_a_host_with_another_decision_table(nccl: str, tmp_path: Path) -> None:
    tables = [tmp_path / "one.table", tmp_path / "other.table"]
    both = "allgather -> ring/ll channels=5\nallreduce bytes=..32K -> ring/simple channels=20\n"
    for table, end in zip(tables, ("1M", "2M"), strict=True):
        table.write_text(f"nccl-tuner-table 1\n{both}allreduce bytes=64K..{end} -> tree/simple channels=3\n")
    views = views_of(tmp_path / "records", Host("a", "dgx-h100", nccl, ranks=2), Host("b", "dgx-h100", nccl, ranks=2))
    (alike,) = views.settings
    one, other = (replace(alike, table=table) for table in tables)
    views = Views(replace(views.hosts[0], settings=(each,), count=1) for each in (one, other))
    differing_picks = all_differing_picks(views, REQUESTS, Span(high=MOST_BYTES))
    assert (differing_picks[0].from_bytes, differing_picks[-1].to_bytes) == ((1 << 20) + 1, 2 << 20)
    for at, own in enumerate(views.settings):
        described = configuration(views, own)
        with_table = {**described.env, "NCCL_TUNER_TABLE": str(own.table)}
        with Oracle(replace(described, plugin=plugin.path(), env=with_table)) as oracle:
            for request in REQUESTS:
                sizes = sizes_of(differing_picks, request, 4)
                picks = views.selection(own).pick(request, sizes)
                for row, real in enumerate(oracle.launch(request, sizes)):
                    libnccl = real.algorithm, real.protocol, real.channels, real.threads
                    columns = picks.algorithm, picks.protocol, picks.channels, picks.threads
                    assert libnccl == tuple(column[row] for column in columns), sizes[row]
                    said = pick_at(differing_picks, sizes[row], at) if request is REQUESTS[0] else None
                    assert said is None or (said.algorithm, said.protocol, said.channels) == libnccl[:3], sizes[row]
