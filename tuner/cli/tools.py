"""Makes commands tools for agents: parameters by name, a short answer, and the whole answer kept for later."""

import contextlib
import hashlib
import io
import json
import sys
import traceback
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Any

from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput, TunerError, did_you_mean
from tuner.base.records import VERSION, VERSION_KEY, versioned
from tuner.cli.command import CURE
from tuner.cli.fence import Fence, TooSlow

SHORT_BYTES = 2048  # of a short answer, at most
MOST_KEPT = 32  # whole answers
MOST_KEPT_BYTES = 64 << 20  # of all of them
SECONDS = 120.0  # that an answer may take
LONGEST_LIST = 64  # of a short answer
LONGEST_TEXT = 300  # letters of one text in a short answer
LONGEST_VALUE = 20_000  # letters of one parameter
MOST_VALUES = 1000  # of a list that is given
ADDRESS = "nccl-tuner://answer/"
INTERRUPTED = 130
VERDICTS = {0: "answered", 1: "no", 3: "cannot be judged"}  # by exit code


class ParameterKind(Enum):
    """The kind of value of a parameter."""

    TEXT = "text"
    NUMBER = "number"  # a whole one
    DECIMAL = "decimal"
    FLAG = "flag"
    TEXTS = "texts"
    PAIRS = "pairs"  # NAME=VALUE
    FILE = "file"
    FILES = "files"
    NAME_OR_FILE = "name or file"
    NAMES_OR_FILES = "names or files"

    @property
    def several(self) -> bool:
        """Whether the value is a list."""
        return self in (ParameterKind.TEXTS, ParameterKind.FILES, ParameterKind.NAMES_OR_FILES)


_SCHEMAS: dict[ParameterKind, dict[str, Any]] = {
    ParameterKind.NUMBER: {"type": "integer"},
    ParameterKind.DECIMAL: {"type": "number"},
    ParameterKind.FLAG: {"type": "boolean"},
    ParameterKind.PAIRS: {"type": "object", "additionalProperties": {"type": ["string", "number"]}},
}
_TEXT = {"type": "string"}


@dataclass(frozen=True, slots=True)
class ToolParameter:
    """A parameter of a tool. ``option`` is its name on the command line (None for an argument, which has a position
    instead)."""

    name: str
    says: str
    kind: ParameterKind = ParameterKind.TEXT
    option: str | None = ""
    required: bool = False

    @property
    def schema(self) -> dict[str, Any]:
        """JSON Schema of the parameter."""
        form = _SCHEMAS.get(self.kind, {"type": "array", "items": _TEXT} if self.kind.several else _TEXT)
        return {**form, "description": self.says}

    def words(self, value: Any, fence: Fence) -> list[str]:
        """The command-line arguments for ``value``. BadInput for a value of another type."""
        values = [self._one(each, fence) for each in self._values(value)]
        if self.option is None:
            return values
        option = self.option or f"--{self.name.replace('_', '-')}"
        if self.kind is ParameterKind.FLAG:
            return [option] if value else []
        return [f"{option}={each}" for each in values]

    def _values(self, value: Any) -> list[Any]:
        if self.kind.several:
            if isinstance(value, str):
                return [value]
            if not isinstance(value, list) or len(value) > MOST_VALUES:
                raise BadInput(f"{self.name} {_shown(value)}; valid: a list of up to {MOST_VALUES} texts")
            return value
        if self.kind is ParameterKind.PAIRS:
            if not isinstance(value, dict) or len(value) > MOST_VALUES:
                raise BadInput(f'{self.name} {_shown(value)}; valid: an object, {{"NAME": "VALUE"}}')
            return [f"{name}={_number_or_text(self.name, each)}" for name, each in value.items()]
        return [value]

    def _one(self, value: Any, fence: Fence) -> str:
        if self.kind is ParameterKind.FLAG:
            if not isinstance(value, bool):
                raise BadInput(f"{self.name} {_shown(value)}; valid: true or false")
            return ""
        if self.kind in (ParameterKind.NUMBER, ParameterKind.DECIMAL):
            whole = isinstance(value, int) or (isinstance(value, str) and value.strip().isdecimal())
            if isinstance(value, bool) or not (
                whole or (self.kind is ParameterKind.DECIMAL and isinstance(value, float))
            ):
                raise BadInput(
                    f"{self.name} {_shown(value)}; valid: a {'whole ' * (self.kind is ParameterKind.NUMBER)}number"
                )
            return str(value)
        text = _number_or_text(self.name, value)
        if self.kind in (ParameterKind.FILE, ParameterKind.FILES):
            return str(fence.file(text))
        if self.kind in (ParameterKind.NAME_OR_FILE, ParameterKind.NAMES_OR_FILES):
            return str(fence.file(text)) if "/" in text or "\0" in text or fence.has(text) else text
        return text


