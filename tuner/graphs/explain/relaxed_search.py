"""Relaxed searches: the graphs of a request freed from something that may limit them, or of a changed request.

Only their numbers are wanted, so nothing is written down of the tries, and known dead ends are skipped. The graphs
of one request follow each other in one search, so what one graph's explanation searched serves the next graph's; and
all numbers are kept on disk, as graphs are.
"""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields
from functools import lru_cache
from typing import Any

from tuner import release
from tuner.base.names import Pattern
from tuner.base.records import to_json
from tuner.graphs import cached
from tuner.graphs.explain.records import Found
from tuner.graphs.explain.runs import Relaxation, begun, not_searched, summary
from tuner.graphs.request import Request
from tuner.graphs.trial import Trial
from tuner.release import Release

KEPT = 32  # searches; one graph's explanation makes about 15


class RelaxedSearch:
    """The graphs of one request, each searched when it is first asked for; with ``key`` kept on disk under it."""

    def __init__(self, request: Request, nccl: Release, freed: Relaxation, key: str | None = None) -> None:
        self._asked = request, nccl, freed
        self._key = key
        self._found = {} if key is None else _of_disk(key)
        self._rest: Iterator[tuple[str, Found]] | None = None

    def found(self, graph: str) -> Found:
        """The numbers of a graph. BadInput for one that is not searched there, and as the search's."""
        if graph not in self._found:
            self._rest = self._rest or self._in_order()
            self._search_up_to(graph, self._rest)
            if self._key is not None:
                cached.keep(self._key, to_json(self._found))
        return self._found[graph]

    def _search_up_to(self, graph: str, rest: Iterator[tuple[str, Found]]) -> None:
        for name, found in rest:
            self._found[name] = found
            if name == graph:
                return
        raise not_searched(graph, list(self._found))

    def _in_order(self) -> Iterator[tuple[str, Found]]:
        request, nccl, freed = self._asked
        loop, searched = begun(request, nccl, freed)
        for name, of_release in searched:
            trial = of_release
            if name == "tree" and freed.count_of_ring:
                trial = Trial(Pattern.BalancedTree, False, 1, freed.channels * nccl.limits.max_channels // 2)
                loop.compute(trial)
            yield name, summary(loop.system, trial)


def _of_disk(key: str) -> dict[str, Found]:
    try:
        rows: dict[str, Any] = cached.kept(key)
        return {name: Found(**row) for name, row in rows.items()}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


@dataclass(frozen=True, slots=True)
class _Key:
    """A search; requests are the same whose texts are."""

    text: str
    nccl: str
    freed: Relaxation
    request: Request = field(compare=False)

    @property
    def on_disk(self) -> str:
        """Under which its numbers are kept."""
        links, *others = (getattr(self.freed, each.name) for each in fields(self.freed))
        freed = json.dumps([sorted(map(to_json, links)), *others])
        return cached.key_of("numbers", self.text, cached.rules_of(self.nccl), freed)


def again(request: Request, nccl: str, freed: Relaxation | None = None) -> RelaxedSearch:
    """A request's graphs in a release. Errors: as the search's."""
    return _kept(_Key(json.dumps(asdict(request), sort_keys=True), nccl, freed or Relaxation(), request))


@lru_cache(maxsize=KEPT)
def _kept(key: _Key) -> RelaxedSearch:
    return RelaxedSearch(key.request, release.load(key.nccl), key.freed, key.on_disk)
