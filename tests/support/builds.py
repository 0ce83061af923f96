"""Whether two builds of one release's libnccl, for CUDA 12 and for CUDA 13, answer the same."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from tuner.base.errors import OracleFailed
from tuner.base.names import Buffers
from tuner.emulator.group import Operation
from tuner.emulator.request import Request
from tuner.emulator.selection import Selection
from tuner.oracle.api import Oracle
from tuner.oracle.conformance import check
from tuner.oracle.conformance.check import TABLES, name, sizes_bytes
from tuner.scenario import Scenario

MACHINES = ("dgx-h100", "dgx-b200")
LAUNCHES = ("plain", "registered", "in a CUDA graph", "windows")
REFUSALS = ("NCCL returned", "unknown red op")


@dataclass(slots=True)
class Comparison:
    """What was compared, and in words what differs."""

    compared: int = 0
    differences: list[str] = field(default_factory=list)

    def add(self, what: str, first: Any, second: Any) -> None:
        """Counts a value of both builds."""
        self.compared += 1
        if first != second:
            self.differences.append(f"{what}: {first}, {second}")

    def add_all(self, what: str, first: Sequence[Any], second: Sequence[Any]) -> None:
        """Counts each of several values."""
        self.add(f"{what}: number", len(first), len(second))
        for own, other in zip(first, second, strict=False):
            self.add(what, own, other)


def compare(scenario: Scenario, builds: tuple[str, str], requests: Sequence[Request]) -> Comparison:
    """Graphs, tables, facts, cost cells, launches and groups of a scenario, as two builds answer them."""
    made = Comparison()
    first, second = (replace(scenario, build=build).oracle_configuration() for build in builds)
    with Oracle(first, timeout_s=600) as one, Oracle(second, timeout_s=600) as other:
        assert one.facts.library_sha256 != other.facts.library_sha256
        made.add("facts", *(facts(oracle) for oracle in (one, other)))
        made.add_all("graph", *(sorted(oracle.graphs.items()) for oracle in (one, other)))
        for table in TABLES:
            made.add_all(table, *(getattr(oracle.tables, table).ravel().tolist() for oracle in (one, other)))
        for request in requests:
            cells = [costs(oracle, request) for oracle in (one, other)]
            made.add_all(f"{name(request)}: cells", *cells)
            for how in LAUNCHES:
                made.add_all(f"{name(request)}: {how}", *(launches(oracle, request, how) for oracle in (one, other)))
        for number, group in enumerate(groups(scenario, requests)):
            launched = (oracle.launch_group(group) for oracle in (one, other))
            kernels, questions = zip(
                *((each.kernels, list(map(plain, each.questions))) for each in launched), strict=True
            )
            made.add_all(f"group {number}: kernels", *kernels)
            made.add_all(f"group {number}: questions", *questions)
    return made


def facts(oracle: Oracle) -> dict[str, Any]:
    return {key: value for key, value in asdict(oracle.facts).items() if key != "library_sha256"}


def costs(oracle: Oracle, request: Request) -> list[Any]:
    """The bits of every cell; where NCCL refuses the call, that it does."""
    try:
        return oracle.costs(request, sizes(oracle, request)).view(np.uint32).ravel().tolist()
    except OracleFailed as error:
        return [refusal(error)]


def launches(oracle: Oracle, request: Request, how: str) -> list[Any]:
    """Algorithm, protocol, channels, threads and kernel of each size, or the symmetric kernel that takes it."""
    asked = sizes(oracle, request)
    try:
        if how == "windows":
            return list(oracle.launch_on_any_path(request, asked))
        buffers = Buffers.registered if how == "registered" else Buffers.plain
        return list(oracle.launch(replace(request, buffers=buffers), asked, captured=how == "in a CUDA graph"))
    except OracleFailed as error:
        return [refusal(error)]


def groups(scenario: Scenario, requests: Sequence[Request]) -> Iterator[list[Operation]]:
    """The groups of `nccl-tuner check`."""
    for group in check.standard(Selection(scenario.communicator()), requests):
        yield [pick.operation for pick in group.picks]


def plain(record: Any) -> dict[str, Any]:
    """A record as a dictionary that can be compared: arrays as lists of their bits."""
    return {key: each.tobytes() if isinstance(each, np.ndarray) else each for key, each in asdict(record).items()}


def sizes(oracle: Oracle, request: Request) -> list[int]:
    return sizes_bytes(request, oracle.configuration.ranks)


def refusal(error: OracleFailed) -> str:
    """That NCCL refuses a call, by an error or a warning of its own; anything else, such as a crash, is raised."""
    refused = next((words for words in REFUSALS if words in str(error)), None)
    if refused is None:
        raise error
    return refused
