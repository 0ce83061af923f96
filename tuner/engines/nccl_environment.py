"""The environment variables that NCCL gets from an engine: those that the engine sets, and those that it leaves to the
user."""

from collections.abc import Callable, Mapping
from typing import Any

from tuner.engines.releases import EngineRelease
from tuner.engines.situation import Situation

Given = Mapping[str, Any]


def given(situation: Situation, release: EngineRelease, environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that NCCL gets: the user's, as changed and completed by the engine."""
    made = dict(environment)
    for each in release.nccl_environment:
        RULES[each["rule"]](situation, each, made)
    return made


def _across_one_nvlink_domain(situation: Situation, rule: Given, made: dict[str, str]) -> None:
    """Sets variables that the user did not set, if several nodes are in one NVLink domain."""
    if situation.nodes > 1 and situation.one_domain:
        _by_default(situation, rule, made)


def _by_default(_: Situation, rule: Given, made: dict[str, str]) -> None:
    """Sets variables that the user did not set."""
    made |= {name: value for name, value in rule["set_default"].items() if name not in made}


def _of_switches(situation: Situation, rule: Given, made: dict[str, str]) -> None:
    """Sets a variable to 1 if one of ``switches`` is on, else to 0; the user's value stays unless one of
    ``forced_by`` is on.
    """
    if rule["variable"] not in made or any(situation.switches[name] for name in rule["forced_by"]):
        made[rule["variable"]] = str(int(any(situation.switches[name] for name in rule["switches"])))


def _where_switched_on(situation: Situation, rule: Given, made: dict[str, str]) -> None:
    """Sets variables if a switch is on, whatever the user set; with ``from_switch``, to the value of another switch."""
    if situation.switches[rule["switch"]]:
        made |= rule["set"]
        made |= {name: str(situation.switches[switch]) for name, switch in rule.get("from_switch", {}).items()}


RULES: Mapping[str, Callable[[Situation, Given, dict[str, str]], None]] = {
    "across-one-nvlink-domain": _across_one_nvlink_domain,
    "by-default": _by_default,
    "of-switches": _of_switches,
    "where-switched-on": _where_switched_on,
}
