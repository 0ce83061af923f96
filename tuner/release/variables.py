"""Which variables a release ignores, the default values of variables, and when a process reads them.

The names of the variables that a release can read are texts in its libnccl. ``tables/variables.toml`` has these names
for all releases, ``tables/defaults.toml`` the defaults, and ``tables/second_communicators.toml`` when each is read.
"""

from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, Literal, cast, get_args

from tuner.base import tables
from tuner.base.dataclass import dataclass
from tuner.base.errors import did_you_mean
from tuner.base.spelling import option
from tuner.release.reader import load, names, parts_of
from tuner.release.schema import Release

# Variables that containers (NVIDIA's images set NCCL_VERSION), builds and frameworks set: no release of NCCL reads any
# of them.
NOT_NCCLS = frozenset(
    {
        "NCCL_VERSION",
        "NCCL_HOME",
        "NCCL_ROOT",
        "NCCL_ROOT_DIR",
        "NCCL_INCLUDE_DIR",
        "NCCL_LIB_DIR",
        "NCCL_LIBRARY",
        "NCCL_ASYNC_ERROR_HANDLING",
        "NCCL_BLOCKING_WAIT",
        "NCCL_DESYNC_DEBUG",
    }
)
# Variables that decide which network is used; all ranks of a communicator need the same network.
OF_THE_NETWORK = frozenset({"NCCL_NET", "NCCL_NET_PLUGIN", "NCCL_IB_DISABLE"})


def ignored(nccl: Release, variables: Iterable[str]) -> list[str]:
    """The given variables that the release ignores, because their names are not in its libnccl."""
    given = set(variables)
    return sorted(given - in_library(nccl.name)) if given else []


def not_emulated(nccl: Release, variables: Iterable[str]) -> list[str]:
    """The given variables that may affect a choice in a way that is not emulated.

    Variables that only the search of graphs reads are among them: a caller that has searched with these removes them
    first.
    """
    given = set(variables)
    return sorted((given - nccl.listed_variables) & in_library(nccl.name)) if given else []


def nearest(nccl: Release, variable: str) -> str:
    """A hint for a variable that is not emulated, such as ``; did you mean NCCL_ALGO?`` or what to use instead; empty
    if there is no hint."""
    if variable in OF_THE_NETWORK:
        return (
            f" (the topology's adapters say which network is taken: {option('topology')}, "
            f"{option('net_gbps')}, {option('net_latency_us')}; for "
            "sockets a topology dumped with them, or without the variable "
            f"{option('change')} gpudirect=off and {option('change')} "
            "nic-gbps=GBPS)"
        )
    return did_you_mean(variable, sorted({*nccl.listed_variables, *nccl.environment.search}))


def in_library(release: str) -> frozenset[str]:
    """The names of variables in a release's libnccl. A release without a list has the names of the newest release
    before it that has one."""
    # For a learnt release, the version that its library reports
    known, release = _in_libraries(), release.partition("@")[0]
    if release in known:
        return known[release]
    before = [name for name in known if parts_of(name) < parts_of(release)]
    return known[before[-1] if before else next(reversed(known))]


@cache
def everywhere() -> frozenset[str]:
    """The variable names that the libnccl of any release contains."""
    return frozenset().union(*_in_libraries().values())


@cache
def _in_libraries() -> dict[str, frozenset[str]]:
    table = tables.toml(tables.folder() / "variables.toml")
    found: dict[str, frozenset[str]] = {}
    current: frozenset[str] = frozenset()
    for release, changed in table.items():
        current = (current | set(changed.get("new", ()))) - set(changed.get("gone", ()))
        found[release] = current
    return found


Default = int | str
NONE = "none"  # the release does not read the variable


@dataclass(frozen=True, slots=True)
class ChangedDefault:
    """A variable whose default differs between two releases; a default of None means that the release does not read the
    variable."""

    variable: str
    before: Default | None
    after: Default | None


