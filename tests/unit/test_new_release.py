"""A release without new rules is one file by hand and one command: everything that lists releases knows it then.

2.99.0 stands for it here: a child of the newest, with a few constants of its own. Its graphs are searched.
"""

import json
import shutil
import subprocess
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

import pytest

from tests.support import with_tables
from tuner import release

NEW, NEWEST = "2.99.0", release.names()[-1]
FILE = f"""
release = "{NEW}"
parent = "{NEWEST}"

[library.cu12]                             # libnccl.so.2 of the wheel nvidia-nccl-cu12 {NEW}
x86_64.sha256 = "{"0" * 64}"
x86_64.bytes = 500000000

[base_latency_us]                          # baseLatencies                  src/tuning/cost_model.cc
tree = {{ ll = 60.0 }}

[rules]
pick = "first_fastest"                     # src/tuning/tuning.cc
"""
CLI = "from tuner.cli import main; main()"
Run = Callable[..., str]


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of all tables with the new release."""
    folder = tmp_path_factory.mktemp("package") / "tables"
    shutil.copytree(Path(str(files("tuner.tables").joinpath("nccl"))).parent, folder)
    (folder / "nccl" / f"{NEW}.toml").write_text(FILE)
    return folder


@pytest.fixture(scope="module")
def run(tables: Path) -> Run:
    """What the command line prints there."""

    def answer(*arguments: str) -> str:
        done = with_tables.python(tables, CLI, *arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return answer


def evaluated(tables: Path, imports: str, expression: str) -> object:
    done = with_tables.python(tables, f"import json; {imports}; print(json.dumps({expression}))")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def failure(tables: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    done = with_tables.python(tables, CLI, *arguments)
    assert done.returncode == 2, done.stdout
    return done


SCENARIO = ("--machine", "dgx-h100", "--nodes", "2")


def test_the_tables_here_do_not_know_it() -> None:
    assert NEW not in release.names()


def test_it_is_the_last_of_all_releases(tables: Path) -> None:
    assert evaluated(tables, "from tuner import release", "release.names()") == [*release.names(), NEW]


def test_it_is_what_its_file_says_and_else_its_parent(tables: Path) -> None:
    imports = "from tuner import release; from tuner.release import differences, load"
    keys = evaluated(tables, imports, f"[each.key for each in differences(load('{NEWEST}'), load('{NEW}'))]")
    assert keys == ["base_latency_us.tree.ll", "rules.pick"]


def test_it_is_what_is_picked_for_unless_another_is_asked_for(run: Run) -> None:
    for arguments in ((), ("--nccl", NEW)):
        answer = json.loads(run("pick", "allreduce", *SCENARIO, "--bytes", "8", "--json", *arguments))
        assert answer[0]["nccl"] == NEW


def test_its_constants_count(run: Run) -> None:
    answers = [
        json.loads(run("pick", "allreduce", *SCENARIO, "--bytes", "8", "--json", "--nccl", nccl))
        for nccl in (NEWEST, NEW)
    ]
    own, new = (answer[0]["pick"] for answer in answers)
    assert (own["algorithm"], own["protocol"]) == ("Tree", "LL")
    assert (new["algorithm"], new["protocol"]) != ("Tree", "LL")


def test_it_differs_from_its_parent_where_its_constants_say_so(run: Run) -> None:
    answer = run("diff", "allreduce", *SCENARIO, "--nccl", NEWEST, NEW)
    assert f"NCCL {NEW}" in answer or NEW in answer
    assert "Tree/LL" in answer


def test_ranges_and_steps_of_it(run: Run) -> None:
    assert NEW in run("edges", "allreduce", *SCENARIO, "--nccl", NEW)
    assert NEW in run("explain", "allreduce", *SCENARIO, "--nccl", NEW, "--bytes", "8")


@pytest.mark.slow
def test_every_pair_of_releases_has_one_with_it(run: Run) -> None:
    assert NEW in run("diff", "allreduce", *SCENARIO, "--all-releases")


def test_plugins_know_how_it_loads_them(run: Run, tables: Path) -> None:
    imports = "from tuner import release; from tuner.plugin import loading"
    versions = [
        evaluated(tables, imports, f"loading.interface(release.load('{nccl}')).version") for nccl in (NEWEST, NEW)
    ]
    assert versions[0] == versions[1]
    table = tables / "out.table"
    run("plugin", "compile", "allreduce", *SCENARIO, "--nccl", NEW, "--out", str(table))
    assert f"# release: NCCL {NEW}" in table.read_text()


@pytest.mark.parametrize(
    "arguments",
    [
        ("pick", "allreduce", *SCENARIO, "--bytes", "8", "--nccl", f"{NEW[:-1]}8"),  # the nearest
        ("fetch-nccl",),
    ],
)
def test_it_is_among_what_is_valid(arguments: tuple[str, ...], tables: Path) -> None:
    said = failure(tables, *arguments).stderr
    assert "2.18.1" in said or arguments[0] == "pick"
    assert NEW in said


def test_its_graphs_are_those_of_its_parent_where_it_changes_nothing_of_the_search(run: Run) -> None:
    words = ("graphs", "--machine", "a100-4x-1nic", "--nodes", "2", "--json", "--nccl")
    assert json.loads(run(*words, NEW)) == json.loads(run(*words, NEWEST))


HERE = f"import sys; sys.path.insert(0, {str(Path(__file__).parents[2])!r})"


@pytest.mark.slow
def test_the_documentation_has_a_part_on_it(tables: Path) -> None:
    changes = evaluated(tables, f"{HERE}; from tests.support import derived_docs", "derived_docs.changes()")
    assert isinstance(changes, str)
    (row,) = (line for line in changes.splitlines() if line.startswith(f"| {NEW} |"))
    assert row.split("|")[2].strip() == "1", "one kind of rule has changed"


def test_the_live_tests_and_the_comparison_of_releases_list_it(tables: Path) -> None:
    imports = f"{HERE}; from tests.support import available_releases"
    few = evaluated(tables, imports, "sorted(available_releases.FEW - {None})")
    assert isinstance(few, list)
    assert NEW in few
    # One NVLink domain of each kind will do: each is searched to know whether the release answers it.
    fewer = "planned.DOMAINS, planned.TRAYS = planned.DOMAINS[:1], planned.TRAYS[:1]"
    imports = f"{HERE}; from pathlib import Path; from tests.support import planned_communicators as planned; {fewer}"
    plan = f"planned.plan('{NEW}', Path({str(tables)!r}))"
    communicators = evaluated(tables, imports, f"[[each.scenario.nccl, each.of_domain] for each in {plan}]")
    assert isinstance(communicators, list)
    assert {nccl for nccl, _ in communicators} == {NEW}
    assert {of_domain for _, of_domain in communicators} == {True, False}
