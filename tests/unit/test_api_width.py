"""What the command line answers, from Python: each with arguments that are named, and as a frame."""

import inspect
import json
import pydoc
from pathlib import Path
from typing import Any

import pytest

import nccl_tuner
import tuner
from tests.support.command_line import run
from tuner import release
from tuner.api import Communicator, Compared, Measuring, TunedDescription, estimate, measure, scenario
from tuner.base.errors import BadInput, UnknownMachine
from tuner.base.records import to_json
from tuner.emulator.request import CallKind

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
ON = ("--machine", "dgx-h100", "--nodes", "2", "--nccl", "2.28.9")


def printed(*words: str, code: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run(*words, "--json", code=code).stdout)
    assert found.pop("nccl_tuner_json") == 1
    return found


@pytest.fixture(scope="module")
def two() -> Communicator:
    return nccl_tuner.communicator("dgx-h100", nodes=2, nccl="2.28.9")


@pytest.mark.parametrize("name", nccl_tuner.__all__)
def test_every_argument_of_what_is_offered_has_a_name(name: str) -> None:
    offered = getattr(nccl_tuner, name)
    assert offered is getattr(tuner, name)
    functions = [offered] if inspect.isfunction(offered) else []
    if name == "Communicator":
        functions = [each for key, each in vars(offered).items() if inspect.isfunction(each) and key[0] != "_"]
    for function in functions:
        kinds = {each.kind for each in inspect.signature(function).parameters.values()}
        assert inspect.Parameter.VAR_KEYWORD not in kinds or function.__name__ == "served_by", function
        assert inspect.Parameter.VAR_POSITIONAL not in kinds, function


@pytest.mark.parametrize(
    ("function", "keys"),
    [
        (nccl_tuner.communicator, TunedDescription),
        (scenario, TunedDescription),
        (nccl_tuner.budget, Compared),
        (measure, Measuring),
        (estimate, CallKind),
        (Communicator.pick, CallKind),
    ],
)
def test_a_signature_has_the_keys_that_type_checkers_know(function: Any, keys: Any) -> None:
    assert {*keys.__annotations__} <= {*inspect.signature(function).parameters}


def test_defaults_that_are_shown_are_those_that_hold(two: Communicator) -> None:
    """Saying them all changes nothing."""
    said = {each.name: each.default for each in inspect.signature(Communicator.pick).parameters.values()}
    kind: Any = {name: said[name] for name in ("dtype", "op", "buffers", "in_place", "config")}
    assert two.pick("allreduce", 1 << 20, **kind).time_us == two.pick("allreduce", 1 << 20).time_us
    of_group = inspect.signature(nccl_tuner.communicator).parameters.values()
    described: Any = {each.name: each.default for each in of_group if each.name not in ("machine", "tuner")}
    assert nccl_tuner.communicator("dgx-h100", **described).scenario == nccl_tuner.communicator("dgx-h100").scenario


def test_help_begins_with_how_to_begin() -> None:
    text = pydoc.plain(pydoc.render_doc(nccl_tuner))
    start = text[text.index("DESCRIPTION") : text.index("PACKAGE CONTENTS")]
    assert 'nccl_tuner.communicator("dgx-h100", nodes=2, nccl="2.28.9")' in "\n".join(start.splitlines()[:6])
    for name in nccl_tuner.__all__:
        assert f"{name}(" in text or f"class {name}" in text


def test_lists_are_those_of_the_commands() -> None:
    assert to_json(nccl_tuner.machines().records) == printed("machines")["machines"]
    assert to_json(nccl_tuner.measured("dgx-b200").records) == printed("measured", "--machine", "dgx-b200")["tables"]
    frame = nccl_tuner.releases().to_pandas()
    assert list(frame["name"]) == list(release.names())
    assert all("cu12" in builds for builds in frame["builds"])
    assert "<table>" in nccl_tuner.machines()._repr_html_()


