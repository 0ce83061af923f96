"""The command line as a user meets it: answers, the JSON form other tools rely on, and bad input in one line."""

import json
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from tests.scripts.search_graphs import main
from tests.support.available_releases import HERE
from tests.support.command_line import assert_refused, run, run_process, subcommands
from tuner import release
from tuner.base.errors import BadInput, OracleFailed
from tuner.base.files import check_writable
from tuner.cli import ALSO, everything
from tuner.cli.command import OTHER_OPTIONS, OTHER_WORDS
from tuner.cli.output import print_table
from tuner.machine import catalogue
from tuner.oracle.conformance.mismatches import MatchReport
from tuner.scenario import Scenario

PICK = ("pick", "allreduce", "--machine", "dgx-h100", "--nodes", "2", "--nccl", "2.28.9", "--bytes", "8,1K,64MiB")


def test_pick_answers_in_the_form_that_tools_rely_on() -> None:
    answers = json.loads(run(*PICK, "--json").stdout)["picks"]
    assert [answer["bytes"] for answer in answers] == [8, 1024, 64 << 20]
    for answer in answers:
        assert set(answer) == {"collective", "bytes", "nccl", "cost_us", "pick"}
        assert answer["collective"] == "AllReduce"
        assert answer["nccl"] == "2.28.9"
        pick = answer["pick"]
        assert set(pick) == {"algorithm", "protocol", "channels", "threads", "time_us"}
        assert pick["time_us"] == min(answer["cost_us"].values())
        assert answer["cost_us"][f"{pick['algorithm']}/{pick['protocol']}"] == pick["time_us"]


@pytest.mark.live
def test_oracle_answers_the_same() -> None:
    assert json.loads(run(*PICK, "--libnccl", "--json").stdout) == json.loads(run(*PICK, "--json").stdout)


def test_pick_for_people_shows_the_runner_up() -> None:
    out = run(*PICK).stdout
    assert "64 MiB" in out
    assert "runner-up" in out


@pytest.mark.parametrize("name", ["NCCL_NET", "NCCL_NET_PLUGIN"])
def test_variables_of_the_network_are_refused_with_what_says_it_instead(name: str) -> None:
    said = run(*PICK, "--env", f"{name}=1", code=2).stderr
    assert f"{name}: not emulated for NCCL 2.28.9 (the topology's adapters say which network is taken" in said
    assert "did you mean" not in said


@pytest.mark.parametrize(
    ("calls", "says"),
    [
        ("broadcast@3:1M", "only asked with root 0; write broadcast"),
        ("send@1:1M", "Send: NCCL makes it from sends and receives"),
    ],
)
def test_oracle_group_says_which_calls_it_takes(calls: str, says: str) -> None:
    assert says in run("pick", "--libnccl", calls, "--machine", "dgx-a100", code=2).stderr


@pytest.mark.parametrize(("nccl", "algorithms"), [("2.22.3", 6), ("2.23.4", 7)])
def test_table_has_the_algorithms_of_the_release_alone(nccl: str, algorithms: int) -> None:
    described = ("table", "--machine", "dgx-a100", "--nccl", nccl)
    there = {cell["algorithm"] for cell in json.loads(run(*described, "--json").stdout)["cells"]}
    assert len(there) == algorithms
    assert ("PAT" in run(*described).stdout) == ("PAT" in there) == (algorithms == 7)


@pytest.mark.live
@pytest.mark.parametrize("nccl", [each for each in HERE if each in (release.names()[0], "2.28.9")])
def test_oracle_answers_the_same_table(nccl: str) -> None:
    described = ("table", "--machine", "dgx-a100", "--gpus-per-node", "2", "--nccl", nccl)
    assert run(*described, "--libnccl").stdout == run(*described).stdout
    theirs, ours = (json.loads(run(*described, *who, "--json").stdout)["cells"] for who in (["--libnccl"], []))
    assert theirs == [{**cell, "reason": None} for cell in ours]


