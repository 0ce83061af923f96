"""Why not another channel, why no faster ones, and what else made a graph what it is."""

from collections import Counter
from collections.abc import Iterator

from tuner.base.numerics import f32
from tuner.base.sizes import plural
from tuner.graphs.explain.links import between, gbs, phrase
from tuner.graphs.explain.records import Reason
from tuner.graphs.explain.runs import SearchRun
from tuner.graphs.loop import FALLBACK_GBS
from tuner.graphs.network_channels import DONE
from tuner.graphs.system import DeviceKind, Link, SystemDevice
from tuner.graphs.trial import Attempt, Position

ROUNDING_GBS = 0.002


class Reasons:
    """The reasons that a graph's searches show."""

    def __init__(self, found: SearchRun) -> None:
        self.found, self.trial = found, found.trial
        self.links = found.loop.channels.load.links
        self.owners = {id(link): node for node in found.system.everything() for link in node.links}
        better = [attempt for attempt in found.attempts if attempt.found]
        self.last = better[-1] if better else None  # the search that found the graph
        self.several = found.system.several_nodes

    def one_more(self) -> Reason | None:
        """Why there is not another channel like those that were found."""
        if self.last is None:
            return None
        channels, per_gbs = self.last.best.channels, self.last.best.bw_inter
        if channels == self.last.asked.max_channels:
            return None
        start = f"One more channel of {gbs(per_gbs)} has no room: "
        refusal = self._refused(self.last, channels)
        if refusal is not None:
            return Reason("link", start + refusal.says, refusal.links)
        full = Counter({at: times for at, times in self.last.rejections.adapters.items() if at.channels == channels})
        if full:
            net = self.found.system.nets[full.most_common(1)[0][0].number]
            says = f"adapter {net.dev} ({gbs(net.links[0].gbs)}) has too little left."
            if len(full) == len(self.found.system.nets) > 1:
                says = f"no adapter has as much left, such as adapter {net.dev} of {gbs(net.links[0].gbs)}."
            return Reason("adapter", start + says, (between(net, net.links[0]),))
        if self.last.left == 0:
            return Reason("tries", f"One more channel of {gbs(per_gbs)} was not found within the tries of the search.")
        return None

    def faster(self) -> Reason | None:
        """Why the channels do not have more bandwidth."""
        trial, bounds, system = self.trial, self.found.loop.bounds, self.found.system
        if trial.channels == 0:
            return None
        tried = self._next_faster()
        if tried is not None:
            asked = tried.asked
            at_least = plural(asked.min_channels, "channel")
            speed = gbs(asked.bw_inter)
            if not self.several:
                speed = gbs(asked.bw_intra)
            elif asked.bw_intra != asked.bw_inter:
                speed = f"{asked.bw_intra:.4g} GB/s within the node and {asked.bw_inter:.4g} between nodes"
            most = max((at.channels for at in (*tried.rejections.links, *tried.rejections.adapters)), default=0)
            start = f"The next faster search asks for {speed} a channel and at least {at_least}; it lays {most}"
            refusal = self._refused(tried, most)
            if refusal is None and tried.rejections.adapters:
                net = system.nets[tried.rejections.adapters.most_common(1)[0][0].number]
                where = between(net, net.links[0])
                says = f"the network port of adapter {net.dev} ({gbs(net.links[0].gbs)}) has too little left."
                refusal = Reason("adapter", says, (where,))
            if refusal is None:
                return Reason("none", f"{start}, which is no better.")
            return Reason(refusal.kind, f"{start}, and then {refusal.says}", refusal.links)
        faster = [step for step in bounds.steps if step > max(trial.bw_inter, trial.bw_intra)]
        if not faster:
            return Reason("steps", f"{gbs(bounds.steps[0])} is the fastest channel that NCCL tries here.")
        if faster[-1] > system.max_gbs:
            narrow = self._narrowest()
            start = f"The next faster channel that NCCL tries, {gbs(faster[-1])}, is more than any path from a GPU "
            start += f"{'to an adapter' if self.several else 'to another'} has: {gbs(system.max_gbs)}"
            if narrow is None:
                return Reason("path", f"{start}.")
            return Reason("path", f"{start}, which {phrase(*narrow)} has.", (between(*narrow),))
        if self.found.attempts and self.found.attempts[-1].left == 0:
            return Reason("tries", "No faster channels were tried, as the last search had used all its tries.")
        return None

    def others(self) -> Iterator[Reason]:
        """What else made it what it is."""
        trial, last, graph = self.trial, self.last, self.found.graph
        if trial.channels == 1 and trial.bw_intra == FALLBACK_GBS and last is None:
            says = "No search found a channel; NCCL then lays one through the GPUs in their order, for 0.1 GB/s."
            yield Reason("fallback", says)
        if last is not None and last.best.channels < trial.channels:
            before = last.best
            yield Reason(
                "duplicated",
                f"{plural(before.channels, 'channel')} of {before.bw_intra:.4g} GB/s became {trial.channels} of "
                f"{gbs(trial.bw_intra)}: NCCL lays every channel twice with half the bandwidth, where a channel has "
                "much, as more channels keep more of a GPU busy.",
            )
        if graph in ("tree", "collnet_chain") and trial.channels:
            says = f"NCCL asks for exactly as many channels as the ring has, {self.found.ring.channels}."
            yield Reason("ring", says)
        total = self.found.system.total_gbs
        if last is not None and last.left != DONE and self._enough(last):
            reached = last.best.channels * last.best.bw_inter
            yield Reason(
                "enough",
                f"NCCL stops looking for slower channels: those found have {gbs(reached)} together, "
                f"and all links of a GPU {gbs(total)}.",
            )
        if trial.cross_nic and self.several:
            says = "A channel may leave the node through another adapter than it entered by (crossing rails)."
            yield Reason("cross_nic", says)

    def _enough(self, attempt: Attempt) -> bool:
        best = attempt.best
        return bool(f32(best.channels) * f32(best.bw_inter) >= f32(self.found.system.total_gbs))

    def _next_faster(self) -> Attempt | None:
        """The slowest search that asked for more than was found, and found nothing better."""
        trial, vain = self.trial, [each for each in self.found.attempts if not (each.known or each.found)]
        inter = [each for each in vain if self.several and each.asked.bw_inter > trial.bw_inter]
        faster = inter or [
            each
            for each in vain
            if (each.asked.bw_intra, each.asked.bw_inter) != (trial.bw_intra, trial.bw_inter)
            and each.asked.bw_intra >= trial.bw_intra
            and each.asked.bw_inter >= trial.bw_inter
        ]
        return min(reversed(faster), key=lambda each: (each.asked.bw_inter, each.asked.bw_intra), default=None)

    def _refused(self, attempt: Attempt, channels: int) -> Reason | None:
        """The link that refused most often while so many channels were laid."""
        refusals = Counter({at: times for at, times in attempt.rejections.links.items() if at.channels == channels})
        if not refusals:
            return None
        at: Position = refusals.most_common(1)[0][0]
        link, has = self.links[at.number], self.found.bare_gbs[at.number]
        owner, short = self.owner(link), attempt.rejections.left[at]
        carries_gbs = has - short.left_gbs
        says = f"{phrase(owner, link)} has only {gbs(has)}, and {gbs(short.needed_gbs)} are needed."
        if carries_gbs > ROUNDING_GBS:
            says = f"{phrase(owner, link)} has {gbs(has)}, of which {gbs(carries_gbs)} are taken"
            says += f", and {gbs(short.needed_gbs)} more are needed."
        return Reason("link", says, (between(owner, link),))

    def _narrowest(self) -> tuple[SystemDevice, Link] | None:
        """The narrowest link of the best path from a GPU."""
        system = self.found.system
        kind = DeviceKind.NET if self.several else (DeviceKind.DEV if system.nodes[DeviceKind.DEV] else DeviceKind.GPU)
        paths = [
            path for gpu in system.nodes[DeviceKind.DEV] or system.gpus for path in gpu.paths.get(kind, ()) if path.hops
        ]
        best = [path for path in paths if path.gbs == system.max_gbs]
        narrow = [link for path in best for link in path.links if link.gbs <= system.max_gbs]
        return (self.owner(narrow[0]), narrow[0]) if narrow else None

    def owner(self, link: Link) -> SystemDevice:
        """The device from which a link goes."""
        return self.owners[id(link)]
