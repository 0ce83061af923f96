"""What a double is: the communicator, the planted times, and the faults that are planted."""

import json
import os
import pickle
import tempfile
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import asdict, replace
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.support.double import errors
from tuner.base.children import ROOT
from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput, one_of
from tuner.base.names import Algorithm, Protocol
from tuner.base.spelling import option
from tuner.oracle import start
from tuner.oracle.process import SIM, SIM_NAMES, check_platform
from tuner.scenario import Scenario
from tuner.times.measured.header import scenario_from, scenario_record

_COMBINATIONS = tuple(f"{algorithm.name}/{protocol.name}".lower() for algorithm in Algorithm for protocol in Protocol)


class FaultKind(StrEnum):
    """What goes wrong."""

    hang = "hang"  # the collective never ends
    error = "error"  # it ends with an error of CUDA
    launch_error = "launch-error"  # CUDA refuses to launch it
    killed = "killed"  # the process is killed when it has launched it
    wrong = "wrong"  # one element of every result is wrong from here on
    slow = "slow"  # it takes twice as long at this rank
    replaced = "replaced"  # another combination runs than the one that is forced


_ENDING = (FaultKind.hang, FaultKind.error, FaultKind.launch_error, FaultKind.killed)  # a run, and change no time in it


@dataclass(frozen=True, slots=True)
class Fault:
    """``after`` counts the collectives that the ``rank`` launched before; ``error`` is CUDA's name of one.

    ``replaced`` is ``forced`` and ``instead``, each such as ``tree/ll``.
    """

    kind: FaultKind
    rank: int = 0
    after: int = 0
    error: str = "cudaErrorLaunchFailure"
    forced: str = ""
    instead: str = ""

    @classmethod
    def parsed(cls, text: str) -> Self:
        """Of ``KIND`` or ``KIND:NAME=VALUE,...``; BadInput for anything else."""
        kind, _, rest = text.partition(":")
        if kind not in list(FaultKind):
            raise BadInput(f"fault {text!r}; {one_of(FaultKind)}")
        given = dict(word.partition("=")[::2] for word in rest.split(",") if word)
        counts, names = ("rank", "after"), ("error", "forced", "instead")
        numbers: dict[str, Any] = {name: int(given[name]) for name in counts if given.get(name, "").isdecimal()}
        words: dict[str, Any] = {name: given[name] for name in names if given.get(name)}
        if given.keys() != numbers.keys() | words.keys():
            raise BadInput(f"fault {text!r}; valid: KIND:rank=N,after=N,error=NAME,forced=tree/ll,instead=ring/ll")
        if kind == FaultKind.replaced and not words.keys() >= {"forced", "instead"}:
            raise BadInput(f"fault {text!r}; valid: replaced:forced=tree/ll,instead=ring/ll")
        if "error" in words:
            errors.number(words["error"])
        for name in words.keys() & {"forced", "instead"}:
            if words[name].lower() not in _COMBINATIONS:
                raise BadInput(f"fault {text!r}: {name}={words[name]}; {one_of(_COMBINATIONS)}")
            words[name] = words[name].lower()
        return cls(FaultKind(kind), **numbers, **words)

    def __str__(self) -> str:
        default = Fault(self.kind)
        named = {name: value for name, value in asdict(self).items() if value != getattr(default, name)}
        return f"{self.kind}:" + ",".join(f"{name}={value}" for name, value in named.items())


@dataclass(frozen=True, slots=True)
class DoubleSettings:
    """``noise`` is the standard deviation of the logarithm of each collective's time; ``host_us`` what a launch costs.

    ``planted``: the seed draws the truth, else it is NCCL's own model. ``process_per_rank``: as a launcher starts them,
    else one process has all ranks.
    """

    scenario: Scenario
    seed: int = 0
    planted: bool = True
    process_per_rank: bool = False
    noise: float = 0.01
    host_us: float = 0.0
    faults: tuple[Fault, ...] = ()

    @property
    def ranks(self) -> int:
        """Of the whole communicator."""
        return self.scenario.ranks

    @property
    def ranks_per_gpu(self) -> int:
        """As many on each. A process may open fewer."""
        return self.scenario.ranks // (self.scenario.nodes * self.scenario.gpus())

    def of_rank(self, kind: FaultKind, rank: int) -> Fault | None:
        """The fault of this kind that is planted at a rank."""
        return next((fault for fault in self.faults if (fault.kind, fault.rank) == (kind, rank)), None)

    def of_times(self) -> Self:
        """Without the faults that only end a run: what was measured before one goes on without it, or with another."""
        return replace(self, faults=tuple(fault for fault in self.faults if fault.kind not in _ENDING))

    def record(self) -> dict[str, Any]:
        """As a file's header has it; ``record`` and ``from_record`` are each other's inverse."""
        plain = asdict(replace(self, scenario=None))  # type: ignore[arg-type]
        return {**plain, "scenario": scenario_record(self.scenario), "faults": [asdict(each) for each in self.faults]}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        """KeyError or TypeError for what is no such record."""
        faults = tuple(Fault(**{**each, "kind": FaultKind(each["kind"])}) for each in record["faults"])
        return cls(**{**record, "scenario": scenario_from(record["scenario"]), "faults": faults})


VARIABLE = "TUNER_DOUBLE_FOLDER"  # names the folder
STARTED = "TUNER_DOUBLE_STARTED"  # how often processes of this double were started before: later ones have other noise
START, SETTINGS, PATTERNS = "start.pickle", "settings.json", "patterns.json"
CUPY = Path(__file__).parent / "cupy"
CHECKOUT = Path(__file__).parents[3]  # whose package tests has this one
_FOREIGN = ("NCCL_", "CUDA_")


class DoubleEnvironment(AbstractContextManager["DoubleEnvironment"]):
    """A folder, and the variables that lead a process there; ``library`` instead of the release's own libnccl.

    Errors: those of :func:`tuner.oracle.start.prepare`, BadInput for what a double cannot be.
    """

    def __init__(self, settings: DoubleSettings, library: Path | None = None) -> None:
        check_platform()
        scenario = settings.scenario
        if scenario.others:
            raise BadInput(
                f"{option('backend')} double: nodes that differ are not simulated; valid: nodes that are alike"
            )
        if scenario.nodes > 1 and not settings.process_per_rank:
            raise BadInput(
                f"one process has the GPUs of one node, not of {scenario.nodes}; valid: {option('process_per_rank')}"
            )
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
        (topology := folder / "topology.xml").write_text(start.topologies(prepared)[0])
        for name in SIM_NAMES:
            (folder / name).symlink_to(SIM)
        (folder / "cupy").symlink_to(CUPY)
        (folder / START).write_bytes(pickle.dumps(replace(start.request(prepared, topology, (topology,)), log="")))
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
        # Last: a checkout has the package tuner as well, without what is built of it where that is installed elsewhere.
        env["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([*env["PYTHONPATH"].split(os.pathsep), str(CHECKOUT)]))
        return {**env, **(self.settings.scenario.environment or {}), VARIABLE: str(self.folder)}

    def close(self) -> None:
        """Removes the folder."""
        self._folder.cleanup()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
