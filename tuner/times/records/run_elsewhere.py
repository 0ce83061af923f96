"""The communicator of a run on the computer that analyses it, which need not be the one that measured."""

import hashlib
from dataclasses import replace
from pathlib import Path

from tuner import release
from tuner.base.files import cache_folder, recall, remember
from tuner.oracle.process import OWN_VARIABLES
from tuner.release.variables import ignored, not_emulated
from tuner.scenario import Scenario


def usable(scenario: Scenario, topology_xml: str | None) -> Scenario:
    """With the topology of this text, and of the run's environment what the release is known to read."""
    if scenario.topology is not None and topology_xml is not None:
        scenario = replace(scenario, topology=_topology(scenario.topology, topology_xml))
    return replace(scenario, environment=_known(scenario)) if scenario.environment else scenario


def _topology(path: Path, text: str) -> Path:
    """A file with this text: the one of the run, where it still is that, else one of its name in the cache."""
    if path.is_file() and path.read_text(errors="replace") == text:
        return path
    kept = cache_folder() / "topologies" / hashlib.sha256(text.encode()).hexdigest()[:16] / path.name
    if recall(kept) != text:
        remember(kept, text)
    return kept if recall(kept) == text else path


def _known(scenario: Scenario) -> dict[str, str]:
    """Variables of the run but for those that the oracle sets, that are not emulated, or that NCCL does not read."""
    given = {name: value for name, value in (scenario.environment or {}).items() if name not in OWN_VARIABLES}
    if scenario.nccl not in release.names():
        return given
    read = release.load(scenario.nccl)
    unread = {*not_emulated(read, given), *ignored(read, given)} - set(read.environment.search)
    return {name: value for name, value in given.items() if name not in unread}
