"""Reads NCCL's variables from files: nccl.conf, output of env, a Dockerfile, a job script, a pod's env.

Only NCCL's own variables leave this module: other variables are counted, and their names and values are not kept.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput, TunerError
from tuner.base.expressions import expression
from tuner.base.files import read_bytes
from tuner.base.names import Collective, DataType, Op
from tuner.emulator.request import Request
from tuner.emulator.selection import Pick, Selection, of_picks
from tuner.jobs.preflight.collect import assignments
from tuner.release import load
from tuner.release.variables import ignored
from tuner.scenario import Scenario

MOST_BYTES = 1 << 20
OWN = expression(r"NCCL_\w+", re.ASCII)
OF_PLUGINS = expression(r"OFI_NCCL_\w+", re.ASCII)
NAME = r"(?<![\w${.-])([A-Za-z_]\w*)"
VALUE = r"\"((?:[^\"\\\n]|\\.)*)\"|'([^'\n]*)'|((?:(?!,[A-Z][A-Z0-9_]*=)[^\s\"';&|])*)"
ASSIGNED = expression(rf"{NAME}=(?:{VALUE})", re.ASCII)  # a shell's, mpirun's -x, srun's --export, a Dockerfile's ENV
SPACED = expression(r"^[ \t]*ENV[ \t]+([A-Za-z_]\w*)[ \t]+([^\s=][^\n]*)$", re.MULTILINE | re.ASCII)  # ENV's older form
# setenv of csh and of module files; of Lua's and Python's, and their settings with spaces and quotes, as in TOML
SET = expression(r"(?<![\w.])setenv[ \t]+([A-Za-z_]\w*)[ \t]+(?:\"([^\"\n]*)\"|'([^'\n]*)'|([^\s;\"']+))", re.ASCII)
CALLED = expression(
    r"(?:\bsetenv[ \t]*\([ \t]*|\benviron[ \t]*\[[ \t]*)[\"'](\w+)[\"'][ \t]*(?:,|\][ \t]*=)[ \t]*"
    r"(?:str\()?(?:\"([^\"\n]*)\"|'([^'\n]*)'|(-?\w+))",
    re.ASCII,
)
QUOTED = expression(
    r"(?:^[ \t]*([A-Z][A-Z0-9_]*)[ \t]+=[ \t]*|[\"']([A-Z][A-Z0-9_]*)[\"'][ \t]*:[ \t]*)"
    r"(?:\"([^\"\n]*)\"|'([^'\n]*)'|(-?\d+)(?!\w))",
    re.MULTILINE | re.ASCII,
)
DEFAULT = expression(r"\$\{([A-Za-z_]\w*):?=(?:\"([^\"}\n]*)\"|'([^'}\n]*)'|([^{}\s\"'$]*))\}", re.ASCII)
YAML = r"(?:\"([^\"\n]*)\"|'([^'\n]*)'|([^\s#},]*))"
NAMED = expression(  # env of a container: name and value on two lines, or in one flow mapping
    rf"\bname\"?:[ \t]*[\"']?(\w+)[\"']?[ \t]*[,\n][ \t]*\"?value\"?:[ \t]*{YAML}", re.ASCII
)
MAPPED = expression(rf"^[ \t{{-]*[\"']?([A-Z][A-Z0-9_]*)[\"']?[ \t]*:[ \t]+{YAML}", re.MULTILINE)
FROM = expression(  # of a container: a value that only the running pod has
    r"\bname\"?:[ \t]*[\"']?(NCCL_\w+)[\"']?[ \t]*[,\n][ \t]*\"?valueFrom\"?:", re.ASCII
)
PASSED_ON = expression(r"(?<![\w$\{.:/@-])(NCCL_[A-Z0-9_]+)(?![\w.])", re.ASCII)
UNSET = expression(r"(?:^|(?<=[\s;&]))unset[ \t]+([A-Za-z_]\w*(?:[ \t]+[A-Za-z_]\w*)*)", re.MULTILINE | re.ASCII)
UNUSED = expression(r"(?:^|(?<=\s))#.*$|^[ \t]*ARG[ \t].*$", re.MULTILINE)  # comments, and what only a build has
SIZES = [1 << power for power in range(10, 34)]


@dataclass(frozen=True, slots=True)
class VariablesInFile:
    """The variables of NCCL that a file sets.

    ``computed`` are variables whose values the file computes, ``named`` variables that the file names without a value
    (for example, to pass them on), and ``of_plugins`` variables of a network plugin. ``others`` is the number of all
    other variables in the file.
    """

    path: Path
    values: Mapping[str, str]
    computed: tuple[str, ...] = ()
    named: tuple[str, ...] = ()
    of_plugins: tuple[str, ...] = ()
    others: int = 0


@dataclass(frozen=True, slots=True)
class FileEffects:
    """What the variables of a file do to a communicator.

    Most fields have names of variables. The names are grouped as in :class:`VariablesInFile`, and by the effect that
    each variable by itself has on the picks of collectives on plain buffers. ``tuners`` are variables that may make a
    plugin choose. ``given`` are variables that the user set, too: the user's values win over the file's. ``computed``
    are variables whose values are computed, or come from elsewhere. ``refused`` has, by the name of a variable that was
    left out, the reason why. ``others`` is the number of variables that belong neither to NCCL nor to a network plugin;
    their names and values are not kept.
    """

    file: str
    changing: tuple[str, ...]
    tuners: tuple[str, ...]
    unchanging: tuple[str, ...]
    unread: tuple[str, ...]
    given: tuple[str, ...]
    computed: tuple[str, ...]
    of_plugins: tuple[str, ...]
    refused: Mapping[str, str]
    others: int


def with_files(scenario: Scenario, files: Iterable[Path]) -> tuple[Scenario, tuple[FileEffects, ...]]:
    """The scenario with the variables of these files, and what each file's variables do. Variables of the scenario win
    over those of a file, and a later file wins over an earlier one. Refused variables are left out.

    BadInput for a file that is no text; also raises the errors of the scenario itself.
    """
    done: list[FileEffects] = []
    for path in reversed(tuple(files)):
        found = read(path)
        done.append(effects(scenario, found))
        taken = {name: value for name, value in found.values.items() if name not in done[-1].refused}
        scenario = replace(scenario, environment={**taken, **(scenario.environment or {})})
    return scenario, tuple(done)


def read(path: Path) -> VariablesInFile:
    """The variables of a file. BadInput if it cannot be read, is no text, or has more than a mebibyte."""
    content = read_bytes(path, BadInput)
    if len(content) <= MOST_BYTES and (process := of_process(content)) is not None:
        return _sorted(path, process)
    if len(content) > MOST_BYTES or b"\0" in content:
        raise BadInput(
            f"{path} is not a text of at most {MOST_BYTES >> 20} MiB: give nccl.conf, the output of env, or a script"
        )
    text = content.decode("utf-8", "replace")
    return VariablesInFile(path, assignments(text)) if path.name.endswith("nccl.conf") else of_text(path, text)


def of_text(path: Path, text: str) -> VariablesInFile:
    """The variables that the text of a script, a Dockerfile, a pod or output of env sets."""
    used = UNUSED.sub("", text.replace("\\\r\n", " ").replace("\\\n", " "))
    found: dict[str, str] = {}
    unset: set[str] = set()
    for name, value in _assigned(used):
        if value is None:
            found.pop(name, None)
            unset.add(name)
        else:
            found[name] = value
    named = {match[1] for form in (FROM, PASSED_ON) for match in form.finditer(used)}
    return _sorted(path, found, named - found.keys() - unset)


def of_process(content: bytes) -> dict[str, str] | None:
    """The variables in the content of a /proc/PID/environ, in which a zero byte follows each variable; None for other
    content."""
    if not content.endswith(b"\0") or content.count(b"\0") < 2:
        return None
    parts = [each.partition("=") for each in content.decode("utf-8", "replace").split("\0")[:-1]]
    return {name: value for name, _, value in parts} if all(equals and name for name, equals, _ in parts) else None


def _sorted(path: Path, found: Mapping[str, str], named: Iterable[str] = ()) -> VariablesInFile:
    """Sorts the variables that were found by what they belong to; ``named``: NCCL's variables that have no value in the
    file."""
    own = {name: value for name, value in found.items() if OWN.fullmatch(name)}
    computed = tuple(sorted(name for name, value in own.items() if "$" in value or "`" in value or "{{" in value))
    known = {name: value for name, value in own.items() if name not in computed}
    of_plugins = tuple(sorted(name for name in found if OF_PLUGINS.fullmatch(name)))
    others = len(found) - len(own) - len(of_plugins)
    return VariablesInFile(path, known, computed, tuple(sorted(named)), of_plugins, others)


def _assigned(text: str) -> Iterator[tuple[str, str | None]]:
    """Yields names and values of assignments, in the order of the file; the value is None if the file unsets the
    variable."""
    forms = ASSIGNED, SPACED, SET, CALLED, QUOTED, DEFAULT, NAMED, MAPPED, UNSET
    matches = [(match.start(), form is UNSET, match) for form in forms for match in form.finditer(text)]
    for _, unsets, match in sorted(matches, key=lambda each: each[0]):
        if unsets:
            yield from ((name, None) for name in match[1].split())
        else:
            name, *values = (each for each in match.groups() if each is not None)
            yield name, values[0] if values else ""


def effects(scenario: Scenario, found: VariablesInFile) -> FileEffects:
    """What each variable of a file by itself does to the scenario. Variables that the scenario itself sets are not
    tried, as the scenario's values win. Raises the errors of the scenario.
    """
    nccl, before, has = load(scenario.nccl), _picks(scenario), scenario.environment or {}
    values = {name: value for name, value in found.values.items() if name not in has}
    unread, tuners = {*ignored(nccl, values)}, set(nccl.environment.indifferent.get("tuners", ())) & set(values)
    changing: list[str] = []
    unchanging: list[str] = []
    refused: dict[str, str] = {}
    for name in sorted(set(values) - unread - tuners):
        if name in nccl.indifferent_variables:
            unchanging.append(name)
            continue
        try:
            alone = replace(scenario, environment={**has, name: values[name]})
            (unchanging if _picks(alone) == before else changing).append(name)
        except TunerError as error:
            refused[name] = str(error)
    return FileEffects(
        file=str(found.path),
        changing=tuple(changing),
        tuners=tuple(sorted(tuners - unread)),
        unchanging=tuple(unchanging),
        unread=tuple(sorted(unread)),
        given=tuple(sorted(found.values.keys() - values.keys())),
        computed=tuple(sorted((*found.computed, *found.named))),
        of_plugins=found.of_plugins,
        refused=refused,
        others=found.others,
    )


def _picks(scenario: Scenario) -> list[list[Pick] | type[TunerError]]:
    selection = Selection(scenario.communicator())
    picked: list[list[Pick] | type[TunerError]] = []
    for collective in Collective:
        try:
            picked.append(of_picks(selection.pick(Request(collective, DataType.float32, Op.sum), SIZES)))
        except TunerError as error:
            picked.append(type(error))
    return picked
