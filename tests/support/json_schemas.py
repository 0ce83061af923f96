"""JSON Schemas of what commands print with ``--json``, made from the types of the records that they print.

``docs/schemas`` has one for each command; ``make docs`` writes them. What is published allows keys that are added
later, as docs/json.md promises; the tests hold what is printed against the same schema without any other key.
"""

import ast
import collections.abc
import dataclasses
import importlib
import inspect
import json
import shlex
import sys
import types
import typing
from collections.abc import Mapping
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, Literal

import click
import numpy as np

from tuner import cli
from tuner.base import records
from tuner.base.extras import Extra
from tuner.base.findings import Finding, Severity
from tuner.base.records import VERSION, VERSION_KEY
from tuner.cli.command import WRITTEN
from tuner.engines.carriers import CarriedSizes
from tuner.jobs.environment_file import FileEffects

DRAFT = "https://json-schema.org/draft/2020-12/schema"
Schema = dict[str, Any]
ANY: Schema = {}
_PLAIN: dict[Any, Schema] = {
    str: {"type": "string"},
    bool: {"type": "boolean"},
    int: {"type": "integer"},
    float: {"type": "number"},
    type(None): {"type": "null"},
    Path: {"type": "string"},
    object: ANY,
    Any: ANY,
}
_LISTS = (list, tuple, collections.abc.Sequence, collections.abc.Iterable, frozenset, set)


