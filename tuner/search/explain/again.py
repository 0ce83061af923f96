"""The graphs of a request searched again, freed from something that may limit them, or of a changed request.

Only their numbers are wanted, so nothing is written down of the tries, and places seen before are skipped. The graphs
of one request follow each other in one search, so what one graph's explanation searched serves the next graph's.
"""

import json
from dataclasses import asdict, dataclass, field
from functools import lru_cache

from tuner import release
from tuner.base.names import Pattern
from tuner.release import Release
from tuner.search.explain.records import Found
from tuner.search.explain.runs import Freed, begun, not_searched, summary
from tuner.search.request import Request
from tuner.search.trial import Trial

KEPT = 32  # searches; one graph's explanation makes about 15


class Again:
    """The graphs of one request, each searched when it is first asked for."""

    def __init__(self, request: Request, nccl: Release, freed: Freed) -> None:
        self._tree = Trial(Pattern.BalancedTree, False, 1, freed.channels * nccl.limits.max_channels // 2)
        self._count_of_ring = freed.count_of_ring
        self._loop, self._rest = begun(request, nccl, freed)
        self._found: dict[str, Found] = {}

    def found(self, graph: str) -> Found:
        """The numbers of a graph. BadInput for one that is not searched there, and as the search's."""
        while graph not in self._found:
            name, trial = next(self._rest, (None, None))
            if name is None or trial is None:
                raise not_searched(graph, list(self._found))
            if name == "tree" and self._count_of_ring:
                trial = self._tree
                self._loop.compute(trial)
            self._found[name] = summary(self._loop.system, trial)
        return self._found[graph]


@dataclass(frozen=True, slots=True)
class _Key:
    """A search; requests are the same whose texts are."""

    text: str
    nccl: str
    freed: Freed
    request: Request = field(compare=False)


def again(request: Request, nccl: str, freed: Freed | None = None) -> Again:
    """A request's graphs in a release. Errors: as the search's."""
    return _kept(_Key(json.dumps(asdict(request), sort_keys=True), nccl, freed or Freed(), request))


@lru_cache(maxsize=KEPT)
def _kept(key: _Key) -> Again:
    return Again(key.request, release.load(key.nccl), key.freed)