def _number_or_text(name: str, value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise BadInput(f"{name} {_shown(value)}; valid: a text")
    text = str(value)
    if len(text) > LONGEST_VALUE or "\0" in text:
        raise BadInput(f"{name}: {len(text)} letters; valid: up to {LONGEST_VALUE}, without NUL")
    return text


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:60]} ..."


_MACHINE = (
    ToolParameter(
        "machine",
        "The machine, by its name (tool machines lists them) or by a cloud's instance type such as p5.48xlarge.",
    ),
    ToolParameter("topology", "Instead of machine: a topology in NCCL's XML.", ParameterKind.FILE),
    ToolParameter(
        "nodes",
        "Number of nodes; for an NVLink domain such as gb200-nvl72, a node is a whole rack.",
        ParameterKind.NUMBER,
    ),
    ToolParameter("gpus_per_node", "How many GPUs of each node are used.", ParameterKind.NUMBER),
    ToolParameter(
        "trays", "How many trays are used, if the machine is an NVLink domain made of trays.", ParameterKind.NUMBER
    ),
    ToolParameter("nccl", "NCCL release, such as 2.28.9 (tool releases lists them); by default the newest."),
    ToolParameter("env", 'NCCL variables of the job, {"NCCL_ALGO": "Ring"}.', ParameterKind.PAIRS),
    ToolParameter("config", 'Fields of ncclConfig_t that the program sets, {"maxCTAs": 8}.', ParameterKind.PAIRS),
    ToolParameter(
        "log",
        "Describe the communicator by a log of NCCL_DEBUG=INFO instead of by these parameters.",
        ParameterKind.FILE,
    ),
    ToolParameter("comp_cap", "Compute capability of the GPUs, such as 9.0, which logs do not say."),
)
_DTYPE = ToolParameter("dtype", "Data type, by NCCL's name, such as bfloat16.")
_OP = ToolParameter("op", "Reduction operation, such as sum.")
_QUESTION = (
    ToolParameter("time", "Which times are shown: nccl (NCCL's own model), calibrated (from measurements) or both."),
    ToolParameter("tuner", "Tuner plugin that chooses in place of NCCL: aws-ofi-nccl, table:FILE, none."),
    _DTYPE,
    _OP,
    ToolParameter("buffers", "How buffers are registered: plain, registered, window or graph."),
)
_ENGINE = ToolParameter("engine", "Serving engine that makes the AllReduce, as in vllm@0.33.0.")
_SKELETON = (
    ToolParameter("gpu", "The GPU model, if the topology does not say it."),
    ToolParameter("nic_gbps", "Speed of its adapters, 1e9 bits per second; with gpu.", ParameterKind.DECIMAL),
)
_SIZES = "Sizes as NCCL's nBytes, such as 8,1K,64MiB or 8..1G*2."


@dataclass(frozen=True, slots=True)
class Tool:
    """A command as a tool. ``answer`` is a function to call instead of a command.

    ``shown`` are the keys of its JSON that a short answer has; a later entry is used if the earlier ones are too long.
    """

    name: str
    says: str
    command: tuple[str, ...]
    parameters: tuple[ToolParameter, ...]
    shown: tuple[str, ...]
    answer: Callable[[], Any] | None = None

    @property
    def schema(self) -> dict[str, Any]:
        """JSON Schema of the tool's parameters."""
        return {
            "type": "object",
            "properties": {each.name: each.schema for each in self.parameters},
            "required": [each.name for each in self.parameters if each.required],
            "additionalProperties": False,
        }

    def words(self, given: Mapping[str, Any], fence: Fence) -> list[str]:
        """The command line. BadInput for parameters that the tool does not have, and for missing ones."""
        known = {each.name: each for each in self.parameters}
        for name in given:
            if name not in known:
                near = did_you_mean(name, known)
                raise BadInput(f"{self.name}: no parameter {name!r}{near}; valid: {', '.join(known)}")
        if absent := [
            each.name for each in self.parameters if each.required and given.get(each.name) in (None, [], "")
        ]:
            raise BadInput(f"{self.name}: without {', '.join(absent)}")
        options, arguments = list[str](), list[str]()
        for each in self.parameters:
            if (value := given.get(each.name)) is not None:
                (arguments if each.option is None else options).extend(each.words(value, fence))
        return [*self.command, "--json", *options, "--", *arguments]