class Schemas:
    """The schemas of records, each once, by the names of their classes. ``closed``: no keys but those of the records.

    ``written_as`` has the types of what a record's own ``as_json`` or a field's ``convert`` makes, where no annotation
    says them: by class, or by class and field.
    """

    def __init__(self, written_as: Mapping[Any, Any], closed: bool) -> None:
        self.written_as = written_as
        self.closed = closed
        self.records: dict[str, Schema] = {}
        self._names: dict[Any, str] = {}

    def of(self, kind: Any) -> Schema:
        """Schema of a type; of a mapping of names to types an object with these keys; a tuple of types: any of them."""
        if isinstance(kind, Mapping):
            return self._object({name: self.of(each) for name, each in kind.items()}, list(kind))
        if isinstance(kind, Merged):
            return self._merged(kind)
        if isinstance(kind, list):  # of one form that is no class
            return {"type": "array", "items": self.of(kind[0])}
        if kind is None:
            return _PLAIN[type(None)]
        if isinstance(kind, tuple):
            return any_of([self.of(each) for each in kind])
        if isinstance(kind, typing.TypeVar | typing.ForwardRef):  # what records are of; a type inside itself
            return ANY
        if kind in _PLAIN:
            return _PLAIN[kind]
        origin, arguments = typing.get_origin(kind), typing.get_args(kind)
        if origin is typing.Annotated:
            return self.of(arguments[0])
        if origin is Literal:
            return {"enum": [records.to_json(each) for each in arguments]}
        if origin in (typing.Union, types.UnionType):
            return any_of([self.of(each) for each in arguments])
        if origin is not None:
            return self._generic(kind, origin, arguments)
        return self._class(kind)

    def _generic(self, kind: Any, origin: Any, arguments: tuple[Any, ...]) -> Schema:
        if origin is np.ndarray:
            return {"type": "array"}
        if origin is tuple and arguments and arguments[-1] is not ...:
            items = [self.of(each) for each in arguments]
            return {"type": "array", "prefixItems": items, "items": False, "minItems": len(items)}
        if issubclass(origin, collections.abc.Mapping):
            return {"type": "object", "additionalProperties": self.of(arguments[1])}
        if issubclass(origin, _LISTS):
            return {"type": "array", "items": self.of(arguments[0])}
        return self._class(origin)

    def _class(self, kind: Any) -> Schema:
        if kind in self.written_as:
            return self._named(kind, self.written_as[kind])
        if issubclass(kind, Enum):
            return {"enum": [each.value if issubclass(kind, str) else each.name for each in kind]}
        if issubclass(kind, np.integer):
            return {"type": "integer"}
        if issubclass(kind, np.floating):
            return {"type": "number"}
        if kind is np.ndarray:
            return {"type": "array"}
        if typing.is_typeddict(kind):
            return self._named(kind, hints(kind))
        if dataclasses.is_dataclass(kind):
            if hasattr(kind, "as_json"):
                raise LookupError(f"{kind!r}: what its as_json makes is in no table")
            return self._named(kind, None)
        if issubclass(kind, collections.abc.Mapping):
            return {"type": "object"}
        if issubclass(kind, tuple) and hasattr(kind, "_fields"):
            return self.of(tuple[tuple(hints(kind).values())])
        raise LookupError(f"{kind!r} has no schema")

    def _named(self, kind: Any, written: Any) -> Schema:
        """A reference to the schema of a record, which is made once: records may hold themselves."""
        if kind not in self._names:
            taken = set(self._names.values())
            name = kind.__name__ if kind.__name__ not in taken else f"{kind.__module__}.{kind.__name__}"
            self._names[kind] = name
            self.records[name] = self.of(written) if written is not None else self._object(*self.keys(kind))
        return {"$ref": f"#/$defs/{self._names[kind]}"}

    def keys(self, kind: Any) -> tuple[dict[str, Schema], list[str]]:
        """The keys of a record with their schemas, and those that it always has."""
        properties: dict[str, Schema] = {}
        required: list[str] = []
        annotated = hints(kind)
        for field, form in records._forms(kind):
            made, optional = annotated[field], form.optional
            if (owner := next((one for one in kind.__mro__ if (one, field) in self.written_as), None)) is not None:
                made = self.written_as[owner, field]
            elif form.convert is not None:
                made = _converted(kind, field, made, form.convert)
            if not form.merged:
                properties[form.key or field] = self.of(without_none(made) if optional else made)
                required += [] if optional else [form.key or field]
                continue
            inner, inside = self._merged_keys(made)
            spell = form.merged.format if isinstance(form.merged, str) else str
            properties |= {spell(key): each for key, each in inner.items()}
            required += [] if optional else [spell(key) for key in inside]
        return properties, required

    def _merged_keys(self, made: Any) -> tuple[dict[str, Schema], list[str]]:
        """Keys of a record or mapping that stand among those of the one around it; none always of one of several."""
        if isinstance(made, Mapping):
            return {name: self.of(each) for name, each in made.items()}, list(made)
        if isinstance(made, Merged):
            merged = self._merged(made)
            return merged["properties"], merged["required"]
        if isinstance(made, Keys):
            of_record, always = self.keys(made.kind)
            return {name: of_record[name] for name in made.names}, [name for name in always if name in made.names]
        several = made if isinstance(made, tuple) else typing.get_args(made) or (made,)
        kinds = [each for each in several if each is not type(None)]
        found = [self._merged_keys(each) if isinstance(each, Mapping) else self._keys_of(each) for each in kinds]
        properties: dict[str, Schema] = {}
        for keys, _ in found:
            for name, each in keys.items():
                same = name not in properties or properties[name] == each
                properties[name] = each if same else any_of([properties[name], each])
        always = [name for name in found[0][1] if all(name in each for _, each in found)]
        return properties, always if len(kinds) == len(several) else []

    def _keys_of(self, kind: Any) -> tuple[dict[str, Schema], list[str]]:
        if (written := self.written_as.get(kind)) is not None:
            return self._merged_keys(written)
        return self.keys(kind)

    def _merged(self, merged: "Merged") -> Schema:
        properties: dict[str, Schema] = {}
        required: list[str] = []
        for each in merged.kinds:
            inner, inside = self._merged_keys(each)
            properties |= inner
            required += inside
        for each in merged.perhaps:
            properties |= self._merged_keys(each)[0]
        return self._object(properties, required)

    def _object(self, properties: dict[str, Schema], required: list[str]) -> Schema:
        made: Schema = {"type": "object", "properties": properties, "required": required}
        return {**made, "additionalProperties": False} if self.closed else made


