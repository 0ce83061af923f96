"""What a run of benchmarks/gpu_loop.py on one GPU shows, from the folder that results.tar.gz was unpacked into.

    python benchmarks/gpu_results.py FOLDER

Prints what docs/one-gpu.md says: exactness, noise by where it comes from, latency by protocol and ranks, the rate of
one channel, the host's time with and without a tuner plugin, which rows two A/B runs kept, what the plugin measured
inside jobs, and what NCCL's event masks cost. What is not there is left out.
"""

import argparse
import json
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from gpu_calls import compare
from numpy.typing import NDArray

from tuner.base.names import Collective, Protocol
from tuner.jobs.inside import joined, report
from tuner.plugin.table.parse import size_text
from tuner.times.costmodels.operations import algorithm_gbs, bus_factor
from tuner.times.measured import samples
from tuner.times.measured.samples import Combination, SampleBlock

Blocks = Mapping[tuple[int, Combination | None], list[SampleBlock]]  # by nBytes and what was requested


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    for title, lines in (
        ("exactness", exactness(folder)),
        ("noise", noise(folder)),
        ("latency, us by ranks", latency(folder)),
        ("GB/s of one channel", channel_rates(folder)),
        ("host", host_times(folder)),
        ("rows", rows(folder)),
        ("jobs", jobs(folder)),
        ("masks, us of a call beyond none", masks(folder)),
    ):
        print(f"== {title}")
        print("\n".join(lines))
    return 0


def exactness(folder: Path) -> Iterator[str]:
    """Choices of each run, and what 'log --check' compared of its log."""
    for path in sorted(folder.glob("*.jsonl")):
        if re.match(r"(own|no-p2p|sockets)-?\d*\.jsonl$", path.name):
            yield f"{path.stem}: {compare(path)[0]}"
    for path in sorted(folder.glob("check-log*.out")):
        counts = re.findall(r"\d+/\d+", path.read_text())
        yield f"{path.stem}: {' '.join(counts)}"


def blocks_of(path: Path) -> Blocks:
    """The sample blocks that count."""
    found: dict[tuple[int, Combination | None], list[SampleBlock]] = defaultdict(list)
    for block in samples.read(path).blocks if path.is_file() else ():
        if block.counts and block.point.collective is Collective.AllReduce:
            found[block.point.bytes, block.requested].append(block)
    return found


def noise(folder: Path) -> Iterator[str]:
    """Standard deviations in percent: of runs in a block, of blocks in a process, and of processes, each without what
    comes from within; the first block of a process against its others; the same combination asked for in two ways.
    """
    for path in sorted(folder.glob("noise-*[0-9].jsonl")):
        found = blocks_of(path)
        typical_us = {}
        for (size, requested), its in sorted(found.items(), key=lambda each: (each[0][0], str(each[0][1]))):
            logs = by_process(its)
            runs = np.array([np.std(np.log(block.times_us), ddof=1) for block in its])
            within = np.mean([np.var(each, ddof=1) for each in logs if len(each) > 1])
            between = np.var([np.mean(each) for each in logs], ddof=1) - within / np.mean([len(each) for each in logs])
            blocks = max(0.0, within - np.mean(runs**2) * np.pi / 2 / len(its[0].times_us))
            first = float(np.mean([each[0] - np.median(each[1:]) for each in logs if len(each) > 2]))
            typical_us[size, requested] = float(np.exp(np.median(np.concatenate(logs))))
            yield (
                f"{size_text(size):>5} {requested or 'own'!s:12} {typical_us[size, requested]:8.2f} us  "
                f"runs {100 * np.sqrt(np.mean(runs**2)):5.2f}  blocks {100 * np.sqrt(blocks):5.2f}  "
                f"processes {100 * np.sqrt(max(0.0, float(between))):5.2f}  first block {100 * first:+6.2f}  "
                f"({len(logs)} processes, {len(its)} blocks)"
            )
        for size in sorted({size for size, _ in found}):
            own = [block for block in found.get((size, None), ()) if block.executed]
            same = own[0].executed.plain if own and own[0].executed else None
            if same in {requested for of_size, requested in found if of_size == size}:
                ratio = typical_us[size, None] / typical_us[size, same]
                yield f"{size_text(size):>5} own choice and the same forced: {100 * (ratio - 1):+.2f} %"


def by_process(blocks: Sequence[SampleBlock]) -> list[NDArray[np.float64]]:
    """Logarithms of medians in the order of measuring, [process][block]."""
    found: dict[int, list[float]] = defaultdict(list)
    for block in blocks:
        found[block.process].append(float(np.log(block.median_us)))
    return [np.array(each) for _, each in sorted(found.items())]


def latency(folder: Path) -> Iterator[str]:
    """Medians of the smallest size on one channel by algorithm, protocol and ranks, and what a step costs."""
    medians: dict[Combination, dict[int, float]] = defaultdict(dict)
    for path in sorted(folder.glob("latency-*[0-9].jsonl")):
        ranks = samples.read(path).header.ranks or 0
        found = blocks_of(path)
        smallest = min((size for size, _ in found), default=0)
        for (size, requested), its in found.items():
            if size == smallest and requested is not None and requested.channels == 1:
                medians[requested][ranks] = median(block.median_us for block in its)
    for combination, by_ranks in sorted(medians.items()):
        text = "  ".join(f"{ranks}: {time_us:6.2f}" for ranks, time_us in sorted(by_ranks.items()))
        # Round a ring twice; the tree of a node is a chain, up and down.
        steps = [2 * (ranks - 1) for ranks in sorted(by_ranks)]
        slope, base = np.polyfit(steps, [by_ranks[ranks] for ranks in sorted(by_ranks)], 1)
        yield f"{combination.plain!s:12} {text}   {base:6.2f} + {slope:5.2f} a step"


