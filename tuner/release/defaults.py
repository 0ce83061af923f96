"""Defaults of NCCL's variables by release, as each libnccl has them (``tables/defaults.toml``)."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from tuner.base import tables
from tuner.release.reader import load, names

Default = int | str
NONE = "none"  # the release does not read the variable


@dataclass(frozen=True, slots=True)
class ChangedDefault:
    """A variable whose default two releases have differently; None: that release does not read it."""

    variable: str
    before: Default | None
    after: Default | None


def defaults(release: str) -> Mapping[str, Default]:
    """Defaults by variable, of those that ``release`` reads; "unset" where the communicator's configuration decides.

    Of many variables -2 or -1 means that NCCL decides when it initialises.
    """
    known = names()
    listed = next(file.table["release"] for file in load(release).files if file.table["release"] in known)
    upto = known[: known.index(listed) + 1]  # of a learnt release those of its parent
    values = {variable: _newest(of_releases, upto) for variable, of_releases in _table().items()}
    return {variable: value for variable, value in values.items() if value is not None}


def changed_defaults(before: str, after: str) -> list[ChangedDefault]:
    """Variables that both releases read, with other defaults, then those that only one of them reads."""
    old, new = defaults(before), defaults(after)
    found = [
        ChangedDefault(variable, old.get(variable), new.get(variable))
        for variable in sorted(old.keys() | new.keys())
        if old.get(variable) != new.get(variable)
    ]
    return sorted(found, key=lambda one: None in (one.before, one.after))


def _newest(of_releases: Mapping[str, Default], upto: list[str]) -> Default | None:
    value = next((of_releases[name] for name in reversed(upto) if name in of_releases), NONE)
    return None if value == NONE else value


@cache
def _table() -> Mapping[str, Mapping[str, Default]]:
    table: Mapping[str, Mapping[str, Default]] = tables.toml(tables.folder() / "defaults.toml")
    return table