@dataclasses.dataclass(frozen=True)
class Merged:
    """One object with the keys of several kinds, and of ``perhaps`` those that there are."""

    kinds: tuple[Any, ...]
    perhaps: tuple[Any, ...] = ()


@dataclasses.dataclass(frozen=True)
class Keys:
    """Some of the keys of a record."""

    kind: Any
    names: tuple[str, ...]


def any_of(several: list[Schema]) -> Schema:
    """The one schema, or any of those that differ."""
    kept: list[Schema] = []
    for each in several:
        kept += [one for one in each.get("anyOf", [each]) if one not in kept]
    return ANY if ANY in kept else kept[0] if len(kept) == 1 else {"anyOf": kept}


def without_none(kind: Any) -> Any:
    """The type without None, of a key that is left out instead."""
    if typing.get_origin(kind) not in (typing.Union, types.UnionType):
        return kind
    rest = tuple(each for each in typing.get_args(kind) if each is not type(None))
    return typing.Union[rest]  # noqa: UP007


def _converted(kind: Any, field: str, annotated: Any, convert: Any) -> Any:
    """Type of what a field's ``convert`` makes, as its annotation says it."""
    if convert is list:
        return annotated
    if isinstance(convert, type):
        return convert
    if convert is len:
        return int
    said = hints(convert).get("return")
    if said is None:
        raise LookupError(f"{kind.__name__}.{field}: what its convert makes is in no table")
    return said


@cache
def hints(kind: Any) -> dict[str, Any]:
    """Types of the fields of a class, or of a function, with names that its module imports for type checkers alone."""
    owners = kind.__mro__ if isinstance(kind, type) else (kind,)
    there: dict[str, Any] = {}
    for owner in owners:
        if owner.__module__ in sys.modules and owner.__module__ != "builtins":
            there = {**_of_type_checkers(owner.__module__), **there}
    return typing.get_type_hints(kind, localns=there)


@cache
def _of_type_checkers(module: str) -> dict[str, Any]:
    """What ``if TYPE_CHECKING:`` imports in a module."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except (OSError, TypeError):
        return {}
    found: dict[str, Any] = {}
    for node in tree.body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            for each in node.body:
                if isinstance(each, ast.ImportFrom) and each.module:
                    there = importlib.import_module(each.module)
                    found |= {one.asname or one.name: getattr(there, one.name, Any) for one in each.names}
    return found


def document(name: str, kinds: Any, *, closed: bool = False) -> Schema:
    """The schema of a command's ``--json``: of one object, which is any of ``kinds``, with the keys of all answers."""
    made = Schemas(written_as(), closed)
    several = kinds if isinstance(kinds, tuple) else (kinds,)
    answers = [made.of(Merged((each,), (ALWAYS,))) for each in several]
    version = {VERSION_KEY: {"const": VERSION}}
    for each in answers:
        each["properties"] = version | each["properties"]
        each["required"] = [VERSION_KEY, *each["required"]]
    return {
        "$schema": DRAFT,
        "title": f"nccl-tuner {name} --json",
        **any_of(answers),
        "$defs": dict(sorted(made.records.items())),
    }


# What print_json adds to any answer: what a log said that describes the communicator, what variables of files do, and
# what stands behind a release.
ALWAYS: dict[str, Any] = {"log": object, "env_files": list[FileEffects], "standing": str}