def test_accept_is_that_of_the_command(tmp_path: Path) -> None:
    log = EXAMPLES / "all_reduce.log"
    found = nccl_tuner.accept(log, "dgx-h100")
    assert json.loads(json.dumps(to_json(found))) == printed("accept", str(log), "--machine", "dgx-h100", code=1)
    assert len(found.to_pandas()) == len(found.sizes) > 0
    own = nccl_tuner.accept([log], nccl_tuner.communicator("dgx-h100", nccl="2.29.2"), nccl="2.29.2", like=log)
    assert own.passes
    with pytest.raises(UnknownMachine, match="did you mean"):
        nccl_tuner.accept(log, "dgx-h10")


def test_diagnose_is_that_of_the_command() -> None:
    files = [EXAMPLES / "nccl.log", EXAMPLES / "node.xml"]
    found = nccl_tuner.diagnose(files)
    said = printed("diagnose", *map(str, files))
    assert [each.file for each in found] == [each["file"] for each in said["files"]]
    codes = [finding["code"] for each in said["files"] for finding in each["findings"]]
    assert list(found.to_pandas()["code"]) == codes
    assert found.severity.value == said["severity"]


def test_a_models_budget_is_that_of_the_command() -> None:
    group = nccl_tuner.communicator("dgx-h100", nodes=4, nccl="2.28.9")
    found = nccl_tuner.budget(None, group, model="llama-3-70b", job="tp=8,pp=2")
    words = ("budget", "--model", "llama-3-70b", "--job", "tp=8,pp=2", *ON[:2], "--nodes", "4", *ON[4:])
    assert json.loads(json.dumps(to_json(found))) == printed(*words)
    assert list(found.to_pandas()["group"]) == [each.group for each in found.groups]


def test_accept_is_told_what_ran(tmp_path: Path) -> None:
    """Of a text that has lost its head."""
    rows = [line for line in (EXAMPLES / "all_reduce.log").read_text().splitlines() if "all_reduce_perf" not in line]
    (tmp_path / "rows.txt").write_text("\n".join(rows) + "\n")
    words = ("accept", str(tmp_path / "rows.txt"), "--machine", "dgx-h100", "--collective", "allreduce")
    found = nccl_tuner.accept(tmp_path / "rows.txt", "dgx-h100", collective="allreduce")
    assert json.loads(json.dumps(to_json(found))) == printed(*words, code=1)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, "model=NAME"),
        ({"files": "step.csv", "model": "llama-3-70b"}, "model=NAME"),
        ({"files": "step.csv", "job": "tp=8"}, "add model=NAME"),
        ({"model": "llama-3-70b", "measured": "run.jsonl"}, "remove it"),
    ],
)
def test_a_budget_of_nothing_or_of_both_is_refused(two: Communicator, given: dict[str, Any], says: str) -> None:
    with pytest.raises(BadInput, match=says):
        nccl_tuner.budget(**given, communicators=two)


def test_edges_and_diff_are_those_of_the_communicator(two: Communicator) -> None:
    newer = nccl_tuner.communicator("dgx-h100", nodes=2, nccl="2.30.7")
    assert (nccl_tuner.edges(two, "allreduce").from_bytes == two.edges("allreduce").from_bytes).all()
    assert nccl_tuner.diff(two, newer, "allgather").records == two.diff(newer, "allgather").records


def test_an_explanation_is_a_frame_of_its_steps(two: Communicator) -> None:
    why = two.explain("allreduce", 1 << 20)
    assert list(why.to_pandas()["quantity"]) == [step.quantity for step in why.steps]
    assert "<table>" in why._repr_html_()


@pytest.mark.live
def test_memory_is_that_of_the_command() -> None:
    found = nccl_tuner.memory(
        nccl_tuner.communicator("dgx-a100", gpus_per_node=2, nccl="2.28.9"), [("allreduce", 1 << 20)]
    )
    words = ("memory", "allreduce:1M", "--machine", "dgx-a100", "--gpus-per-node", "2", "--nccl", "2.28.9")
    assert to_json(found.records) == printed(*words)["stages"]
    assert len(found.to_pandas()) == 2


def test_what_describes_a_communicator_is_no_argument_of_a_budget() -> None:
    with pytest.raises(BadInput, match=r"unknown machine, odd; .*; machine: of the communicator; pass communicator\("):
        nccl_tuner.budget(model="llama-3-70b", machine="dgx-h100", odd=1)  # type: ignore[call-overload]
