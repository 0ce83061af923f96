"""The configuration of one communicator, NCCL's ``ncclConfig_t``: its fields, the environment variables that mean the
same, and the releases that have each field.

The environment takes precedence: a field acts like its variable, but only if that variable is not set.
``tables/config.toml`` lists all fields.
"""

from collections.abc import Iterable, Mapping
from functools import cache

from tuner.base import tables
from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput, did_you_mean, one_of
from tuner.base.numerics import parse_long
from tuner.release.reader import parts_of
from tuner.release.schema import Release

Value = int | str
MOST = 2**31 - 1


@dataclass(frozen=True, slots=True)
class ConfigurationField:
    """One field of the configuration. NCCL accepts ``values``, or numbers from ``least`` to ``most``; a field without
    either is a text."""

    since: str
    variable: str | None = None
    values: tuple[int, ...] = ()
    least: int | None = None
    most: int = MOST
    # The first release that accepts this field without its counterpart (minCTAs without maxCTAs)
    alone_since: str | None = None
    indifferent: bool = False  # the field has no influence on what NCCL picks

    @property
    def is_text(self) -> bool:
        """Whether the field is a text, such as netName."""
        return not self.values and self.least is None


@cache
def fields() -> Mapping[str, ConfigurationField]:
    """Every field by its name."""
    table = tables.toml(tables.folder() / "config.toml")
    return {name: ConfigurationField(**{**row, "values": tuple(row.get("values", ()))}) for name, row in table.items()}


def parse_configuration(nccl: Release, given: Mapping[str, Value]) -> dict[str, Value]:
    """The given fields with NCCL's types, checked as NCCL checks them when a communicator is made.

    BadInput if the release does not have a field, if NCCL refuses a value, or if a minimum is above its maximum.
    """
    said = nccl.name.partition("@")[0]
    known = [name for name, field in fields().items() if parts_of(field.since) <= parts_of(said)]
    parsed = {name: _value(name, value, known, said) for name, value in given.items()}
    low, high, alone = parsed.get("minCTAs"), parsed.get("maxCTAs"), fields()["minCTAs"].alone_since
    if low is not None and high is None and alone is not None and parts_of(said) < parts_of(alone):
        raise BadInput(
            f"with minCTAs but no maxCTAs in the configuration, NCCL {said} ends ncclCommInitRankConfig with "
            f"ncclInvalidArgument, because the unset maximum is less: set both, or use {alone} or later"
        )
    if isinstance(low, int) and isinstance(high, int) and low > high:
        raise BadInput(
            f"with minCTAs={low} above maxCTAs={high} in the configuration, NCCL ends ncclCommInitRankConfig with "
            "ncclInvalidArgument"
        )
    return parsed


def _value(name: str, value: Value, known: list[str], said: str) -> Value:
    if name not in fields():
        raise BadInput(
            f"the communicator's configuration has no field {name}{did_you_mean(name, known)}; {one_of(known)}"
        )
    field = fields()[name]
    if name not in known:
        raise BadInput(
            f"NCCL {said} has no field {name} in the communicator's configuration: use {field.since} or later"
        )
    if field.is_text:
        return str(value)
    try:
        number = int(str(value), 0)
    except ValueError:
        raise BadInput(f"{name}={value} in the configuration is not a number; {_valid(field)}") from None
    least = field.least
    if number not in field.values if least is None else not least <= number <= field.most:
        raise BadInput(
            f"with {name}={value} in the configuration, NCCL ends init with ncclInvalidArgument; {_valid(field)}"
        )
    return number


def _valid(field: ConfigurationField) -> str:
    if field.values:
        return one_of(map(str, field.values))
    return f"valid: {field.least} to {field.most}" if field.most < MOST else f"valid: {field.least} or more"


def as_variables(nccl: Release, given: Mapping[str, Value], environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that act as the given fields do, without those that the environment overrides."""
    made = {}
    for name, value in given.items():
        field = fields()[name]
        variable = field.variable
        if variable is not None and not field.indifferent and not _overridden(nccl, variable, environment):
            made[variable] = str(value)
    return made


def _overridden(nccl: Release, variable: str, environment: Mapping[str, str]) -> bool:
    """Whether a variable takes effect: releases from 2.25.1 on accept numbers of blocks only if they are above 0."""
    if not environment.get(variable):
        return False
    if variable in ("NCCL_MIN_CTAS", "NCCL_MAX_CTAS") and nccl.rules.ctas == "positive_only":
        number = parse_long(environment[variable])
        return number is None or number > 0
    return True


def without_effect(given: Iterable[str]) -> list[str]:
    """The names of those given fields that have no influence on what NCCL picks."""
    return [name for name in given if fields()[name].indifferent]