@cache
def written_as() -> dict[Any, Any]:
    """What a record's own ``as_json`` makes, or the ``convert`` of a field, where no annotation says it."""
    from tuner.answers.scale import Axis, CountRange
    from tuner.base.names import Collective
    from tuner.base.nouns import TimeInterval
    from tuner.cli.plugin.tables import _Linted
    from tuner.jobs.inside.decide import JobArm
    from tuner.times.calibration.accuracy.of_file import Accuracy, FileAccuracy
    from tuner.times.regret.workflow import MeasuredRegret
    from tuner.times.verify import Skipped, Verification

    ends = [f"{end}_{axis.name}" for end in ("from", "to") for axis in Axis]
    counted = {
        "collective": str,
        "bytes": int,
        **{f"{end}_ranks": int for end in ("from", "to")},
        "algorithm": hints(CountRange)["algorithm"],
        "protocol": hints(CountRange)["protocol"],
        "channels": int,
        "threads": int,
        **{f"{what}_{end}": float | None for what in ("time_us", "busbw_gbs") for end in ("from", "to")},
    }
    perhaps = {"calibrated_from": TimeInterval, "calibrated_to": TimeInterval, "bypass": str}
    accuracy = {name: kind | None for name, kind in hints(Accuracy).items()}
    of_file = {name: kind for name, kind in hints(FileAccuracy).items() if name not in ("file", "collectives")}
    return {
        Extra: {"name": str, "gives": str, "missing": tuple[str, ...], "install": str},
        Finding: {"code": str, "severity": Severity, "facts": dict[str, object], "text": str},
        CountRange: Merged((counted,), (dict.fromkeys(ends, int), perhaps)),
        FileAccuracy: {**accuracy, **of_file},
        (_Linted, "read"): str,
        (Skipped, "point"): {"collective": Collective, "bytes": int},
        (JobArm, "found"): {"gain": float, "interval": tuple[float, float]},
        (JobArm, "job"): {"job_gain": float | None, "job_interval": tuple[float, float] | None},
        (Verification, "sizes"): list[object],
        (MeasuredRegret, "sizes"): list[object],
    }


