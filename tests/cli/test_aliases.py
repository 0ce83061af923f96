"""Other names of machines on the command line: whose parts are taken is said once, beside the answer."""

import json

import pytest

from tests.support.command_line import run
from tuner.machine import catalogue

PICK = ("pick", "allreduce", "--nccl", "2.28.9", "--bytes", "1M")


def test_an_alias_is_said_once_on_stderr_and_changes_no_answer() -> None:
    own = run(*PICK, "--machine", "aws-p4d", "--nodes", "2", "--json")
    other = run(*PICK, "--machine", "P4DE.24xlarge", "--nodes", "2", "--json")
    assert json.loads(other.stdout) == json.loads(own.stdout)
    assert own.stderr == ""
    assert other.stderr == f"note: {catalogue.aliases()['p4de.24xlarge'].note}\n"


@pytest.mark.parametrize("verb", [("diff", "--change", "nodes=4"), ("diff", "nodes=4")], ids=" ".join)
def test_a_verb_that_describes_several_scenarios_says_it_once(verb: tuple[str, ...]) -> None:
    name, *rest = verb
    said = run(name, "allreduce", "--machine", "p4de.24xlarge", "--nodes", "2", "--nccl", "2.28.9", *rest).stderr
    assert said.count("note: ") == 1


def test_nodes_that_differ_say_each() -> None:
    said = run(*PICK, "--node", "p4de.24xlarge:8x2", "--node", "dgx-a100", "--node", "p4d.24xlarge").stderr
    assert said.splitlines() == [
        f"note: {catalogue.aliases()[name].note}" for name in ("p4de.24xlarge", "p4d.24xlarge")
    ]


def test_machines_show_says_it_too() -> None:
    shown = run("machines", "p4de.24xlarge")
    assert shown.stdout == catalogue.load("aws-p4d").topology_xml
    assert "takes the parts of aws-p4d" in shown.stderr
