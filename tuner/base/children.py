"""The only module that starts Python processes: they ignore the current folder and the user's PYTHON* variables.

A folder with somebody's logs may contain a `pip`, a `pickle.py` or a `sitecustomize.py`: none of these may run because
a command was started in that folder. A child imports from the standard library and its own installation first, then
from the other folders from which this process imports, except the current one. So a child also finds packages that are
installed only for the user, or unpacked in a folder of their own.
"""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tuner.base.expressions import expression

# Every module that is started as a program. tests/unit/test_children.py runs each of them beside modules that must not
# run.
PIP = "pip"  # fetches libnccl (tuner/oracle/library.py)
ORACLE = "tuner.oracle.child"  # loads libnccl (tuner/oracle/process.py)
MEASURING = "tuner.bench"  # holds the GPUs of a measurement (tuner/bench/exchange.py)
SERVING = "tuner.oracle.serving"  # runs a serving engine's own functions (tuner/oracle/serving)
PROGRAMS = (PIP, ORACLE, MEASURING, SERVING)

ROOT = Path(__file__).parents[2]  # the folder that contains the package
# The arguments are the folders, the module, and the module's own. Under `-I`, `-c` has no folder of its own to import
# from.
_BOOT = (
    "import sys; folders, name = sys.argv[1].split('\\n'), sys.argv[2]; del sys.argv[1:3]; "
    "sys.path += [each for each in folders if each not in sys.path]; "
    "import runpy; runpy.run_module(name, run_name='__main__', alter_sys=True)"
)
_NAMES_FILE = expression(r"NCCL_\w+_FILE|NCCL_CUDA_PATH|NCCL_TUNER_(TABLE|SWITCH|LIVE|STATS|JOB)")
_NAMES_PLUGIN = expression(r"NCCL_\w+_PLUGIN|NCCL_TUNER_NEXT")  # a value with a slash is a file, else a name
_NAMES_PIPS = expression(r"PIP_(CONFIG_FILE|CERT|CLIENT_CERT|FIND_LINKS)")
_NO_FILES = ("", "stdout", "stderr")


def command(program: str, *arguments: str) -> list[str]:
    """The command line that runs a module as a program, isolated."""
    own = ["-B"] if sys.dont_write_bytecode else []
    if sys.pycache_prefix is not None and os.path.isabs(sys.pycache_prefix):
        own += ["-X", f"pycache_prefix={sys.pycache_prefix}"]
    return [sys.executable, "-I", *own, "-c", _BOOT, "\n".join(_folders()), program, *arguments]


def environment(given: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The environment of a child: ``given`` without PYTHON*, and with absolute paths instead of relative ones.

    Paths have to be absolute because a child may run in another folder. Only LD_LIBRARY_PATH and variables of NCCL, of
    this project and of pip are taken for paths.
    """
    kept = {name: value for name, value in given.items() if not name.startswith("PYTHON")}
    for name, value in kept.items():
        if name == "LD_LIBRARY_PATH":  # an empty part means the current folder
            kept[name] = os.pathsep.join(os.path.abspath(part) for part in value.split(os.pathsep) if part)
        elif (
            (value not in _NO_FILES and _NAMES_FILE.fullmatch(name))
            or (_NAMES_PLUGIN.fullmatch(name) and "/" in value)
            or (_NAMES_PIPS.fullmatch(name) and os.path.exists(value))
        ):
            kept[name] = os.path.abspath(value)
    return kept


def start(program: str, *arguments: str, **popen: Any) -> "subprocess.Popen[Any]":
    """Starts one of ``PROGRAMS``; ``popen`` is passed to subprocess.Popen, with a complete environment."""
    return subprocess.Popen(command(program, *arguments), **popen)


def _folders() -> list[str]:
    """The folders from which this process imports, each once, without the current folder."""
    try:
        here = os.path.realpath(os.getcwd())
    except OSError:  # the folder was removed
        here = ""
    known = (each for each in sys.path if each and os.path.isabs(each) and os.path.realpath(each) != here)
    return list(dict.fromkeys([*known, str(ROOT)]))
