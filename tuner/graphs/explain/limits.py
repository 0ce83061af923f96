"""What limits a graph, found by searching again without it.

Links without room for one more channel, and each rule of the search that was met, are taken away one by one. Where
nothing alone helps, all are taken away together, and those put back without which it helps as well.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import reduce

from tuner.graphs.explain.links import KINDS, LinkClass, between, class_of
from tuner.graphs.explain.records import Found, Limit
from tuner.graphs.explain.runs import Loads, Relaxation, SearchRun, both, of_link, of_rule, summary
from tuner.graphs.network_channels import DONE
from tuner.graphs.system import DeviceKind, SystemDevice
from tuner.graphs.trial import Attempt

MOST_CLASSES = 4
MORE_TRIES = 4
NEW_STEP = 1.01  # by so much a bandwidth has to differ from those that NCCL tries
MORE = 1.001  # rounding is no more


@dataclass(frozen=True, slots=True)
class Factor:
    """Links that are alike, or a rule of the search, and how a search is freed from it."""

    kind: str
    freed: Relaxation
    links: LinkClass | None = None


def is_more(found: Found, before: Found) -> bool:
    """Whether all channels together have more, in the first place where they have less: within or between nodes."""
    own, other = (sorted((each.total_intra_gbs, each.total_inter_gbs)) for each in (found, before))
    return own[0] > other[0] * MORE or (own[0] * MORE > other[0] and own[1] > other[1] * MORE)


class BandwidthLimits:
    """The limits of one graph; ``again`` searches it freed from something."""

    def __init__(self, found: SearchRun, loads: Loads, again: Callable[[Relaxation], Found]) -> None:
        self.found, self.loads, self.again = found, loads, again
        self.before = summary(found.system, found.trial)
        self.links = found.loop.channels.load.links
        self.owners = {id(link): node for node in found.system.everything() for link in node.links}
        self.classes = [
            class_of(self.owner(number), link, bare)
            for number, (link, bare) in enumerate(zip(self.links, found.bare_gbs, strict=True))
        ]

    def owner(self, number: int) -> SystemDevice:
        """The device from which a link goes."""
        return self.owners[id(self.links[number])]

    def all(self) -> tuple[Limit, ...]:
        """Every single one; else the fewest that are one together; none where nothing helps."""
        way, others = self._tight()
        links = [Factor(KINDS[each.kind], Relaxation(links=frozenset({each})), each) for each in (*way, *others)]
        rules = list(self._rules([*way, *others]))
        singles = [[factor] for factor in (*links[len(way) :], *rules)]
        limits = [self._limit(links[: len(way)])] if way else []
        limits += [self._limit(factors) for factors in singles]
        if not any(limits):
            limits = [self._limit(links), None]
            if not any(limits):
                limits = [self._limit([*rules, *links])]
        return tuple(limit for limit in limits if limit is not None)

    def _limit(self, factors: Sequence[Factor]) -> Limit | None:
        """The fewest of these that are a limit together; None where not even all are one."""
        then = self._without(factors)
        if then is None:
            return None
        for factor in list(factors) if len(factors) > 1 else ():
            rest = [each for each in factors if each is not factor]
            fewer = self._without(rest) if rest else None
            if fewer is not None:
                factors, then = rest, fewer
        numbers = [self.fullest(factor.links) for factor in factors if factor.links is not None]
        links = tuple(between(self.owner(number), self.links[number]) for number in numbers)
        return Limit(tuple(factor.kind for factor in factors), " ".join(map(self._says, factors)), links, then)

    def _without(self, factors: Sequence[Factor]) -> Found | None:
        """What is found without these; None where that is not more."""
        then = self.again(reduce(both, (factor.freed for factor in factors))) if factors else self.before
        return then if is_more(then, self.before) else None

    def _says(self, factor: Factor) -> str:
        if factor.links is None:
            return of_rule(factor.kind, self.found)
        number = self.fullest(factor.links)
        ends = {
            frozenset((id(self.owner(other)), id(self.links[other].to)))
            for other, each in enumerate(self.classes)
            if each == factor.links
        }
        carried = self.loads.get(number, {})
        return of_link((self.owner(number), self.links[number]), factor.links.gbs, len(ends), carried)

    def fullest(self, of: LinkClass) -> int:
        """The number of the link of a class that carries most."""
        numbers = [number for number, each in enumerate(self.classes) if each == of]
        return max(numbers, key=lambda number: sum(self.loads.get(number, {}).values()))

    def _rules(self, tight: Sequence[LinkClass]) -> Iterator[Factor]:
        """What else may limit the graph, as the searches for it went."""
        trial, bounds, attempts = self.found.trial, self.found.loop.bounds, self.found.attempts
        if steps := self._steps(tight):
            yield Factor("steps", Relaxation(steps_gbs=steps))
        nearer = trial.type_intra < bounds.far_intra or trial.type_inter < bounds.far_inter
        if nearer and any(attempt.rejections.types for attempt in attempts):
            yield Factor("paths", Relaxation(any_path=True))
        if self.found.graph == "tree":
            yield Factor("ring", Relaxation(count_of_ring=True))
        elif trial.channels == trial.max_channels > trial.min_channels:
            yield Factor("channels", Relaxation(channels=2))
        if more_tries_help(self.found, MORE_TRIES):
            yield Factor("tries", Relaxation(tries=MORE_TRIES))

    def _tight(self) -> tuple[list[LinkClass], list[LinkClass]]:
        """Links without room for one more channel: those on the way to the adapters, and the others.

        Of the others those also that refused while the most channels were laid.
        """
        trial, way, others = self.found.trial, Counter[LinkClass](), Counter[LinkClass]()
        for number, channels in self.loads.items():
            carried = sum(channels.values())
            each = self.classes[number]
            to_net = DeviceKind.NET in each.ends or DeviceKind.NIC in each.ends
            if self.found.bare_gbs[number] - carried < (trial.bw_inter if to_net else trial.bw_intra):
                (way if self.found.system.several_nodes and each.kind in ("PIX", "NET") else others)[each] += 1
        for attempt in self.found.attempts:
            most = max((at.channels for at in attempt.rejections.links), default=0)
            for at, times in attempt.rejections.links.items():
                each = self.classes[at.number]
                if at.channels == most and each not in way:
                    others[each] += times
        found = ([each for each, _ in counted.most_common() if each.kind != "LOC"] for counted in (way, others))
        return next(found), next(found)[:MOST_CLASSES]

    def _steps(self, tight: Sequence[LinkClass]) -> tuple[float, ...]:
        """Bandwidths of a channel that NCCL does not try, and with which as many channels would fill a link."""
        trial, tried = self.found.trial, self.found.loop.bounds.steps
        shares = set[float]()
        for each in tight:
            count = len(self.loads.get(self.fullest(each), {})) or 1
            shares |= {each.gbs * wide / share for wide in (1, 2) for share in (count, max(1, count // 2))}
        least, most = min(trial.bw_intra, trial.bw_inter) * NEW_STEP, max(tried)
        new = (gbs for gbs in shares if least < gbs < most)
        return tuple(sorted(gbs for gbs in new if not any(gbs / NEW_STEP < step < gbs * NEW_STEP for step in tried)))


# Whether a search ended because NCCL allows only so many tries.

MOST_SEARCHES = 6


def ran_out(attempt: Attempt) -> bool:
    """Whether a search used all the tries that it was allowed, and might have found more."""
    return attempt.left == 0 and not attempt.known


def all_ran_out(found: SearchRun) -> bool:
    """Whether the tries for all searches of the graph were used up, and no slower channels were tried any more."""
    unused = found.nccl.search.tries.all
    for attempt in found.attempts:
        unused -= attempt.allowed
        if unused < 0 and attempt.best.channels:
            return True
        if not attempt.asked.same_channels and attempt.left != DONE:
            unused += attempt.left
    return False


def more_tries_help(found: SearchRun, factor: int) -> bool:
    """Whether so many times the tries let one of the searches that ran out of them find something better."""
    if all_ran_out(found):
        return True
    out = [attempt for attempt in found.attempts if ran_out(attempt)]
    for attempt in reversed(out[-MOST_SEARCHES:]):
        best = found.trial.copied()
        found.loop.channels.search(attempt.asked.copied(), best, attempt.allowed * factor)
        if (best.channels, best.bw_intra, best.bw_inter) != (
            found.trial.channels,
            found.trial.bw_intra,
            found.trial.bw_inter,
        ):
            return True
    return False