def command_answers() -> dict[str, Any]:
    """What each command prints: a record, an object with these keys, or any of several of them."""
    from tuner.answers import (
        audit,
        exchanges,
        explain,
        graphs,
        known,
        library,
        mixed,
        order,
        picks,
        scale,
        serving,
        serving_step,
        symmetric,
        tables,
        training_step,
        tried,
    )
    from tuner.answers.changes import AtSize
    from tuner.answers.diff import PickChange
    from tuner.answers.exports.choices import ExportedChoices
    from tuner.bench import decide, workflow
    from tuner.bench.decision.rows import Interpolated
    from tuner.cli import cache, diff, installation
    from tuner.cli import exchanges as shown_exchanges
    from tuner.cli.cost import collective
    from tuner.cli.plugin.tables import _Linted
    from tuner.emulator.ranges import SizeRange
    from tuner.graphs.explain.records import GraphExplanation
    from tuner.jobs import check_run
    from tuner.jobs.diagnosis.records import FileDiagnosis
    from tuner.jobs.inside import decide as job_decide
    from tuner.jobs.inside import plan, report
    from tuner.jobs.preflight.workflow import Report
    from tuner.jobs.workload.grouped import JobBudget
    from tuner.jobs.workload.priced import Budget
    from tuner.machine.adapters import Nearness
    from tuner.machine.catalogue import DocumentSource
    from tuner.machine.graphs import OrderedGraph
    from tuner.oracle.bill import MemoryStage
    from tuner.oracle.conformance.check_log import LogComparison
    from tuner.oracle.conformance.learn import Learning
    from tuner.oracle.conformance.mismatches import MatchReport
    from tuner.plugin import live, stats, trial
    from tuner.release.regressions import Regression
    from tuner.release.variables import VariableReading
    from tuner.scenario.description import ConstantsUsed
    from tuner.scenario.logs.imported import Imported, NodeFacts
    from tuner.times import telling, verify
    from tuner.times.acceptance.accept import Acceptance
    from tuner.times.acceptance.judge import Floor
    from tuner.times.calibration import workflow as calibration
    from tuner.times.calibration.accuracy.evaluate import SplitsAccuracy
    from tuner.times.calibration.accuracy.of_file import FileAccuracy
    from tuner.times.calibration.sweep import SweepFit
    from tuner.times.costmodels import fabric, line, wires
    from tuner.times.regret import workflow as regret
    from tuner.times.timemodel.left_out import ClassAccuracy

    problem = {"file": str, "kind": str, "refused": bool, "lines": list[int], "text": str}
    texts, numbers, rows = list[str], list[int], list[object]
    comparison = Merged(
        ({"before": str, "after": str, "changes": list[PickChange]},),
        ({"sizes": list[AtSize]}, Keys(diff.Upgrade, ("beyond", "selection_identical", "known_regressions"))),
    )
    machine = Merged((ConstantsUsed, {"machine": str | None, "gpus_per_node": int, "environment": dict[str, str]}))
    picture = dict.fromkeys(("algorithm", "protocol", "channels", "threads", "time_us"), rows)
    call = {"collective": str, "dtype": str, "op": str, "buffers": str}
    experiment = {"parameter": str, "ranks": str, "bytes": int, "iterations": int, "warmup": int}
    experiment |= {"repetitions": int, "usual_range": tuple[float, float], "nccl_tests": str}
    rows_tried = {"rows": list[tried.TriedRow], "no_effect": numbers}
    levels = {"alpha_us": float, "beta_gbs": float}
    log_keys = "release communicator ranks node_count environment net_gbs thresholds coll_channels nvls_channels"
    of_log = Keys(Imported, tuple(f"{log_keys} symmetric needed missing notes evidence choices".split()))
    return {
        "pick": (
            {"picks": list[picks.PickAnswer]},
            {"calls": list[exchanges.ExchangeAnswer]},
            mixed.GroupAnswer,
            mixed.MixedAnswer,
            {"engine": str, "calls": list[serving.CarriedCall]},
        ),
        "explain": (
            explain.Explanation,
            symmetric.WindowExplanation,
            {
                "engine": str,
                "call": serving.CarriedCall,
                "explanation": explain.Explanation | symmetric.WindowExplanation | None,
            },
        ),
        "edges": (
            {"ranges": list[SizeRange]},
            scale.Scale,
            {"engine": str, "ranges": list[CarriedSizes]},
        ),
        "diff": (
            {"comparisons": [comparison]},
            {"comparisons": list[shown_exchanges.ExchangeComparison]},
            {"regressions": list[Regression]},
            {"engines": texts, "differences": list[dict[str, CarriedSizes]]},
        ),
        "order": (order.OrderAnswer, {"ranges": list[order.OrderRange]}),
        "table": ({"cells": list[tables.TableCell]}, {"kernels": list[symmetric.WindowExplanation]}),
        "budget": (Budget, JobBudget, serving_step.ServedStep),
        "accept": (Acceptance, {"machine": str, "expected_by": texts, "floors": list[Floor]}),
        "fit constants": calibration.FitReport,
        "fit alpha-beta": (
            calibration.AlphaBetaReport,
            SweepFit,
            line.MeasuredParameter,
            {"experiments": [experiment]},
        ),
        "fit calibration": {"file": str, "name": str, "machine": str, "measured": rows},
        "fit accuracy": (SplitsAccuracy, FileAccuracy),
        "cost operation": {
            "answers": list[collective.Predicted | collective.Bandwidths | collective.Crossovers],
        },
        "cost ideal": (
            {"answers": list[wires.IdealOfShape | fabric.Projected]},
            {"tables": list[fabric.ProjectedTable]},
        ),
        "cost step": (
            training_step.StepReport,
            {"answers": [{"hidden": float, "step_us": float, "speedup": float, "of_most": float}]},
        ),
        "cost report": Merged(
            (
                {
                    "file": str,
                    "collective": str,
                    "nccl": str,
                    "ranks": int,
                    "nodes": int,
                    "links": dict[str, float | None],
                    "intra": (levels, None),
                    "inter": (levels, None),
                    "in_cuda_graphs": bool,
                    "wrong_bytes": numbers,
                    "sizes": rows,
                },
            ),
            ({"calibration": object},),
        ),
        "diagnose": {
            "severity": str,
            "files": [Merged((FileDiagnosis, {"severity": str, "command": str | None}))],
        },
        "machines": (
            {"machines": list[known.ListedMachine]},
            Merged((known.ListedMachine, {"notes": texts, "sources": list[DocumentSource], "topology": str})),
            {"name": str, "changes": texts, "topology": str},
            {"file": str, "gpu": str | None, "nccl": str, "topology": str, "notes": texts},
            {"file": str, "machines": list[Nearness]},
        ),
        "graphs": (
            Merged(({"graphs": dict[str, OrderedGraph]},)),
            graphs.GraphsAcross,
            graphs.Explained,
        ),
        "memory": {"stages": list[MemoryStage]},
        "log": (
            LogComparison,
            Merged(
                (of_log, {"emulated": bool, "communicators": [{"name": str, "ranks": int}], "nodes": list[NodeFacts]}),
                ({"table": [dict[str, str]], "max_threads": [dict[str, str]]},),
            ),
        ),
        "preflight check": Report,
        "check": (
            {"reports": list[MatchReport]},
            check_run.CheckedRun,
            LogComparison,
            serving.EngineComparison,
        ),
        "oracle run": library.EndedProgram,
        "oracle learn": Learning,
        "fetch-nccl": {"libraries": [{"release": str, "build": str, "path": str, "sha256": str}]},
        "cache": cache.Cache,
        "measure": workflow.MeasuringResult,
        "measured": (
            {"tables": list[known.ListedTable]},
            {"name": str, "header": object, "rows": rows},
            {"problems": [problem]},
            Merged((known.ListedTable, {"file": str, "left_out": dict[str, int], "problems": [problem]})),
            {"name": str, "curves": int, "folder": str},
            Merged((telling.TellingCalls, {"measure_command": str, "fit_command": str})),
        ),
        "verify": (verify.Verification, Merged((regret.MeasuredRegret,), ({"next": regret.NextRuns},))),
        "decide": (Merged((decide.Decided,), (Interpolated,)), job_decide.JobDecision),
        "plugin env": {"release": str, "set": dict[str, str], "prepend": dict[str, str]},
        "plugin path": {"path": str},
        "plugin convert": {"from": str, "to": str, "out": str, "rows": int},
        "plugin lint": ({"tables": list[_Linted]}, rows_tried),
        "plugin dry-run": (
            Merged((trial.Trials,), ({"groups": list[trial.GroupTrial]},)),
            rows_tried,
        ),
        "plugin compile": {"out": str, "decisions": int, "costs": int, "notes": texts},
        "plugin audit": audit.Audit,
        "plugin stats": (
            stats.Stats,
            {"ranks": list[live.LiveCounts], "tables": list[live.LiveTable], "different_tables": texts},
        ),
        "job read": report.JobReport,
        "job plan": plan.JobPlan,
        "job variables": {"release": str, "compared": bool, "variables": list[VariableReading]},
        "plot": (
            Merged((call, machine, {"nodes": numbers, "bytes": numbers}, picture)),
            Merged(
                (
                    call,
                    machine,
                    {"nodes": int, "ranks": int, "bytes": numbers, "bus_factor": float, "pick": picture},
                    {"time_us": dict[str, list[float | None]]},
                )
            ),
            Merged(
                (
                    call,
                    {"nodes": numbers, "bytes": numbers, "changed": rows, "ratio": rows},
                    {name: Merged((machine, picture)) for name in ("before", "after")},
                )
            ),
            {"kinds": rows},
            {"classes": list[ClassAccuracy]},
            Merged((GraphExplanation, {"orders": tuple[tuple[str, ...], ...]})),
            {"file": str, "file_bytes": int, "data_bytes": int, "machine": str, "gpus_per_node": int}
            | {"releases": texts, "collectives": texts, "nodes": numbers, "sizes_bytes": numbers, "picks": int}
            | {"different_lines": int, "calibrations": texts},
        ),
        "doctor": installation.Installation,
        "export": ExportedChoices,
    }


