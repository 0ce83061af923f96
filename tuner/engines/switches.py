"""Switches of an engine as users set them: environment variables and arguments, read as the engine reads them."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tuner.base.errors import BadInput, did_you_mean, one_of
from tuner.engines.releases import EngineRelease, prefixes

# Words in the names of variables that could decide who carries an AllReduce.
ABOUT_ALLREDUCE = (
    "ALLREDUCE",
    "ALL_REDUCE",
    "SYMM_MEM",
    "PYNCCL",
    "BATCH_INVARIANT",
    "MSCCLPP",
    "PCIE_IPC",
    "P2P_CHECK",
)
_TRUE, _FALSE = ("true", "1", "yes", "y"), ("false", "0", "no", "n")
_ON, _OFF = ("true", "1", "yes", "on"), ("false", "0", "no", "off")


def read(release: EngineRelease, environment: Mapping[str, str], arguments: Iterable[str]) -> dict[str, object]:
    """The value of every switch of the release, by name: what the user set, or the default.

    ``environment`` may hold other variables, which are ignored. BadInput for a variable that by its name is about the
    engine's AllReduce, but which this release does not know. BadInput also for a variable of another engine, for an
    unknown argument, and for a value with which the engine would not start. ``arguments`` are ``name`` or
    ``name=value``, with or without leading dashes.
    """
    values: dict[str, object] = {
        name: each.get("default") for name, each in {**release.variables, **release.arguments}.items()
    }
    for name, text in environment.items():
        if name in release.variables:
            values[name] = _value(release, name, release.variables[name], text)
        elif name.startswith(release.prefix) and any(word in name for word in ABOUT_ALLREDUCE):
            raise BadInput(_unknown(release, name, release.variables))
        elif (other := _engine_of(name)) not in (None, release.engine):
            raise BadInput(f"{name} is a variable of {other}, and this is {release.name}")
    for argument in arguments:
        name, text = _argument(argument)
        if name not in release.arguments:
            raise BadInput(_unknown(release, name, release.arguments))
        values[name] = _value(release, name, release.arguments[name], text)
    return values


def _engine_of(variable: str) -> str | None:
    """The engine whose variables begin like this one; None if no engine's do."""
    return next((engine for prefix, engine in prefixes().items() if variable.startswith(prefix)), None)


def knows(release: EngineRelease, argument: str) -> bool:
    """Whether a release knows an argument, given as ``name`` or ``name=value``."""
    return _argument(argument)[0] in release.arguments


def _argument(argument: str) -> tuple[str, str]:
    """The name and the value of an argument, given as in :func:`read`."""
    written, _, text = argument.lstrip("-").partition("=")
    return written.replace("_", "-"), text


def _unknown(release: EngineRelease, name: str, known: Iterable[str]) -> str:
    return f"{release.name} has no switch {name} for AllReduce{did_you_mean(name, known)}; {one_of(sorted(known))}"


def _value(release: EngineRelease, name: str, declared: Mapping[str, Any], text: str) -> object:
    try:
        return KINDS[declared["kind"]](text, declared)
    except ValueError:
        if declared.get("invalid") == "default":
            return declared.get("default")
        raise BadInput(f"{name}={text!r}: {release.name} cannot read that; {declared['valid']}") from None


def _integer_as_truth(text: str, _: Mapping[str, Any]) -> bool:
    return bool(int(text))


def _is_one(text: str, _: Mapping[str, Any]) -> bool:
    return text == "1"


def _word_as_truth(text: str, _: Mapping[str, Any]) -> bool:
    if text.lower() not in _TRUE + _FALSE:
        raise ValueError(text)
    return text.lower() in _TRUE


def _word_as_switch(text: str, _: Mapping[str, Any]) -> bool:
    word = text.lower().strip()
    if word not in _ON + _OFF:
        raise ValueError(text)
    return word in _ON


def _choice(text: str, declared: Mapping[str, Any]) -> str:
    if text not in declared["choices"]:
        raise ValueError(text)
    return text


def _whole(text: str, _: Mapping[str, Any]) -> int:
    return int(text)


def _flag(text: str, _: Mapping[str, Any]) -> bool:
    if text:
        raise ValueError(text)
    return True


def _expandable_segments(text: str, _: Mapping[str, Any]) -> bool:
    settings = dict(part.strip().partition(":")[::2] for part in text.split(","))
    return settings.get("expandable_segments") == "True"


KINDS: Mapping[str, Callable[[str, Mapping[str, Any]], object]] = {
    "integer as truth": _integer_as_truth,
    "is 1": _is_one,
    "word as truth": _word_as_truth,
    "on or off": _word_as_switch,
    "choice": _choice,
    "whole number": _whole,
    "flag": _flag,
    "expandable segments": _expandable_segments,
}