@pytest.mark.live
def test_table_is_what_nccl_prints(monkeypatch: pytest.MonkeyPatch) -> None:
    from tuner.oracle.api import Oracle
    from tuner.scenario import Scenario

    monkeypatch.setenv("COLUMNS", "1000")
    ours = run("table", "--machine", "dgx-h100", "--nodes", "2", "--nccl", "2.28.9").stdout.splitlines()
    with Oracle(Scenario(nccl="2.28.9", machine="dgx-h100", nodes=2).oracle_configuration()) as oracle:
        log = oracle.log_lines()
    printed = [line.partition("NCCL INFO ")[2] for line in log]
    assert len(ours) == 24
    assert [line for line in ours if line not in printed] == []


@pytest.mark.live
def test_check_prints_the_share_that_matched() -> None:
    small = ("--machine", "dgx-a100", "--nodes", "1", "--gpus-per-node", "2", "--nccl", "2.28.9")
    out = run("check", "allreduce", *small).stdout
    assert "matched / compared" in out
    assert "MISMATCH" not in out


@pytest.mark.live
def test_check_without_nodes_leaves_out_a_single_rank() -> None:
    small = ("--machine", "dgx-a100", "--gpus-per-node", "1", "--nccl", "2.28.9", "--bytes", "1K,1M", "--json")
    checked = json.loads(run("check", "allreduce", *small).stdout)["reports"]
    assert [each["communicator"][:3] for each in checked] == ["2 x", "4 x"]


@pytest.mark.live
def test_topology_and_graphs_from_files(tmp_path: Path) -> None:
    topology = tmp_path / "node.xml"
    topology.write_text(run("machines", "dgx-h100").stdout)
    question = ("pick", "allreduce", "--nodes", "2", "--nccl", "2.28.9", "--bytes", "1M", "--json")
    searched = run(*question, "--topology", str(topology))
    named = run(*question, "--machine", "dgx-h100")
    assert json.loads(searched.stdout) == json.loads(named.stdout)


EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
DUMPED = ("--topology", str(EXAMPLES / "node.xml"), "--topo-graphs", str(EXAMPLES / "graphs.xml"))
SCATTERED = ("--machine", "dgx-h100", "--nccl", "2.31.2", "--env", "NCCL_TOPO_SCATTER_START_NET=1")
BAD = {
    "machine": (("pick", "allreduce", "--machine", "dgx-h10"), "dgx-h100"),
    "refused machine": (("pick", "allreduce", "--machine", "a4x-maxgpu-4g"), "18 instances of 4 GB300"),
    "no machine": (("pick", "allreduce"), "--machine"),
    "release": (("pick", "allreduce", "--machine", "dgx-h100", "--nccl", "9.9"), "2.32.3 and 21 more"),
    "collective": (("pick", "gatherv", "--machine", "dgx-h100"), "ReduceScatter"),
    "any call": (("pick", "alltoallv", "--machine", "dgx-h100"), "use 'pick alltoall' with the parts in --parts"),
    "call without an algorithm": (("edges", "alltoall", "--machine", "dgx-h100"), "these commands take it: pick, diff"),
    "launch of a call that has one": (
        ("pick", "gather", "--machine", "dgx-h100", "--launch"),
        "whose launch is always shown",
    ),
    "algorithm": (("pick", "allreduce", "--machine", "dgx-h100", "--env", "NCCL_ALGO=Rings"), "NVLSTree"),
    "protocol": (("pick", "allreduce", "--machine", "dgx-h100", "--env", "NCCL_PROTO=LL64"), "LL128"),
    "variable": (("pick", "allreduce", *SCATTERED), "NCCL_PROTO"),
    "variable of the search": (
        ("pick", "allreduce", *DUMPED, "--nodes", "2", "--env", "NCCL_P2P_LEVEL=SYS"),
        "remove --topo-graphs",
    ),
    "variable of no search": (
        ("graphs", *SCATTERED),
        "change no graph",
    ),
    "no value": (("pick", "allreduce", "--machine", "dgx-h100", "--env", "NCCL_ALGO"), "NAME=VALUE"),
    "zero nodes": (("pick", "allreduce", "--machine", "dgx-h100", "--nodes", "0"), "1 to 1048576"),
    "negative nodes": (("pick", "allreduce", "--machine", "dgx-h100", "--nodes", "-2"), "1 to 1048576"),
    "GPUs": (("pick", "allreduce", "--machine", "dgx-h100", "--gpus-per-node", "9"), "1 to 8"),
    "one rank": (("pick", "allreduce", "--machine", "dgx-h100", "--gpus-per-node", "1"), "two ranks"),
    "size": (("pick", "allreduce", "--machine", "dgx-h100", "--bytes", "12Q"), "64KiB"),
    "zero size": (("pick", "allreduce", "--machine", "dgx-h100", "--bytes", "0"), "1 to 2**62"),
    "size overflows": (("pick", "allreduce", "--machine", "dgx-h100", "--bytes", "9" * 22), "1 to 2**62"),
    "type": (("pick", "allreduce", "--machine", "dgx-h100", "--dtype", "float7"), "bfloat16"),
    "verb": (("pik",), "pik"),
    "option": (("pick", "allreduce", "--machines", "x"), "--machine"),
    "no file": (("pick", "allreduce", "--topology", "/nowhere/t.xml"), "/nowhere/t.xml"),
    "nothing left": (("pick", "broadcast", "--machine", "dgx-h100", "--env", "NCCL_ALGO=Tree"), "NCCL_ALGO=Tree"),
}
FAILS = ("algorithm", "protocol", "nothing left")


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_clear_line_and_exit_code_2(name: str) -> None:
    """What NCCL itself fails at is an answer, with 1."""
    assert_refused(*BAD[name], code=1 if name in FAILS else 2)


@pytest.mark.slow
def test_a_process_answers_the_same() -> None:
    """What the others ask in the process of the tests."""
    for words, code in (
        (PICK, 0),
        ((*PICK, "--json"), 0),
        ((), 2),
        (("--help",), 0),
        (BAD["machine"][0], 2),
        (BAD["verb"][0], 2),
    ):
        one, other = run_process(*words, code=code), run(*words, code=code)
        assert (one.stdout, one.stderr) == (other.stdout, other.stderr), words


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (("pick", "allreduce", "dgx-h100"), "unexpected argument 'dgx-h100'; did you mean --machine dgx-h100?"),
        (("pick", "allreduce", "8xrtx-4090@2xmilan"), "did you mean --machine 8xrtx-4090@2xmilan?"),
        (("pick", "allreduce", "--machine", "dgx-h100", "1M"), "did you mean --bytes 1M?"),
        (("pick", "allreduce", "--machine", "dgx-h100", "2.28.9"), "did you mean --nccl 2.28.9?"),
        (("pick", "allreduce", "NCCL_ALGO=Ring"), "did you mean --env NCCL_ALGO=Ring?"),
        (("pick", "allreduce", "node.xml"), "did you mean --topology node.xml?"),
        (("pick", "allreduce", "nonsense"), "unexpected argument 'nonsense'"),
        (("pick", "allreduce", "--size", "1M"), "no option --size; did you mean --bytes?"),
        (("pick", "allreduce", "--gpus", "4"), "no option --gpus; did you mean --gpus-per-node?"),
        (
            ("pick", "--collective", "allreduce"),
            "no option --collective: write COLLECTIVE alone, without an option",
        ),
        (("measure", "--collective", "allreduce"), "without an option; such as: nccl-tuner measure"),
        (("plugin", "dry-run", "--table", "my.table"), "no option --table: write TABLE alone"),
        (("doctor", "--size", "1M"), "No such option '--size'."),  # which has no sizes
        (("regression",), "no command 'regression'; did you mean diff?"),
        (("autotune",), "no command 'autotune'; did you mean decide or measure?"),
        (("plugin", "regression"), "no command 'regression'; valid: env"),  # a group that has no diff
    ],
)
def test_what_was_meant_is_said(words: tuple[str, ...], meant: str) -> None:
    assert meant in run(*words, code=2).stderr