@cache
def _validators() -> Mapping[str, Any]:
    """A validator for each command, of exactly the keys that it prints."""
    from jsonschema import Draft202012Validator

    return {name: Draft202012Validator(document(name, kinds, closed=True)) for name, kinds in command_answers().items()}


def check_printed(context: click.Context, printed: Mapping[str, Any]) -> None:
    """AssertionError where a command prints what its schema does not have.

    One that is run by itself, without the groups around it, has the last word of its name alone.
    """
    words: list[str] = []
    while context.command is not cli.everything:
        words.insert(0, context.command.name or "")
        if context.parent is None:
            break
        context = context.parent
    check(" ".join(words), printed)


def check(name: str, printed: Mapping[str, Any]) -> None:
    """AssertionError where the command of this name, or of this end of a name, does not print such an object."""
    known = _validators()
    names = [name] if name in known else [each for each in known if each.endswith(f" {name}")]
    assert names, f"{name}: prints JSON and has no schema in tests/support/json_schemas.py"
    if found := best_error(known[names[0]], printed):
        raise AssertionError(f"{name} --json: not as docs/schemas has it: {found}")


def best_error(validator: Any, printed: Mapping[str, Any]) -> str | None:
    """Where what is printed is not as the schema says, of the answer that it is nearest to; None where it is."""
    from jsonschema.exceptions import best_match

    error = best_match(validator.iter_errors(printed))
    return None if error is None else f"{error.json_path}: {error.message[:300]}"