def _releases() -> Any:
    from tuner import release

    return {"compared": list(release.names())}


_PICK = "algorithm protocol channels threads time_us low_us high_us bypass instead_of"
_BRIEF = "algorithm protocol channels time_us bypass"
_FINDINGS = "findings code severity text line reason"
TOOLS = (
    Tool(
        "pick",
        "What NCCL picks for a collective: algorithm, protocol, channels and its own predicted time, by size.",
        ("pick",),
        (
            ToolParameter(
                "collective",
                "allreduce, allgather, reducescatter ..., or calls of a group.",
                option=None,
                required=True,
            ),
            ToolParameter("bytes", _SIZES),
            *_MACHINE,
            *_QUESTION,
            _ENGINE,
        ),
        (
            f"picks collective bytes nccl pick note notes calls carrier choices kernels {_PICK}",
            f"picks calls bytes pick {_BRIEF}",
        ),
    ),
    Tool(
        "explain",
        "Why NCCL makes a pick at one size: each step of its model, and why the other combinations are not picked.",
        ("explain",),
        (
            ToolParameter(
                "collective", "allreduce, allgather, reducescatter, broadcast, reduce.", option=None, required=True
            ),
            ToolParameter("bytes", "NCCL's nBytes, such as 1M.", required=True),
            *_MACHINE,
            *_QUESTION,
            _ENGINE,
        ),
        (f"collective bytes nccl pick holds from_bytes to_bytes others reason call carrier turned_away {_PICK}",),
    ),
    Tool(
        "diff",
        "Ranges of sizes in which NCCL's choice changes with a release, a setting, hardware or a node count.",
        ("diff",),
        (
            ToolParameter("collectives", "Collectives; by default all five.", ParameterKind.TEXTS, option=None),
            ToolParameter("before", "The release before the change, such as 2.22.3; needs after.", option=None),
            ToolParameter("after", "Release after.", option=None),
            ToolParameter(
                "changes",
                "What changes, as KEY=VALUE: nodes=4, NCCL_PROTO=Simple, nic-gbps=200.",
                ParameterKind.TEXTS,
                option="--change",
            ),
            ToolParameter("bytes", "Also show picks and times at these sizes."),
            *_MACHINE,
            *_QUESTION,
        ),
        (
            f"comparisons collective from_bytes to_bytes changes ratio before after {_PICK}",
            f"comparisons collective from_bytes to_bytes changes ratio before after {_BRIEF}",
        ),
    ),
    Tool(
        "diagnose",
        "What is wrong in logs, topologies, results and traces, and what to do about it.",
        ("diagnose",),
        (
            ToolParameter(
                "files",
                "Files of one job: logs, topologies, results of nccl-tests, traces.",
                ParameterKind.FILES,
                option=None,
                required=True,
            ),
            ToolParameter("machine", "The machine, if no file shows it."),
            ToolParameter("nodes", "Number of nodes, if no file says it.", ParameterKind.NUMBER),
            ToolParameter("nccl", "NCCL release, if no file says it."),
            *_SKELETON,
        ),
        (f"files file kind machine nodes nccl {_FINDINGS}",),
    ),
    Tool(
        "accept",
        "Whether a cluster is as fast as it should be, from results of nccl-tests; also the minimum bandwidths "
        "that pass.",
        ("accept",),
        (
            ToolParameter(
                "results",
                "Results of nccl-tests, or names of shipped tables.",
                ParameterKind.NAMES_OR_FILES,
                option=None,
            ),
            *_MACHINE,
            ToolParameter("collective", "The collective that was run, if the results do not name it."),
            ToolParameter("like", "Compare with this healthy run of the same cluster.", ParameterKind.FILE),
            ToolParameter("floors", "Show the minimum bandwidths that pass; takes no results.", ParameterKind.FLAG),
            ToolParameter("bytes", "Sizes for which floors shows bandwidths."),
            _DTYPE,
        ),
        (
            "pass judged missing machine expected_by problems kind refused wrong_results comparisons collective nodes "
            f"bytes rank runs low_gbs high_gbs own_gbs floors floor_gbs expected_busbw_gbs pick {_FINDINGS}",
            f"pass judged missing machine wrong_results floors floor_gbs collective bytes {_FINDINGS}",
        ),
    ),
    Tool(
        "check_table",
        "Checks decision tables of the tuner plugin: rows that cannot run, have no effect, or are hidden by others.",
        ("plugin", "lint"),
        (
            ToolParameter("files", "Decision tables.", ParameterKind.FILES, option=None, required=True),
            *_MACHINE,
            _DTYPE,
            _OP,
        ),
        (f"tables file format {_FINDINGS}",),
    ),
    Tool(
        "machines",
        "The names of all known machines; or what one machine, or the topology in a file, consists of.",
        ("machines",),
        (
            ToolParameter(
                "name",
                "A machine, or a file: nvidia-smi topo -m, lstopo, NCCL's XML.",
                ParameterKind.NAME_OR_FILE,
                option=None,
            ),
            ToolParameter("like", "Show the machines most similar to this file.", ParameterKind.FILE),
            ToolParameter("cpu", "The CPU model, if the file does not say it: GenuineIntel:6:143, arm64."),
            *_SKELETON,
        ),
        (
            "machines name title gpus_per_node compute_capability nics cpu trays notes machine agrees differs unknown",
            "machines name",
        ),
    ),
    Tool(
        "releases",
        "NCCL releases that are compared with their library; another release is answered if the releases around "
        "it agree.",
        (),
        (),
        ("compared",),
        _releases,
    ),
    Tool(
        "budget",
        "How long the collectives of a job take, from a list, a trace, a log, or a model by name.",
        ("budget",),
        (
            ToolParameter(
                "files",
                "Files with the calls of one rank: lists of calls, logs or traces.",
                ParameterKind.FILES,
                option=None,
            ),
            *_MACHINE,
            ToolParameter("model", "Instead of files: a training step of this model, such as llama-3-70b."),
            ToolParameter("job", "How the model is split over the ranks, as in tp=8,pp=4."),
            ToolParameter(
                "serve",
                "Price a decoding step and a prefill chunk of the model under an engine, instead of a training step.",
                ParameterKind.FLAG,
            ),
            *_QUESTION,
            _ENGINE,
        ),
        (
            "job totals variant name total_us priced_calls unpriced_calls calibrated time_us low_us high_us groups "
            "group ranks nodes by_collective collective calls share variants budget notes left_out",
            "job totals variant variants name total_us priced_calls unpriced_calls notes left_out",
        ),
    ),
)
BY_NAME = {each.name: each for each in TOOLS}