def channel_rates(folder: Path) -> Iterator[str]:
    """Bus bandwidth by protocol and channels at each size."""
    for path in sorted(folder.glob("channels-*[0-9].jsonl")):
        ranks = samples.read(path).header.ranks or 0
        found = blocks_of(path)
        for size in sorted({size for size, _ in found}):
            for protocol in Protocol:
                rates = {
                    requested.channels: algorithm_gbs(size, median(block.median_us for block in its))
                    * bus_factor(Collective.AllReduce, ranks)
                    for (of_size, requested), its in found.items()
                    if of_size == size and requested and requested.channels and requested.protocol is protocol
                }
                text = "  ".join(f"{channels}: {rate:7.2f}" for channels, rate in sorted(rates.items()))
                yield f"{size_text(size):>5} {protocol.name:7} {text}"


def lines_by(
    folder: Path, pattern: str, key: Callable[[dict[str, Any]], tuple[Any, ...]]
) -> dict[tuple[Any, ...], list[dict[str, Any]]]:
    """Lines of JSON of all such files by a key, in its order."""
    found: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    for path in sorted(folder.glob(pattern)):
        for line in map(json.loads, path.read_text().splitlines()):
            found[key(line)].append(line)
    return dict(sorted(found.items()))


def middle_us(lines: Sequence[Mapping[str, Any]], name: str) -> float:
    """Median of all times of that name, us."""
    return float(np.median(np.ravel([line[name] for line in lines])))


def host_times(folder: Path) -> Iterator[str]:
    """Medians in us by ranks, plugin and size: calls by events and by the host's clock, in graphs, and starting one."""

    def key(line: dict[str, Any]) -> tuple[Any, ...]:
        plugin = "no plugin" if line["table"] is None else Path(line["table"]).stem
        return line["ranks_per_gpu"], plugin, line["bytes"]

    names = ("events_us", "host_clock_us", "graph_us", "host_us", "graph_host_us")
    for (ranks, plugin, size), lines in lines_by(folder, "host-*[0-9].jsonl", key).items():
        text = "  ".join(f"{name.removesuffix('_us')} {middle_us(lines, name):8.2f}" for name in names)
        yield f"{ranks} ranks {plugin:10} {size_text(size):>5}  {text}"


def rows(folder: Path) -> Iterator[str]:
    """What the A/B runs said of each row."""
    for path in sorted(
        [*folder.glob("gate*.out"), *folder.glob("again*.out"), *folder.glob("decide*.out"), *folder.glob("later*.txt")]
    ):
        for line in path.read_text().splitlines():
            if line.startswith(("kept", "dropped", "no row")):
                yield f"{path.stem}: {line}"


def jobs(folder: Path) -> Iterator[str]:
    """What each stage in a job said, and 'job read' of its files; of plain calls, kernels' times over events'."""
    for path in sorted(folder.glob("*.jsonl.job")):
        name = path.name.removesuffix(".jsonl.job")
        said = (folder / f"{name}.out").read_text().splitlines()
        read = joined.read_folder(path)
        calls = list(joined.joined(read))
        found = report.report(read, calls)
        yield f"{name}: {said[-1] if said else 'nothing said'}"
        notes = "; ".join(found.notes) or "no note"
        yield f"{name}: {found.calls} calls joined, {100 * found.waiting:.0f} % waiting; {notes}"
        if name.startswith("profile"):
            yield from kernels_over_events(folder / f"{name}.jsonl", calls)


def kernels_over_events(path: Path, calls: Sequence[joined.JoinedCalls]) -> Iterator[str]:
    """Medians in us of a call by its kernels, the waiting of its ranks left out, and by events around it."""
    events_us: dict[tuple[Collective, int], list[float]] = defaultdict(list)
    for block in samples.read(path).blocks:
        if not block.point.graph:
            events_us[block.point.collective, block.point.bytes].extend(block.times_us)
    for each in calls:
        for place, kind in enumerate(each.kinds):
            if its := events_us.get((kind.collective, kind.bytes)):
                own = each.transfer_us[each.call == place]
                if len(own):
                    by = f"kernels {np.median(own):9.2f}  events {median(its):9.2f}"
                    yield f"{path.stem} {kind.collective.name:13} {size_text(kind.bytes):>5}  {by}"


def masks(folder: Path) -> Iterator[str]:
    """By size and mask, outside CUDA graphs and in them: medians over those without a profiler."""
    found = lines_by(folder, "masks-*[0-9].jsonl", lambda line: (line["graph"], line["bytes"], line["mask"]))
    for (graph, size, mask), lines in found.items():
        if mask == "none":
            more_us = {
                other: middle_us(its, "events_us") - middle_us(lines, "events_us")
                for (of_graph, of_size, other), its in found.items()
                if (of_graph, of_size) == (graph, size) and other != mask
            }
            text = "  ".join(f"{other} {us:+6.2f}" for other, us in more_us.items())
            yield f"{'graphs' if graph else 'calls':6} {size_text(size):>5}  {text}"


if __name__ == "__main__":
    sys.exit(main())