def defaults(release: str) -> Mapping[str, Default]:
    """The defaults of the variables that ``release`` reads; "unset" if the communicator's configuration decides.

    For many variables a default of -2 or -1 means that NCCL decides when it initialises.
    """
    upto = _upto(release)
    values = {variable: _newest(of_releases, upto) for variable, of_releases in _table().items()}
    return {variable: value for variable, value in values.items() if value is not None}


def changed_defaults(before: str, after: str) -> list[ChangedDefault]:
    """Variables that both releases read with different defaults, then those that only one of them reads."""
    old, new = defaults(before), defaults(after)
    found = [
        ChangedDefault(variable, old.get(variable), new.get(variable))
        for variable in sorted(old.keys() | new.keys())
        if old.get(variable) != new.get(variable)
    ]
    return sorted(found, key=lambda one: None in (one.before, one.after))


When = Literal["each", "once", "neither", "unseen"]


@dataclass(frozen=True, slots=True)
class VariableReading:
    """When a process reads a variable that changes what NCCL picks or launches, as observed with libnccl.

    ``read`` is ``each`` if each communicator reads the variable anew, ``once`` if a later value changes nothing,
    ``neither`` if a later value counts in part, and ``unseen`` if no value that was tried had an effect on the
    simulated devices. ``default`` is NCCL's default; None if NCCL does not state a number.
    """

    variable: str
    read: When
    default: Default | None


def variable_readings(release: str) -> list[VariableReading]:
    """When each variable that changes a pick or launch is read; variables that are read for each communicator come
    first.

    If the library of the release was not asked (:func:`asked_of_readings`), these are the readings on which the nearest
    releases before and after it agree. A learnt release has its parent's readings.
    """
    known, nearest = defaults(release), _nearest_asked(release)
    found = []
    for variable in _read_again():
        said = {_read_in(variable, name) for name in nearest}
        if said != {NONE}:
            read = cast(When, said.pop()) if len(said) == 1 else "unseen"
            found.append(VariableReading(variable, read, known.get(variable)))
    return sorted(found, key=lambda one: (get_args(When).index(one.read), one.variable))


def asked_of_readings() -> list[str]:
    """The releases whose libraries were asked when a process reads each variable."""
    return list(_second_communicators()["releases"])


def _nearest_asked(release: str) -> list[str]:
    """The release itself if its library was asked, else the nearest ones before and after it that were."""
    asked, known, at = asked_of_readings(), names(), _upto(release)[-1]
    if at in asked:
        return [at]
    earlier = [name for name in asked if known.index(name) < known.index(at)]
    later = [name for name in asked if known.index(name) > known.index(at)]
    return [*earlier[-1:], *later[:1]]


def _read_in(variable: str, release: str) -> str:
    lines, upto = _read_again()[variable], names()
    return next((lines[name] for name in reversed(upto[: upto.index(release) + 1]) if name in lines), NONE)


def _upto(release: str) -> list[str]:
    """The releases with a file, from the oldest to this one; for a learnt release, to its parent."""
    known = names()
    listed = next(file.table["release"] for file in load(release).files if file.table["release"] in known)
    return known[: known.index(listed) + 1]


def _read_again() -> Mapping[str, Mapping[str, str]]:
    return {variable: lines for variable, lines in _second_communicators().items() if variable != "releases"}


@cache
def _second_communicators() -> Mapping[str, Any]:
    return tables.toml(tables.folder() / "second_communicators.toml")


def _newest(of_releases: Mapping[str, Default], upto: list[str]) -> Default | None:
    value = next((of_releases[name] for name in reversed(upto) if name in of_releases), NONE)
    return None if value == NONE else value


@cache
def _table() -> Mapping[str, Mapping[str, Default]]:
    table: Mapping[str, Mapping[str, Default]] = tables.toml(tables.folder() / "defaults.toml")
    return table