def test_what_others_call_it_leads_to_what_there_is() -> None:
    there = {name for command in subcommands(everything) for each in command.params for name in each.opts}
    assert set(OTHER_OPTIONS.values()) <= there
    assert {each for meant in OTHER_WORDS.values() for each in meant} <= everything.verbs.keys()
    assert not OTHER_WORDS.keys() & {*everything.verbs, *ALSO}


def test_an_unknown_command_says_which_there_are() -> None:
    assert run("pikc", code=2).stderr.startswith(
        "nccl-tuner: no command 'pikc'; did you mean pick?; valid: pick, explain, edges, "
    )
    assert "did you mean lint?; valid: env, path, " in run("plugin", "lnit", code=2).stderr
    context = click.Context(everything)
    for name in everything.list_commands(context):
        group = everything.get_command(context, name)
        if isinstance(group, click.Group) and getattr(group, "default", None) is None:
            valid = ", ".join(group.list_commands(click.Context(group)))
            assert run(name, "nosuch", code=2).stderr.startswith(f"nccl-tuner: no command 'nosuch'; valid: {valid}")


@pytest.mark.live
def test_a_size_that_the_library_cannot_run_is_one_clear_line_too() -> None:
    communicator = ("--machine", "dgx-h100", "--nodes", "1", "--gpus-per-node", "2", "--nccl", "2.28.9")
    assert_refused(("pick", "allreduce", "--libnccl", *communicator, "--bytes", "5"), "nearest: 4, 8")


@pytest.mark.live
def test_a_library_without_pat_is_asked_for_its_picks() -> None:
    words = ("--machine", "dgx-h100", "--gpus-per-node", "2", "--nccl", HERE[0], "--bytes", "1M", "--json")
    (answer,) = json.loads(run("pick", "allreduce", "--libnccl", *words).stdout)["picks"]
    assert answer["pick"] == json.loads(run("pick", "allreduce", *words).stdout)["picks"][0]["pick"]


def test_malformed_xml(tmp_path: Path) -> None:
    file = tmp_path / "bad.xml"
    file.write_text("<system version='1'><cpu")
    done = run("pick", "allreduce", "--topology", str(file), code=2)
    assert str(file) in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_every_verb_has_help_with_an_example() -> None:
    from tuner.cli import VERBS, everything

    for verb in VERBS:
        shown = CliRunner().invoke(everything, [verb, "--help"], prog_name="other")
        assert shown.exit_code == 0
        assert f"nccl-tuner {verb}" in shown.output


def test_the_file_to_write_is_named_by_one_option() -> None:
    from tuner.cli import everything

    writers = [
        option.opts
        for command in subcommands(everything)
        for option in command.params
        if option.name in ("out", "output")
    ]
    assert len(writers) >= 10
    assert [names for names in writers if names[:2] != ["-o", "--out"]] == []


@pytest.mark.parametrize("verbs", [(), ("check",), ("plugin",), ("cost",), ("oracle",)])
def test_nothing_asked_shows_the_help(verbs: tuple[str, ...]) -> None:
    assert run(*verbs, code=2).stderr == run(*verbs, "--help").stdout


