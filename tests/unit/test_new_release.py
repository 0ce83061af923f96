"""A release without new rules is one file by hand and one command: everything that lists releases knows it then.

2.99.0 stands for it here: a child of the newest, with a few constants of its own. Its graphs are searched.
"""

import json
import os
import shutil
import struct
import subprocess
import tomllib
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.scripts import add_release, newest_release
from tests.support import with_tables
from tests.support.command_line import run as run_command
from tuner import release
from tuner.base import extras
from tuner.base.errors import BadReleaseFile, OracleFailed, OracleUnavailable, UnknownRelease
from tuner.base.files import sha256
from tuner.oracle.conformance import learn
from tuner.oracle.conformance.learn import Learning
from tuner.release import learnt, reader
from tuner.release.variables import in_library

NEW, NEWEST = "2.99.0", release.names()[-1]
FILE = f"""
release = "{NEW}"
parent = "{NEWEST}"

[library.cu12]                             # libnccl.so.2 the wheel nvidia-nccl-cu12 {NEW}
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
        assert answer["picks"][0]["nccl"] == NEW


def test_its_constants_count(run: Run) -> None:
    answers = [
        json.loads(run("pick", "allreduce", *SCENARIO, "--bytes", "8", "--json", "--nccl", nccl))
        for nccl in (NEWEST, NEW)
    ]
    own, new = (answer["picks"][0]["pick"] for answer in answers)
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


DIGEST = "ab" * 32
NAME = learnt.name_of("2.28.9", DIGEST)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NCCL_TUNER_CACHE", str(tmp_path))
    reader.forget()
    return tmp_path


def kept(library: Path, equal: int = 5, digest: str = DIGEST, **changes: object) -> str:
    origin = learnt.LearntFrom(str(library), digest, 5, equal)
    name = learnt.name_of("2.28.9", digest)
    learnt.keep(
        name, learnt.text(name, "2.28.9", origin, {key.replace("__", "."): value for key, value in changes.items()})
    )
    reader.forget()
    return name


def test_a_learnt_release_is_its_parent_with_what_differs() -> None:
    own, parent = release.load(kept(Path("/x"), base_latency_us__ring__ll=7.25)), release.load("2.28.9")
    assert own.name == NAME
    assert not own.library
    assert [(each.key, each.before, each.after) for each in release.differences(parent, own)] == [
        ("base_latency_us.ring.ll", 6.6, 7.25)
    ]
    assert learnt.origin_of(own) == learnt.LearntFrom("/x", DIGEST, 5, 5)
    assert learnt.origin_of(parent) is None


def test_a_library_is_the_release_that_was_learnt_from_it(tmp_path: Path) -> None:
    library = tmp_path / "libnccl.so.2"
    library.write_bytes(b"a build of one's own")
    with pytest.raises(UnknownRelease, match="was not learnt yet"):
        release.named(str(library))
    name = kept(library, digest=sha256(library), base_latency_us__ring__ll=70.25)
    assert release.named(str(library)) == name
    words = ("pick", "allreduce", "--machine", "dgx-h100", "--bytes", "1K")
    slow, known = (run_command(*words, "--nccl", nccl) for nccl in (str(library), "2.28.9"))
    assert "learnt, 5 of 5 compared equal" in slow.stderr
    assert name in slow.stdout
    assert slow.stdout.partition("\n")[2] != known.stdout.partition("\n")[2]
    assert "base_latency_us.ring.ll" in run_command("diff", *words[1:4], "--nccl", "2.28.9", str(library)).stdout
    library.write_bytes(b"another one")
    with pytest.raises(UnknownRelease, match="was not learnt yet"):
        release.named(str(library))


def test_a_library_that_differs_is_refused(tmp_path: Path) -> None:
    library = tmp_path / "libnccl.so.2"
    library.write_bytes(b"a build")
    kept(library, equal=4, digest=sha256(library))
    refused = run_command("pick", "allreduce", "--machine", "dgx-h100", "--nccl", str(library), code=2).stderr
    assert "not emulated exactly: learnt, 4 of 5 compared equal" in refused
    assert refused.count("\n") == 1
    assert (
        "is not a file"
        in run_command("pick", "allreduce", "--machine", "dgx-h100", "--nccl", "/x/libnccl.so.2", code=2).stderr
    )


def test_files_that_others_could_have_written_count_for_none(monkeypatch: pytest.MonkeyPatch) -> None:
    file = learnt.file_of(kept(Path("/x")))
    release.load(NAME)
    reader.forget()
    file.chmod(0o666)
    with pytest.raises(UnknownRelease, match="this user has learnt no file"):
        release.load(NAME)
    file.chmod(0o644)
    release.load(NAME)
    reader.forget()
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(UnknownRelease, match="this user has learnt no file"):
        release.load(NAME)


def test_a_file_that_says_nonsense_names_file_and_key() -> None:
    kept(Path("/x"), base_latency_us__ring__ll="fast")
    with pytest.raises(BadReleaseFile, match=r"learnt/2.28.9@.*base_latency_us.ring.ll"):
        release.load(NAME)


def test_what_is_no_library_is_refused_at_once(tmp_path: Path) -> None:
    """A pipe would be waited at, and 10 GB of holes would be hashed for a minute."""
    pipe, sparse, text = (tmp_path / name for name in ("pipe", "sparse", "text"))
    os.mkfifo(pipe)
    with sparse.open("wb") as file:
        file.truncate(10 << 30)
    text.write_text("no library")
    for path, said in ((pipe, "is not a file"), (Path("/dev/zero"), "is not a file"), (sparse, "is larger than 2 GiB")):
        for words in (("oracle", "learn"), ("pick", "allreduce", "--machine", "dgx-h100", "--nccl")):
            refused = run_command(*words, str(path), code=2).stderr
            assert said in refused
            assert refused.count("\n") == 1
    assert run_command("oracle", "learn", str(text), code=2).stderr.startswith(
        f"nccl-tuner: {text} is not an ELF shared"
    )


@pytest.mark.parametrize("damage", ["cut", "sections_beyond", "no_sections", "symbols", "names", "program"])
def test_a_damaged_library_is_refused_in_one_line(tmp_path: Path, damage: str) -> None:
    """Whatever its headers say of sections, symbols and segments."""
    own = Path(extras.shared_object("nccl_tuner_sim")).read_bytes()
    sections, number = struct.unpack_from("<Q", own, 0x28)[0], struct.unpack_from("<H", own, 0x3C)[0]
    of_type = {struct.unpack_from("<I", own, sections + 64 * at + 4)[0]: sections + 64 * at for at in range(number)}
    assert 2 in of_type  # .symtab
    data = bytearray(own)
    match damage:
        case "cut":
            data = data[: len(data) // 2]
        case "sections_beyond":
            struct.pack_into("<Q", data, 0x28, 1 << 63)
        case "no_sections":
            struct.pack_into("<H", data, 0x3C, 0)
        case "symbols":
            struct.pack_into("<Q", data, of_type[2] + 56, 3)  # bytes of an entry
        case "names":
            struct.pack_into("<I", data, of_type[2] + 40, number + 7)  # the section of their names
        case "program":
            struct.pack_into("<H", data, 0x36, 0)  # bytes of a segment's entry
    library = tmp_path / "libnccl.so.2"
    library.write_bytes(bytes(data) + b"NCCL version 2.28.9+cuda12.9")
    with pytest.raises(OracleUnavailable) as refused:
        learn.learn(library)
    assert str(library) in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_library_that_never_answers_is_asked_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not fifteen times: crash and hang alike."""
    asked = []

    def failing(configuration: object, timeout_s: float) -> None:
        asked.append(timeout_s)
        raise OracleFailed("libnccl did not answer within 60 s", last_lines="one | two")

    monkeypatch.setattr(learn, "Oracle", failing)
    with pytest.raises(OracleUnavailable, match="gave an answer on none of 2 communicators; the last: libnccl did not"):
        learn._probes(tmp_path / "libnccl.so.2", "2.28.9", asked.append)  # type: ignore[arg-type]
    assert asked[0] == asked[2] == learn.ANSWER_S
    assert "not asked on 2 x dgx-h100: libnccl did not answer within 60 s" in str(asked[1])
    assert "last lines" not in str(asked)


