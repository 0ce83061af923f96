"""Exact emulator of NCCL's tuning: what NCCL picks, why, and whether that is best, proven against libnccl.

Begin with a communicator, and ask it; sizes are NCCL's nBytes, one or an array, and times are us:

>>> import nccl_tuner
>>> two_nodes = nccl_tuner.communicator("dgx-h100", nodes=2, nccl="2.28.9")
>>> picks = two_nodes.pick("allreduce", [8, 1 << 20, 1 << 28])  # arrays; picks.to_pandas() is a frame
>>> str(two_nodes.explain("allreduce", 1 << 20).pick.algorithm)
'Tree'

:func:`machines` and :func:`releases` list names; :func:`diff` and :func:`edges` say what changes, :func:`budget` what a
job's collectives take; :func:`diagnose` and :func:`accept` judge files; :func:`measured` lists measured times, and
:func:`verify`, :func:`fit` and :func:`decide` work on one's own. Answers of several rows have ``to_pandas()`` and show
as tables in notebooks. ``docs/python.md`` has more.
"""

TYPE_CHECKING = False  # as type checkers know it; the command loads this first, and should wait for nothing else
if TYPE_CHECKING:
    from typing import Any

    from tuner.answers.known import machines as machines
    from tuner.answers.known import measured as measured
    from tuner.answers.known import releases as releases
    from tuner.api import Communicator as Communicator
    from tuner.api import accept as accept
    from tuner.api import budget as budget
    from tuner.api import communicator as communicator
    from tuner.api import diagnose as diagnose
    from tuner.api import diff as diff
    from tuner.api import edges as edges
    from tuner.api import estimate as estimate
    from tuner.api import memory as memory
    from tuner.bench.decide import decide as decide
    from tuner.scenario import Scenario as Scenario
    from tuner.times.calibration.workflow import fit as fit
    from tuner.times.verify import verify as verify

# What this package offers, and where it is: loaded when asked for, so that importing a part does not load the whole.
_API = {
    "Communicator": "tuner.api",
    "Scenario": "tuner.scenario",
    "accept": "tuner.api",
    "budget": "tuner.api",
    "communicator": "tuner.api",
    "decide": "tuner.bench.decide",
    "diagnose": "tuner.api",
    "diff": "tuner.api",
    "edges": "tuner.api",
    "estimate": "tuner.api",
    "fit": "tuner.times.calibration.workflow",
    "machines": "tuner.answers.known",
    "measured": "tuner.answers.known",
    "memory": "tuner.api",
    "releases": "tuner.answers.known",
    "verify": "tuner.times.verify",
}
__all__ = list(_API)


def __dir__() -> list[str]:
    return [*globals(), *__all__]  # for help(), which would not find what is not loaded yet


def __getattr__(name: str) -> "Any":
    if name in _API:
        from importlib import import_module

        globals()[name] = value = getattr(import_module(_API[name]), name)
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has: {', '.join(__all__)}")
