"""The environment of processes whose GPUs are simulated: what they find on their paths, and what they are told."""

import json
import os
import pickle
import tempfile
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from types import TracebackType

from tuner.base.errors import BadInput
from tuner.bench.double.settings import DoubleSettings
from tuner.oracle import start
from tuner.oracle.preloaded import Places
from tuner.oracle.process import ROOT, SIM, SIM_NAMES, check_platform

VARIABLE = "TUNER_DOUBLE_FOLDER"  # names the folder
STARTED = "TUNER_DOUBLE_STARTED"  # how often processes of this double were started before: later ones have other noise
START, SETTINGS, PATTERNS = "start.pickle", "settings.json", "patterns.json"
CUPY = Path(__file__).parent / "cupy"
_FOREIGN = ("NCCL_", "CUDA_")


class Environment(AbstractContextManager["Environment"]):
    """A folder, and the variables that lead a process there; ``library`` instead of the release's own libnccl.

    Errors: those of :func:`tuner.oracle.start.prepare`, BadInput for what a double cannot be.
    """

    def __init__(self, settings: DoubleSettings, library: Path | None = None) -> None:
        check_platform()
        scenario = settings.scenario
        if scenario.others:
            raise BadInput("`backend` double: nodes that differ are not simulated; valid: nodes that are alike")
        if scenario.nodes > 1 and not settings.process_per_rank:
            raise BadInput(f"one process has the GPUs of one node, not of {scenario.nodes}; valid: `process_per_rank`")
        for fault in settings.faults:
            if fault.rank >= settings.ranks:
                raise BadInput(
                    f"fault '{fault}': there are {settings.ranks} ranks; valid: rank=0 to {settings.ranks - 1}"
                )
        self.settings = settings
        prepared = start.prepare(replace(scenario.oracle_configuration(), library=library))
        self.library = prepared.library.path
        self._folder = tempfile.TemporaryDirectory(prefix="nccl-tuner-double-")
        self.folder = folder = Path(self._folder.name)
        places = Places(folder / "unused.log", (folder / "topology.xml",))
        places.topologies[0].write_text(start.topologies(prepared)[0])
        for name in SIM_NAMES:
            (folder / name).symlink_to(SIM)
        (folder / "cupy").symlink_to(CUPY)
        (folder / START).write_bytes(pickle.dumps(replace(start.request(prepared, places), log="")))
        (folder / PATTERNS).write_text(json.dumps(prepared.symbols.patterns))
        (folder / SETTINGS).write_text(json.dumps(settings.record()))

    def variables(self, given: Mapping[str, str] = os.environ) -> dict[str, str]:
        """Of a process in this environment. What another double set is left out, and variables of NCCL and CUDA."""
        before = given.get(VARIABLE, "")
        env = {name: value for name, value in given.items() if not name.startswith(_FOREIGN)}
        own = {"PYTHONPATH": [str(self.folder), str(ROOT)], "LD_LIBRARY_PATH": [str(self.folder)]}
        for name, folders in own.items():
            others = [each for each in given.get(name, "").split(os.pathsep) if each and each != before]
            env[name] = os.pathsep.join([*folders, *others])
        return {**env, **(self.settings.scenario.environment or {}), VARIABLE: str(self.folder)}

    def close(self) -> None:
        """Removes the folder."""
        self._folder.cleanup()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
