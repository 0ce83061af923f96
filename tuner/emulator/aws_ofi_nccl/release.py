"""Reads ``tables/tuners/aws-ofi-nccl``: each release of the plugin, completed by its parent, as a record."""

import re
from collections.abc import Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import Any

from tuner.base import tables
from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput, one_of
from tuner.base.names import AlgoProto, Algorithm, Collective, Protocol
from tuner.emulator.aws_ofi_nccl.regions import Plane, Region, regions_of

NAME = "aws-ofi-nccl"
MERGED = ("regions", "model")  # tables that a release's file only changes in part


@dataclass(frozen=True, slots=True)
class ModelConstants:
    """The constants of the tuner's model for a platform; bandwidths in 2**30 bytes per second, latencies in us.

    ``nvlink_latency_us``: by algorithm, the latencies of LL, LL128 and Simple.
    """

    net_latency_us: float
    internode_gbs: float  # bandwidth of each rail
    intranode_gbs: float
    rails: int
    nvlink_latency_us: Mapping[Algorithm, Sequence[float]]
    reads_net_latency: bool  # OFI_NCCL_TUNER_NET_LATENCY replaces the network latency


@dataclass(frozen=True, slots=True)
class TunerRelease:
    """One release of the plugin, with the differences of its tuner from other releases; ``releases.toml`` explains
    them."""

    name: str
    tag: str
    date: str  # year and month of the release
    interfaces: tuple[int, ...]  # versions of the interface that it has, ncclTunerPlugin_v*
    first_interface_works: bool
    kinds: tuple[str, ...]  # how the tuner can decide: by regions, by a model
    platforms: Mapping[str, str]  # platforms by product name
    model_platforms: tuple[str, ...]
    model_quirk: bool
    least_nodes: int
    type_variable: str  # how OFI_NCCL_TUNER_TYPE is read
    declines_with_rails: bool
    # Interfaces with which it leaves everything to NCCL if NCCL_ALGO or NCCL_PROTO is set
    declines_with_masks_in: tuple[int, ...]
    ignores_masks_in: tuple[int, ...]
    by_default: bool  # NCCL loads the tuner without any setting
    passes_over_pat_by_name: bool
    tree_channels: tuple[str, ...]  # platforms on which it sets channels for Tree
    pat_channels: tuple[str, ...]
    chunk_sizes: tuple[str, ...]
    decides_once: bool
    # NCCL's variables that the network plugin sets, unless they are set already, by a pattern of products' names
    settings: Mapping[str, Mapping[str, str]]
    # Regions by platform, ranks per node and collective
    regions: Mapping[tuple[str, int, Collective], tuple[Region, ...]]
    model: Mapping[str, ModelConstants]

    def platform(self, product: str | None) -> str | None:
        """The platform under which the release's tables know a product; None if they do not know it."""
        everywhere = self.platforms.get("*")
        return everywhere if product is None else self.platforms.get(product, everywhere)

    def environment(self, product: str | None) -> Mapping[str, str]:
        """NCCL's variables that the network plugin sets on the product, unless they are set already."""
        matching = (each for pattern, each in self.settings.items() if product and re.fullmatch(pattern, product))
        return next(matching, MappingProxyType({}))


def names() -> list[str]:
    """All releases with a table, oldest first."""
    return list(_releases())


def newest() -> str:
    """The newest release with a table."""
    return names()[-1]


def named(text: str) -> str:
    """The release that a user spelled: 1.21.1, v1.21.1, 1.13.2-aws, or 1.21 for the newest of them.

    Raises BadInput, which lists the valid ones.
    """
    spelled = text.strip().removeprefix("v").removesuffix("-aws")
    found = [name for name in names() if name == spelled or name.startswith(f"{spelled}.")]
    if found:
        return found[-1]
    known = next((text for name, text in _unread().items() if f"{name}.".startswith(f"{spelled}.")), None)
    raise BadInput(f"{NAME} {text}: {known or 'no table exists for it'}; {one_of(names())}")


