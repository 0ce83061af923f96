"""The records of a folder: which ranks wrote, which are missing, and the kinds that they are of."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tuner.base.errors import BadInput
from tuner.jobs.preflight.collect import FORMAT, VERSION
from tuner.jobs.preflight.facts import Facts, of_json

OF_THE_RANK = ("rank", "ranks", "local_rank", "local_ranks", "launcher", "host", "job", "collected")
# Beside these in a rank's record, and no difference of kind: which addresses, names and files stand for the same thing.
NOT_OF_THE_KIND = (*OF_THE_RANK, "visible_gpus", "interfaces")


@dataclass(frozen=True, slots=True)
class Rank:
    """One record: a rank, or a host where nothing said which rank it is. ``kind`` counts the kinds of facts."""

    file: str
    rank: int | None
    ranks: int | None
    local_ranks: int | None
    host: str
    job: str | None
    kind: int


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A file that is no record, and why."""

    file: str
    why: str


@dataclass(frozen=True, slots=True)
class Collected:
    """A folder of records. ``kinds`` are in the order of their first rank."""

    folder: Path
    ranks: tuple[Rank, ...]
    kinds: tuple[Facts, ...]
    unreadable: tuple[Unreadable, ...]

    @property
    def expected(self) -> int | None:
        """The ranks of the job by what most records say; None where none says it."""
        said = Counter(rank.ranks for rank in self.ranks if rank.ranks is not None)
        return said.most_common(1)[0][0] if said else None

    @property
    def missing(self) -> tuple[int, ...]:
        """The ranks without a record."""
        there = {rank.rank for rank in self.ranks}
        return tuple(rank for rank in range(self.expected or 0) if rank not in there)

    @property
    def duplicates(self) -> dict[int, tuple[str, ...]]:
        """The files of ranks that have several, by rank."""
        files = defaultdict(list)
        for rank in self.ranks:
            if rank.rank is not None:
                files[rank.rank].append(rank.file)
        return {rank: tuple(names) for rank, names in sorted(files.items()) if len(names) > 1}

    def attachment(self, name: str) -> Path | None:
        """A file that was attached to the records; None where it is not there."""
        path = self.folder / name
        return path if path.is_file() else None


def read(folder: Path) -> Collected:
    """BadInput for no folder, and for one without a record that can be read."""
    try:
        files = sorted(path for path in folder.iterdir() if path.suffix == ".json" and path.name[0] != ".")
    except OSError as error:
        raise BadInput(f"{folder}: {error.strerror}") from error
    found, facts, unreadable = list[tuple[Rank, str]](), dict[str, Facts](), list[Unreadable]()
    for path in files:
        try:
            given = _json(path)
            key = _key(given)
            if key not in facts:
                facts[key] = of_json(given)
            found.append((_rank(path.name, given), key))
        except BadInput as error:
            unreadable.append(Unreadable(path.name, str(error)))
    if not found:
        why = (
            f": {unreadable[0].file}: {unreadable[0].why}" if unreadable else "; `nccl-tuner preflight collect` writes"
        )
        raise BadInput(f"{folder}: no record of a rank{why}")
    found.sort(key=lambda each: (each[0].rank is None, each[0].rank or 0, each[0].host))
    sizes = _ranks_of_hosts(rank for rank, _ in found)
    kinds = [(key, sizes[rank.host]) for rank, key in found]
    order = {kind: number for number, kind in enumerate(dict.fromkeys(kinds))}
    return Collected(
        folder,
        tuple(replace(rank, kind=order[kind]) for (rank, _), kind in zip(found, kinds, strict=True)),
        tuple(replace(facts[key], ranks_of_host=size) for key, size in order),
        tuple(unreadable),
    )


def _ranks_of_hosts(ranks: Iterable[Rank]) -> dict[str, int | None]:
    """By host; None where the records are of hosts: a rank for each GPU."""
    by_host = defaultdict[str, list[Rank]](list)
    for rank in ranks:
        by_host[rank.host].append(rank)
    return {
        host: max(len({each.rank for each in own} - {None}), *(each.local_ranks or 0 for each in own)) or None
        for host, own in by_host.items()
    }


def _json(path: Path) -> Mapping[str, Any]:
    try:
        given = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise BadInput(f"{getattr(error, 'strerror', None) or error}") from error
    if not isinstance(given, dict) or given.get("format") != FORMAT:
        raise BadInput(f"no record of preflight: valid: format {FORMAT!r}")
    if given.get("version") != VERSION:
        raise BadInput(f"version {given.get('version')}; valid: {VERSION}, of this release's collect")
    return given


def _key(given: Mapping[str, Any]) -> str:
    """What ranks of one kind have alike, as a text."""
    alike = {name: value for name, value in given.items() if name not in NOT_OF_THE_KIND}
    for name in ("libraries", "gpus", "adapters"):
        alike[name] = list(_without_places(alike.get(name)))
    return json.dumps(alike, sort_keys=True)


def _without_places(devices: Any) -> Iterator[Any]:
    """A library's path and a device's address are of the host, not of the kind."""
    for device in devices if isinstance(devices, list) else []:
        if isinstance(device, dict):
            yield {name: value for name, value in device.items() if name not in ("path", "bus_id")}


def _word(value: Any) -> str | None:
    return None if value is None else str(value)


def _rank(file: str, given: Mapping[str, Any]) -> Rank:
    numbers = [given.get(name) for name in ("rank", "ranks", "local_ranks")]
    if any(number is not None and (not isinstance(number, int) or number < 0) for number in numbers):
        raise BadInput(f"rank, ranks and local_ranks are {numbers}; valid: whole numbers or null")
    if numbers[0] is not None and numbers[1] is not None and numbers[0] >= numbers[1]:
        raise BadInput(f"rank {numbers[0]} of {numbers[1]}; valid: below that")
    return Rank(file, numbers[0], numbers[1], numbers[2], str(given.get("host")), _word(given.get("job")), kind=-1)
