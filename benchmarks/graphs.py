"""How long our own search for channels takes, all graphs of a node, medians of several runs. Prints; checks nothing.

python benchmarks/graphs.py            every machine of the catalogue on 1 and 2 nodes, and the worst parts of some
python benchmarks/graphs.py dgx-h100   one
"""

import statistics
import sys
import time
from collections.abc import Iterator

from tuner.graphs import SearchRequest
from tuner.graphs.graphs import search
from tuner.machine import catalogue

NCCL = "2.28.9"
REPEATS = 3
AIM_S = {"dgx-h100": 0.3, "dgx-b200": 0.3}
OF_ANY_MACHINE_S, OF_PARTS_S = 1.0, 5.0
PARTS = {"dgx-h100": (2, 4, 6), "dgx-b200": (2, 3, 4, 6), "azure-nd-h100-v5": (4,), "aws-p5": (4,)}
SHARED = (("dgx-h100", 8, 3), ("dgx-h100", 1, 8), ("dgx-b200", 8, 2))  # GPUs, and ranks on each
SHARING = "2.30.7"


def main() -> None:
    for title, request, nccl, aim_s in cases(sys.argv[1:]):
        times = []
        for _ in range(REPEATS):
            start = time.process_time()
            search(request, nccl)
            times.append(time.process_time() - start)
        print(f"{title:<52} {statistics.median(times):8.3f} s   (aim: {aim_s} s)", flush=True)


def cases(names: list[str]) -> Iterator[tuple[str, SearchRequest, str, float]]:
    for name in names or catalogue.names():
        machine = catalogue.load(name)
        for nodes in (1, 2):
            whole = request(machine, machine.gpus_per_node, nodes)
            yield f"{nodes} x {name}", whole, NCCL, AIM_S.get(name, OF_ANY_MACHINE_S)
    for name, parts in PARTS.items():
        for gpus in parts if not names or name in names else ():
            yield f"2 x {name}, {gpus} GPUs", request(catalogue.load(name), gpus, 2), NCCL, OF_PARTS_S
    for name, gpus, ranks in SHARED:
        if not names or name in names:
            of_rank = tuple(gpu for gpu in range(gpus) for _ in range(ranks))
            shared = request(catalogue.load(name), gpus, 2, of_rank)
            yield f"2 x {name}, {gpus} GPUs of {ranks} ranks each", shared, SHARING, OF_PARTS_S


def request(machine: catalogue.Machine, gpus: int, nodes: int, gpu_of_rank: tuple[int, ...] = ()) -> SearchRequest:
    return SearchRequest(
        machine.topology_xml,
        gpus,
        nodes > 1,
        machine.environment,
        machine.peer_to_peer,
        gpu_of_rank,
        bool(gpu_of_rank),
    )


if __name__ == "__main__":
    main()
