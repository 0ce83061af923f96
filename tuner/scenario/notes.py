"""What NCCL makes of variables whose values a user hardly meant so, in words."""

from collections.abc import Iterator, Mapping
from difflib import get_close_matches

from tuner import release
from tuner.release import Release
from tuner.release.environment import Environment
from tuner.release.variables import everywhere, ignored
from tuner.scenario.description import Scenario

# Those that are no whole numbers, or not in every release.
TEXTS = frozenset(
    {"NCCL_ALGO", "NCCL_PROTO", "NCCL_THREAD_THRESHOLDS", "NCCL_COLLNET_ENABLE", "NCCL_CTA_POLICY"}
    | {"NCCL_P2P_LEVEL", "NCCL_NET_GDR_LEVEL", "NCCL_NET_GDR_READ", "NCCL_NETDEVS_POLICY", "NCCL_NET_MERGE_LEVEL"}
    | {"NCCL_IB_HCA", "NCCL_NET_FORCE_MERGE", "NCCL_GRAPH_FILE"}
)
LEAST_CHANNELS = ("NCCL_MIN_NCHANNELS", "NCCL_MIN_NRINGS")
MOST_CHANNELS = ("NCCL_MAX_NCHANNELS", "NCCL_MAX_NRINGS")
NOT_SET = -2


def of_scenario(scenario: Scenario) -> list[str]:
    """One line for each of its variables that the release ignores, takes for something else, or that harms."""
    values = scenario.environment or {}
    lines = of_variables(release.load(scenario.nccl), values)
    if values:
        from tuner.scenario.settings import harmful

        lines += harmful(values, scenario.nodes, scenario)
    return lines


def of_variables(nccl: Release, values: Mapping[str, str]) -> list[str]:
    """Notes of a release and its variables."""
    without_effect = [
        f"{name}: NCCL {nccl.name} does not read it{_meant(nccl, name)}" for name in ignored(nccl, values)
    ]
    elsewhere = [
        f"{name}={values[name]}: {says}"
        for group, says in _ELSEWHERE.items()
        for name in nccl.environment.indifferent.get(group, ())
        if name in values and name not in ignored(nccl, values)
    ]
    return [*without_effect, *elsewhere, *_of_numbers(nccl, values)]


_ELSEWHERE = {
    "seen_in_the_topology": "the topology and the nodes that are given here say what it does",
    "files_of_variables": "the variables that it brings are not read here; give each",
    "tuners": "a tuner plugin then chooses; what is answered here is NCCL's own choice",
}


def _meant(nccl: Release, name: str) -> str:
    """A hint for a name that is nearly one of the release's."""
    if name in everywhere():
        return ""
    close = get_close_matches(name, {*nccl.listed_variables, *nccl.environment.search}, n=1, cutoff=0.9)
    return f"; did you mean {close[0]}?" if close else ""


def _of_numbers(nccl: Release, values: Mapping[str, str]) -> Iterator[str]:
    environment = Environment(values, non_numeric_is_default=nccl.environment.non_numeric_is_default)
    whole = {*nccl.environment.known, *nccl.environment.search} - TEXTS
    for name in sorted(whole & values.keys()):
        if not values[name]:
            continue
        number = environment.optional(name)
        begin = f"{name}={values[name]}: NCCL {nccl.name}"
        if number is None:
            yield f"{begin} ignores it, as it is no whole number of 64 bits"
            continue
        counts = _counts_as(nccl, name, number)
        if not _is(values[name], number):
            yield f"{begin} reads it as {number}" + (f", which counts as {counts}" if counts else "")
        elif counts:
            yield f"{begin} counts it as {counts}"


def _is(text: str, number: int | None) -> bool:
    try:
        return int(text, 0) == number
    except ValueError:
        return False


def _counts_as(nccl: Release, name: str, number: int) -> str | None:
    """What the release takes a number for: ncclGetNthreads of its tuning, ncclMinNchannels and ncclMaxNchannels."""
    most = nccl.limits.max_channels
    if name in LEAST_CHANNELS and number != NOT_SET:
        return "no minimum" if number < 0 else str(most) if number > most else None
    if name in MOST_CHANNELS and number != NOT_SET:
        return "1" if number < 1 else str(most) if number > most else None
    for row in (each for protocols in nccl.threads.values() for each in protocols.values() if each.env == name):
        if number <= 0:
            return "not set"
        if row.max is not None and (number > row.max or number % nccl.limits.warp_size):
            return str(row.max)
        if row.min is not None and number < row.min:
            return str(row.min)
    return None