@cache
def load(name: str) -> TunerRelease:
    """The release of that name, completed by its parents."""
    data = _data(name)
    flags = dict.fromkeys(("declines_with_rails", "decides_once", "passes_over_pat_by_name", "model_quirk"), False)
    lists = dict.fromkeys(("declines_with_masks_in", "tree_channels", "pat_channels", "chunk_sizes"), ())
    values: dict[str, Any] = {"first_interface_works": True, "model_platforms": (), **flags, **lists}
    values |= {key: tuple(value) if isinstance(value, list) else value for key, value in data.items()}
    plane = Plane(
        log2=values.pop("scale", None) == "log2",
        long_double=values.pop("crossing", None) == "long double",
        nearer=values.pop("extended_to", None) == "nearer",
    )
    regions = {
        (platform, int(ranks), Collective[collective]): _regions(plane, table)
        for platform, by_ranks in values.pop("regions", {}).items()
        for ranks, by_collective in by_ranks.items()
        for collective, table in by_collective.items()
    }
    settings = {each["product"]: each["set"] for each in values.pop("environment", ())}
    model = {platform: _model(platform, table) for platform, table in values.pop("model", {}).items()}
    values.pop("parent", None)
    return TunerRelease(name=name, **values, settings=settings, regions=regions, model=model)


def _data(name: str) -> dict[str, Any]:
    own = _releases()[name]
    data = _data(own["parent"]) if "parent" in own else {}
    for key, value in own.items():
        data[key] = _merged(data.get(key, {}), value) if key in MERGED else value
    return data


def _merged(before: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """Merges nested tables. A table of regions is not merged but replaced."""
    if "regions" in own:
        return own
    both = dict(before)
    for key, value in own.items():
        both[key] = _merged(before.get(key, {}), value) if isinstance(value, dict) else value
    return both


def _regions(plane: Plane, table: Mapping[str, Any]) -> tuple[Region, ...]:
    rows = tuple((_algo_proto(name), *map(_hashable, vertices)) for name, *vertices in table["regions"])
    return regions_of(plane, tuple(map(_hashable, table.get("extended", ()))), rows)


def _hashable(value: Any) -> Any:
    return tuple(map(_hashable, value)) if isinstance(value, list) else value


def _algo_proto(name: str) -> AlgoProto:
    algorithm, _, protocol = name.partition("/")
    return Algorithm[algorithm], Protocol[protocol]


def _model(platform: str, table: Mapping[str, Any]) -> ModelConstants:
    words = {"tree": Algorithm.Tree, "ring": Algorithm.Ring, "nvls_tree": Algorithm.NVLSTree}
    latencies = {words[name]: tuple(values) for name, values in table["nvlink_latency_us"].items()}
    numbers = {name: table[name] for name in ("net_latency_us", "internode_gbs", "intranode_gbs", "rails")}
    return ModelConstants(**numbers, nvlink_latency_us=latencies, reads_net_latency=platform == "any")


@dataclass(frozen=True, slots=True)
class Shipped:
    """The plugin's release in an image or an installer, and the date since when; ``efa`` is the version of the EFA
    installer."""

    since: str
    efa: str
    release: str
    name: str = "EFA installer"


def images() -> tuple[Shipped, ...]:
    """AWS's machine images, oldest first."""
    return tuple(Shipped(**each) for each in _images()["image"])


def installers() -> tuple[Shipped, ...]:
    """The releases of the EFA installer, oldest first."""
    return tuple(Shipped(**each) for each in _images()["installer"])


def of_images() -> str:
    """The release in AWS's newest image."""
    return images()[-1].release


def products() -> Mapping[str, str]:
    """The product names of AWS's machines, by the machines' names in the catalogue."""
    table: Mapping[str, str] = _images()["products"]
    return table


def is_named_by(plugin: str) -> bool:
    """Whether a value of NCCL_TUNER_PLUGIN is a name or a path of this tuner's library."""
    return plugin.rpartition("/")[2] in _images()["files"]["names"]


def _unread() -> Mapping[str, str]:
    """The releases that are known to exist but have no table, with what is known about each."""
    table: Mapping[str, str] = _images()["unread"]
    return table


@cache
def _releases() -> dict[str, dict[str, Any]]:
    return tables.toml(tables.folder() / "tuners" / NAME / "releases.toml")


@cache
def _images() -> dict[str, Any]:
    return tables.toml(tables.folder() / "tuners" / NAME / "images.toml")