LEARNT = Learning("2.99.1@0", "/x", "2.32.3", {"base_latency_us.ring.ll": 7.25}, 1, {}, {}, (), 1.0, "/y")


def test_the_file_of_a_new_release_has_what_was_learnt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    variables, library = tmp_path / "variables.toml", tmp_path / "libnccl.so.2"
    variables.write_text("")
    library.write_bytes(b"a library")
    names = in_library(release.names()[-1]) - {"NCCL_ALGO"} | {"NCCL_NEWER"}
    monkeypatch.setattr(add_release, "FOLDER", tmp_path)
    monkeypatch.setattr(add_release, "VARIABLES", variables)
    monkeypatch.setattr(add_release, "learn", lambda *_, **__: LEARNT)
    monkeypatch.setattr(add_release, "variables_in", lambda _: names)
    fetched = SimpleNamespace(path=library, sha256="ab" * 32)
    monkeypatch.setattr("tuner.oracle.library.fetch", lambda *_: fetched)
    add_release.begin("2.99.1")
    for file in reader._folder().glob("*.toml"):
        (tmp_path / file.name).write_text(file.read_text())
    new, parent = reader.read(tmp_path, "2.99.1"), release.load("2.32.3")
    assert [(each.key, each.after) for each in release.differences(parent, new)] == [("base_latency_us.ring.ll", 7.25)]
    assert new.library["cu12"]["x86_64"].bytes == 9
    assert tomllib.loads(variables.read_text()) == {"2.99.1": {"new": ["NCCL_NEWER"], "gone": ["NCCL_ALGO"]}}


@pytest.mark.parametrize(("said", "unknown"), [("2.99.1", "2.99.1"), ("2.32.3", ""), ("2.26.2.post1", "")])
def test_the_newest_release_of_the_index(said: str, unknown: str) -> None:
    assert newest_release.unknown(f"nvidia-nccl-cu12 ({said})\nAvailable versions: 2.1.1") == unknown
    with pytest.raises(SystemExit, match="no version"):
        newest_release.unknown("ERROR")