def commands(group: click.Group, before: tuple[str, ...] = ()) -> list[str]:
    """Every command that has ``--json``."""
    found: list[str] = []
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            found += commands(command, (*before, name))
        elif any("--json" in option.opts for option in command.params):
            found.append(" ".join((*before, name)))
    return found


# Commands that ask libnccl, measure, or print no answer; options whose answer is no JSON, or a file.
NOT_AGAIN = ("oracle", "check", "memory", "fetch-nccl", "measure", "doctor", "mcp", "completion")
NO_JSON = frozenset(
    {"--libnccl", "--csv", "--prometheus", "--parquet", "-o", "--junit", "--help", "--help-all", "--keep", "|", ">"}
    | {f"--{name.replace('_', '-')}" for name in WRITTEN}
)


def as_json(line: str) -> list[str] | None:
    """The words of a command line with ``--json``; None where it has none, asks libnccl, or writes a file."""
    first, *words = shlex.split(line, comments=True)
    if first != "nccl-tuner" or NO_JSON & {*words} or words[0] in NOT_AGAIN:
        return None
    if words[0] != "cost" and not any(
        f"{' '.join(words)} ".startswith(f"{each} ") for each in commands(cli.everything)
    ):
        return None
    return words if "--json" in words else [*words, "--json"]


def file_name(name: str) -> str:
    """Name of a command's schema in docs/schemas."""
    return f"{name.replace(' ', '-')}.json"


def texts() -> dict[str, str]:
    """The files of docs/schemas by name."""
    return {
        file_name(name): json.dumps(document(name, kinds), indent=1) + "\n" for name, kinds in command_answers().items()
    }


def write(folder: Path) -> list[str]:
    """Writes the files of docs/schemas that are stale, and removes those of no command; their names."""
    now = texts()
    there = {file.name: file.read_text("utf-8") for file in folder.glob("*.json")}
    for name in there.keys() - now.keys():
        (folder / name).unlink()
    stale = [name for name, text in now.items() if there.get(name) != text]
    for name in stale:
        (folder / name).write_text(now[name], "utf-8")
    return stale