@dataclass(frozen=True, slots=True)
class Reply:
    """What a client gets: a short text, and the address of the whole answer. ``wrong``: whether the text is an
    error."""

    text: str
    wrong: bool = False
    address: str | None = None


class Desk:
    """Answers questions one after the other, and keeps the last whole answers."""

    def __init__(self, fence: Fence) -> None:
        self.fence = fence
        self.kept = OrderedDict[str, str]()

    def ask(self, name: str, given: Mapping[str, Any] | None) -> Reply:
        """The answer of a tool; bad input and errors of this program become one line."""
        try:
            if (tool := BY_NAME.get(name)) is None:
                raise BadInput(f"no tool {name!r}{did_you_mean(name, BY_NAME)}; valid: {', '.join(BY_NAME)}")
            code, output, errors = self._answer(tool, given or {})
        except TunerError as error:
            return Reply(f"nccl-tuner: {' '.join(str(error).split())}", wrong=True)
        except TooSlow:
            return Reply(f"nccl-tuner: {name}: took longer than {SECONDS:.0f} seconds; valid: a smaller question", True)
        except Exception as error:
            traceback.print_exc(file=sys.__stderr__)
            return Reply(f"nccl-tuner: {name}: a fault of nccl-tuner itself, {type(error).__name__}", wrong=True)
        # The error is the last line but for the command that would answer, which is for a shell.
        lines = [line for line in errors.splitlines() if not line.startswith(CURE)]
        if code not in VERDICTS or (code == 1 and not output.strip()):
            return Reply(lines[-1] if lines else f"nccl-tuner: {name}: no answer, exit code {code}", wrong=True)
        whole = json.loads(output) if output.strip() else None
        address = self._keep(output) if whole is not None else None
        about = {VERSION_KEY: VERSION, "tool": name, "verdict": VERDICTS[code], "exit_code": code}
        if codes := sorted({str(each) for each in _values_of(whole, "code")}):
            about["codes"] = codes
        if lines:
            about["notes"] = lines
        if address:
            about |= {"whole": address, "whole_bytes": len(output.encode())}
        return Reply(short(about, whole, tool.shown), address=address)

    def _answer(self, tool: Tool, given: Mapping[str, Any]) -> tuple[int, str, str]:
        if tool.answer is not None:
            tool.words(given, self.fence)
            with self.fence.up(SECONDS):
                return 0, json.dumps(versioned(tool.answer()), indent=1), ""
        words = tool.words(given, self.fence)
        with self.fence.up(SECONDS):
            return answered(words)

    def _keep(self, output: str) -> str | None:
        if len(output) > MOST_KEPT_BYTES:
            return None
        key = hashlib.sha256(output.encode()).hexdigest()[:32]
        self.kept[key] = output
        self.kept.move_to_end(key)
        while len(self.kept) > MOST_KEPT or sum(map(len, self.kept.values())) > MOST_KEPT_BYTES:
            self.kept.popitem(last=False)
        return f"{ADDRESS}{key}"

    def whole(self, address: str) -> str:
        """A whole answer, as JSON. BadInput if it is no longer kept."""
        if (found := self.kept.get(address.removeprefix(ADDRESS))) is None:
            raise BadInput(
                f"{address} is no longer kept, as the server only keeps the last {MOST_KEPT} answers: ask again"
            )
        return found