# Longer to load than a pick takes, and without use where only the emulator is asked.
NOT_THE_EMULATOR = ("tuner.oracle.api", "tuner.plugin", "cffi", "elftools", "scipy", "matplotlib", "bokeh", "pandas")
ON_A_MACHINE = ("--machine", "dgx-h100", "--nodes", "2", "--nccl", "2.28.9")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "never"),
    [
        (PICK, NOT_THE_EMULATOR),
        (("edges", "allreduce", *ON_A_MACHINE), NOT_THE_EMULATOR),
        (("explain", "allreduce", *ON_A_MACHINE, "--bytes", "1M"), NOT_THE_EMULATOR),
        (("diff", "allreduce", *ON_A_MACHINE, "--change", "nodes=4"), NOT_THE_EMULATOR),
        (("pick", "allreduce:1M*2", *ON_A_MACHINE), NOT_THE_EMULATOR),
        (("table", *ON_A_MACHINE), NOT_THE_EMULATOR),
        (("machines",), NOT_THE_EMULATOR),
        (("cost", "allreduce", "--bytes", "1G", "--time-us", "3000", "--ranks", "8"), NOT_THE_EMULATOR),
        (("log", "--check", "--help"), NOT_THE_EMULATOR),
        (("plugin", "path"), ("tuner.oracle.api", "cffi", "elftools")),
        (("pick", "--help"), ("rich",)),
        (("--help",), ("numpy", "tuner.scenario")),
    ],
    ids=lambda words: " ".join(words[:2]),
)
def test_a_command_loads_no_more_than_it_needs(arguments: tuple[str, ...], never: tuple[str, ...]) -> None:
    code = f"""
import sys
from tuner.cli import everything
try:
    everything({arguments!r}, standalone_mode=False)
finally:
    print(*sorted(set({never!r}) & sys.modules.keys()), file=sys.stderr)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "\n")


def test_searches_are_not_dumped(tmp_path: Path) -> None:
    dump = tmp_path / "graphs.xml"
    done = run("graphs", "--machine", "ws-2x-a6000", "--explain", "ring", "--dump", str(dump), code=2)
    assert done.stderr == "nccl-tuner: --explain writes no graphs to a file: use either --dump or --explain\n"
    assert not dump.exists()


@pytest.mark.live
def test_graphs_that_nccl_dumped(tmp_path: Path) -> None:
    from tuner.oracle.api import Oracle
    from tuner.scenario import Scenario

    with Oracle(Scenario(nccl="2.28.9", machine="dgx-h100", nodes=2).oracle_configuration()) as oracle:
        dump = tmp_path / "graphs.xml"
        dump.write_text(oracle.graph_xml() or "")
    assert json.loads(run(*PICK, "--topo-graphs", str(dump), "--json").stdout) == json.loads(
        run(*PICK, "--json").stdout
    )
    done = run(*PICK, "--topo-graphs", str(dump), "--gpus-per-node", "4", code=2)
    assert "graphs of 8 GPUs for 4" in done.stderr
    dump.write_text(dump.read_text()[:200])
    assert f"{dump}:4: not XML" in run(*PICK, "--topo-graphs", str(dump), code=2).stderr
    dump.write_text("<system version='1'/>")
    assert "not <graphs>" in run(*PICK, "--topo-graphs", str(dump), code=2).stderr


def test_nodes_one_by_one_are_the_same_as_their_number() -> None:
    alike = ("--machine", "dgx-h100", "--nodes", "3", "--gpus-per-node", "4")
    listed = ("--node", "dgx-h100:4x2", "--node", "dgx-h100:4")
    rest = ("--nccl", "2.28.9", "--bytes", "8,1M", "--json")
    assert run("pick", "allreduce", *listed, *rest).stdout == run("pick", "allreduce", *alike, *rest).stdout


def test_nodes_that_differ_are_named() -> None:
    out = run("pick", "allreduce", "--node", "dgx-h100x2", "--node", "dgx-a100:4", "--nccl", "2.28.9").stdout
    assert "2 x dgx-h100, 8 GPUs each + 1 x dgx-a100, 4 GPUs each, NCCL 2.28.9" in out
    assert "DISAGREE" not in out


MIXED = ("broadcast", "--node", "dgx-h100", "--node", "dgx-a100", "--bytes", "8,8M")


def test_ranks_that_would_not_agree_are_shown() -> None:
    """Up to 2.23 a rank tunes for its own processor."""
    small, large = json.loads(run("pick", *MIXED, "--nccl", "2.23.4", "--json").stdout)["picks"]
    assert "disagreeing" not in small
    (other,) = large["disagreeing"]
    assert other["nodes"] == "dgx-a100"
    assert (other["algorithm"], other["protocol"]) == ("Ring", "Simple")
    assert large["pick"]["protocol"] == "LL"
    out = run("pick", *MIXED, "--nccl", "2.23.4").stdout
    assert "DISAGREE 8 MiB: ranks on dgx-a100 pick Ring/Simple, channels" in out
    agreed = json.loads(run("pick", *MIXED, "--nccl", "2.24.3", "--json").stdout)["picks"]
    assert all("disagreeing" not in answer for answer in agreed)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            ("--node", "dgx-h100", "--machine", "dgx-h100"),
            "--node already describes all nodes; use either --node alone",
        ),
        (("--node", "dgx-h100", "--nodes", "2"), "--node already describes all nodes"),
        (("--node", "dgx-h100x0"), "--node dgx-h100x0 has 0 nodes: valid are 1 to 1048576"),
        (("--node", "dgx-h100:9"), "9 GPUs per node: valid are 1 to 8 on dgx-h100"),
        (("--node", "dgx-h100", "--node", "dgx-h10"), "no machine 'dgx-h10'; did you mean dgx-h100?"),
        (("--node", ""), "--node is empty"),
        (("--node", "dgx-h100", "--node", "absent.xml:2"), "absent.xml: No such file"),
    ],
)
def test_bad_nodes_in_one_line(options: tuple[str, ...], says: str) -> None:
    done = run("pick", "allreduce", *options, code=2)
    assert says in done.stderr
    assert done.stderr.count("\n") == 1


def test_fetch_of_nothing_and_of_everything_and_more() -> None:
    assert "name releases, or all of them with --all; valid: 2.18.1" in run("fetch-nccl", code=2).stderr
    assert "name releases, or all of them with --all" in run("fetch-nccl", "--all", "2.28.9", code=2).stderr


def test_fetch_offline_is_one_line_after_the_disk_it_would_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NCCL_TUNER_CACHE", str(tmp_path))
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")  # where nobody listens
    monkeypatch.setenv("NO_PROXY", "*")
    monkeypatch.setenv("PIP_RETRIES", "1")
    first, *_, last = run_process("fetch-nccl", "--all", code=2).stderr.splitlines()
    assert first.startswith(f"fetching {len(release.names())} releases needs up to")
    assert last == "nccl-tuner: cannot download nvidia-nccl-cu12==2.18.1: the package index cannot be reached"
    assert list(tmp_path.iterdir()) == []


def test_a_title_is_one_line_however_narrow_its_table(capsys: pytest.CaptureFixture[str]) -> None:
    title = "AllReduce on 2 x a/long/path/to/topology.xml h100-sxm, 4 GPUs each, NCCL 2.28.9"
    print_table(title, ("a", "b"), [(1, 2)])
    assert capsys.readouterr().out.splitlines()[0] == title


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("explain", "Missing argument 'COLLECTIVE', option '--bytes'; such as: nccl-tuner explain "),
        ("explain allreduce", "Missing option '--bytes'; such as: nccl-tuner explain "),
        ("job plan", "option '--machine', option '-o' / '--out'; such as: nccl-tuner job plan "),
    ],
)
def test_all_that_is_missing_is_named_at_once(words: str, says: str) -> None:
    result = CliRunner().invoke(everything, words.split())
    assert result.exit_code == 2
    assert says in result.output


@pytest.mark.parametrize("words", ["verify", "plot measured", "fit constants", "decide --out x"])
def test_what_takes_files_or_something_else_gives_an_example(words: str) -> None:
    said = run(*words.split(), code=2).stderr
    assert said.startswith("nccl-tuner: Missing argument 'FILE...'; such as: nccl-tuner ")


PICK_OF_ALIAS = ("pick", "allreduce", "--nccl", "2.28.9", "--bytes", "1M")


def test_an_alias_is_said_once_on_stderr_and_changes_no_answer() -> None:
    own = run(*PICK_OF_ALIAS, "--machine", "aws-p4d", "--nodes", "2", "--json")
    other = run(*PICK_OF_ALIAS, "--machine", "P4DE.24xlarge", "--nodes", "2", "--json")
    assert json.loads(other.stdout) == json.loads(own.stdout)
    assert own.stderr == ""
    assert other.stderr == f"note: {catalogue.aliases()['p4de.24xlarge'].note}\n"


@pytest.mark.parametrize("verb", [("diff", "--change", "nodes=4"), ("diff", "nodes=4")], ids=" ".join)
def test_a_verb_that_describes_several_scenarios_says_it_once(verb: tuple[str, ...]) -> None:
    name, *rest = verb
    said = run(name, "allreduce", "--machine", "p4de.24xlarge", "--nodes", "2", "--nccl", "2.28.9", *rest).stderr
    assert said.count("note: ") == 1


def test_nodes_that_differ_say_each() -> None:
    said = run(*PICK_OF_ALIAS, "--node", "p4de.24xlarge:8x2", "--node", "dgx-a100", "--node", "p4d.24xlarge").stderr
    assert said.splitlines() == [
        f"note: {catalogue.aliases()[name].note}" for name in ("p4de.24xlarge", "p4d.24xlarge")
    ]


def test_machines_show_says_it_too() -> None:
    shown = run("machines", "p4de.24xlarge")
    assert shown.stdout == catalogue.load("aws-p4d").topology_xml
    assert "takes the parts of aws-p4d" in shown.stderr


MACHINE = ("--machine", "dgx-h100", "--nodes", "2", "--nccl", "2.28.9")


def test_pick_answers_for_some_ranks() -> None:
    shown = run("pick", "allreduce", *MACHINE, "--ranks", "0-7", "--bytes", "1G").stdout
    assert "on ranks 0-7 of 2 x dgx-h100, 8 GPUs each, NCCL 2.28.9" in shown
    shared = run("pick", "allreduce", *MACHINE, "--ranks", "0-7", "--shared", "--bytes", "1G").stdout
    assert "ranks 0-7 with shared resources of 2 x" in shared


@pytest.mark.parametrize(
    "words",
    [
        ("memory",),
        ("plot", "page", "-o", "report.html"),
        ("measure", "allreduce", "-o", "run.jsonl"),
        ("accept", "results.txt"),
        ("plot", "map", "allreduce", "-o", "map.png"),
    ],
)
def test_commands_of_all_ranks_refuse_some(words: tuple[str, ...]) -> None:
    assert "this command has no --ranks and --shared" in run(*words, *MACHINE, "--ranks", "0-7", code=2).stderr


def test_what_is_no_list_of_ranks_is_refused() -> None:
    assert "7-0" in run("pick", "allreduce", *MACHINE, "--ranks", "7-0", code=2).stderr


@pytest.mark.parametrize("form", [(), ("--json",)], ids=["table", "JSON"])
def test_a_failure_loses_nothing(form: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    def check(scenario: Scenario, *_: object) -> MatchReport:
        if scenario.title.startswith("4 x"):
            raise OracleFailed("libnccl did not answer")
        return MatchReport(scenario.title, {"cells": 7}, {"cells": 7}, ())

    monkeypatch.setattr("tuner.oracle.conformance.check.check", check)
    done = run("check", "--machine", "gb200-nvl72", "--nccl", "2.28.9", *form, code=1)
    assert done.stderr.endswith("nccl-tuner: libnccl did not answer\n")
    if form:
        assert [each["compared"] for each in json.loads(done.stdout)["reports"]] == [{"cells": 7}] * 2
    else:
        assert done.stdout.count("7/7") == 2
        assert "14/14" in done.stdout


def test_capture_says_it_before_it_searches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.scripts.search_graphs.capture", lambda *_: pytest.fail("searched"))
    file = tmp_path / "nowhere" / "graphs.toml"
    result = CliRunner().invoke(main, ["dgx-h100", "--nccl", "2.28.9", "--libnccl", "-o", str(file)])
    assert isinstance(result.exception, BadInput)
    assert str(result.exception) == f"{file}: No such file or directory"


def test_what_can_be_written_stays_as_it_is(tmp_path: Path) -> None:
    there, new = tmp_path / "there", tmp_path / "new"
    there.write_text("text")
    check_writable(there)
    check_writable(new)
    assert there.read_text() == "text"
    assert not new.exists()


ON = ("--machine", "dgx-h100")
ARMS = (str(EXAMPLES / "all_reduce.log"), str(EXAMPLES / "all_reduce-ring.log"))
VERDICTS = {
    "log --check": (
        ("log", "--check", str(EXAMPLES / "nccl.log"), "--comp-cap", "8.0"),
        0,
        "the same as the log: 142 of 142",
    ),
    "check run": (("check", str(EXAMPLES / "nsight.sqlite"), *ON, "--nodes", "2"), 0, "8 of 8 calls ran as"),
    "diagnose": (("diagnose", str(EXAMPLES / "node.xml")), 0, "nothing is wrong"),
    "diagnose a fault": (("diagnose", str(EXAMPLES / "guest.xml")), 1, "found: 4 wrong"),
    "verify": (("verify", *ARMS, *ON), 0, "regret: mean"),
    "decide": (("decide", *ARMS, *ON, "--no-gate", "--out", "/dev/null"), 0, "/dev/null: 2 rows"),
    "budget": (("budget", str(EXAMPLES / "step.csv"), *ON, "--nodes", "2"), 0, "2 x dgx-h100, 8 GPUs each, NCCL"),
    "log": (("log", str(EXAMPLES / "nccl.log")), 0, "log, as expected: no NVLS, because"),
    "diagnose what is unlike and what cannot be judged": (
        ("diagnose", str(EXAMPLES / "nccl.log"), ARMS[0]),
        1,
        "fault: too slow on each machine with such GPUs",
    ),
    "accept": (("accept", ARMS[0], *ON), 1, "FAIL: 5 of 18 sizes fail"),
    "order": (("order", "allreduce", *ON, "--bytes", "1M", "--change", "nodes=2"), 0, "Same bits: no"),
    "scale over GPUs": (
        ("edges", "allreduce", *ON, "--over", "gpus-per-node", "--nccl", "2.28.9", "--bytes", "1M"),
        0,
        "the pick is the same for every number of GPUs per node",
    ),
    "diff of messages": (
        ("diff", "alltoall", "nodes=8", *ON, "--nodes", "2", "--nccl", "2.28.9"),
        0,
        "messages are sent differently in 9 ranges of sizes",
    ),
    "preflight": (("preflight", "check", str(EXAMPLES / "preflight")), 0, "all ranks choose the same"),
}


@pytest.mark.parametrize("name", VERDICTS)
def test_the_verdict_comes_first(name: str) -> None:
    words, code, says = VERDICTS[name]
    assert says in run(*words, code=code).stdout.splitlines()[0]


def test_what_lint_finds_comes_after_its_sum(tmp_path: Path) -> None:
    table = tmp_path / "my.table"
    table.write_text("nccl-tuner-table 1\nallreduce bytes=..1K -> ring/ll\nallreduce bytes=..1K -> tree/ll\n")
    first, *found = run("plugin", "lint", str(table), code=1).stdout.splitlines()
    assert "2 rows (table), 1 warnings and errors" in first
    assert found
