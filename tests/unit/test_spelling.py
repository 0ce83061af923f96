"""Options in messages are spelled for whoever reads them, and what a user names is never rewritten."""

import json
import re
import shutil
from pathlib import Path

import pytest

from tests.support import structure
from tests.support.command_line import run
from tuner.base.errors import BadInput
from tuner.base.spelling import OTHERWISE, Spelling, option, spelled, spelled_for
from tuner.scenario import Scenario

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "all_reduce-ring.log"


def test_an_option_is_spelled_for_its_reader() -> None:
    assert (option("gpus_per_node"), spelled("{option:nodes} 2")) == ("gpus_per_node=", "nodes= 2")
    with spelled_for(Spelling.COMMAND_LINE):
        assert (option("gpus_per_node"), spelled("{option:nodes} 2")) == ("--gpus-per-node", "--nodes 2")
        assert [option(name) for name in OTHERWISE] == [f"--{name}" for name in OTHERWISE.values()]
    assert option("nodes") == "nodes="


def test_python_and_the_command_line_are_told_the_same_in_their_own_words() -> None:
    with pytest.raises(BadInput) as error:
        Scenario("2.28.9", 1, "dgx-h100", gpus_per_process=9).communicator()
    words = "--machine", "dgx-h100", "--nccl", "2.28.9", "--gpus-per-process", "9"
    said = run("pick", "allreduce", *words, code=2).stderr
    assert str(error.value).startswith("gpus_per_process= 9: ")
    assert said == f"nccl-tuner: {str(error.value).replace('gpus_per_process=', '--gpus-per-process')}\n"


def test_a_file_is_called_by_its_name(tmp_path: Path) -> None:
    named = tmp_path / "`topology`.log"
    shutil.copy(EXAMPLE, named)
    assert json.loads(run("diagnose", "--json", str(named), code=1).stdout)["files"][0]["file"] == str(named)
    absent = str(tmp_path / "`nodes`")
    assert absent in run("pick", "allreduce", "--log", absent, code=2).stderr


def test_no_message_has_an_option_in_backticks() -> None:
    quoted = re.compile(r"(?<!`)`[a-z_]+`(?!`)")
    for path, source in structure.sources().items():
        code = re.sub(r'"""(?:.|\n)*?"""|#.*', "", source)
        assert not quoted.findall(code), path