def answered(words: Iterable[str]) -> tuple[int, str, str]:
    """Runs a command line in this process; returns its exit code, its output and its errors."""
    from tuner import cli

    output, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        try:
            cli.run(list(words))
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 0
    if code == INTERRUPTED:
        raise KeyboardInterrupt  # whoever ends the server does not mean this answer alone
    return code, output.getvalue(), errors.getvalue()


def short(about: dict[str, Any], whole: Any, shown: Sequence[str]) -> str:
    """JSON of at most SHORT_BYTES bytes: facts about the answer, and as much of it as fits; all lists are cut to the
    same length."""
    answers = [_only(whole, frozenset(keys.split())) for keys in shown]
    tried = [(each, LONGEST_LIST) for each in answers] + [
        (answers[-1], most) for most in range(LONGEST_LIST - 1, -1, -1)
    ]
    for answer, most in tried:
        text = json.dumps(_cut({**about, "answer": answer}, most), separators=(",", ":"), ensure_ascii=False)
        if len(text.encode()) <= SHORT_BYTES:
            return text
    return json.dumps({key: value for key, value in about.items() if not isinstance(value, list)})


def _only(value: Any, keys: frozenset[str]) -> Any:
    """The part of ``value`` at these keys; a list of objects with a single key becomes the list of their values."""
    if isinstance(value, list):
        kept = [_only(each, keys) for each in value]
        if kept and all(isinstance(each, dict) and len(each) == 1 for each in kept):
            names = {*kept[0]}
            if all({*each} == names for each in kept):
                return [each[name] for each in kept for name in each]
        return [each for each in kept if each not in ({}, [], None)]
    if isinstance(value, dict):
        inner = {key: _only(each, keys) for key, each in value.items() if key in keys}
        return {key: each for key, each in inner.items() if each not in ({}, None)}  # [] says that there is none
    return value


def _cut(value: Any, most: int) -> Any:
    if isinstance(value, list):
        left = len(value) - most
        return [_cut(each, most) for each in value[:most]] + ([f"... {left} more"] if left > 0 else [])
    if isinstance(value, dict):
        return {key: _cut(each, most) for key, each in value.items()}
    if isinstance(value, str) and len(value) > LONGEST_TEXT:
        return f"{value[:LONGEST_TEXT]} ..."
    return value


def _values_of(value: Any, key: str) -> Iterator[Any]:
    if isinstance(value, list):
        for each in value:
            yield from _values_of(each, key)
    elif isinstance(value, dict):
        for name, each in value.items():
            if name == key and isinstance(each, str):
                yield each
            yield from _values_of(each, key)
