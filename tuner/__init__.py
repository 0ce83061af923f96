"""Exact emulator of NCCL's tuning: what NCCL picks, why, and whether that is best, proven against libnccl.

:func:`communicator` describes a communicator that can be asked; ``docs/python.md`` shows this and the rest.
"""

TYPE_CHECKING = False  # as type checkers know it; the command loads this first, and should wait for nothing else
if TYPE_CHECKING:
    from typing import Any

    from tuner.api import Communicator as Communicator
    from tuner.api import budget as budget
    from tuner.api import communicator as communicator
    from tuner.api import estimate as estimate
    from tuner.bench.decide import decide as decide
    from tuner.scenario import Scenario as Scenario
    from tuner.times.calibration.workflow import fit as fit
    from tuner.times.verify import verify as verify

# What this package offers, and where it is: loaded when asked for, so that importing a part does not load the whole.
_API = {
    "Communicator": "tuner.api",
    "Scenario": "tuner.scenario",
    "budget": "tuner.api",
    "communicator": "tuner.api",
    "decide": "tuner.bench.decide",
    "estimate": "tuner.api",
    "fit": "tuner.times.calibration.workflow",
    "verify": "tuner.times.verify",
}
__all__ = ["Communicator", "Scenario", "budget", "communicator", "decide", "estimate", "fit", "verify"]


def __dir__() -> list[str]:
    return [*globals(), *__all__]  # for help(), which would not find what is not loaded yet


def __getattr__(name: str) -> "Any":
    if name in _API:
        from importlib import import_module

        globals()[name] = value = getattr(import_module(_API[name]), name)
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has: {', '.join(__all__)}")
