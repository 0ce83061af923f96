"""The records of NCCL's topology search in a release's file: constants and named rules in the table ``[search]``.

``tuner.graphs`` implements the rules.
"""

from collections.abc import Mapping
from typing import Annotated, Literal

from tuner.base.dataclass import dataclass
from tuner.release.convert import PARTIAL

CpuAbove = Literal["over_any_device", "over_switches", "upwards"]
StepsRow = Literal["any", "hopper", "blackwell", "rubin"]
Steps = Annotated[Mapping[StepsRow, tuple[float, ...]], PARTIAL]


@dataclass(frozen=True, slots=True, eq=False)
class Merging:
    """Rules by which adapters are merged into virtual ones (NIC fusion)."""

    adapters: Literal["every", "several"]  # "every": an adapter that is merged with no other becomes a virtual one, too
    most: int  # the most adapters that one virtual adapter may have
    levels: tuple[str, ...]  # the values that NCCL_NET_MERGE_LEVEL may have
    by_rail: (
        bool  # NCCL_NET_MERGE_POLICY=RAIL exists: nearby adapters are merged only if NCCL_IB_HCA puts them on one rail
    )
    failure: Literal["is_an_error", "is_tried_apart"]  # what happens if the network refuses to merge
    # A virtual adapter is placed below the PCI device above its adapters' common element, if there is one
    below_pci_devices: bool
    # Below these elements it gets a PCI device of its own
    new_devices_below: tuple[Literal["pci", "bridge", "cpu"], ...]
    widened: Literal["none", "adapters", "virtual_adapter"]  # whose links get the sum of the adapters' widths
    refuses_sockets: bool  # adapters of different sockets are refused; otherwise the merged adapter is lost
    collnet_keeps: bool  # adapters that do collectives keep their PCI devices
    leaks: bool  # later communicators of a process also have the adapters that were merged (sic)


@dataclass(frozen=True, slots=True, eq=False)
class XmlReading:
    """Rules for reading the topology XML, before a system graph is made from it."""

    # Each rank marks its own GPU, and the XMLs of a host's ranks are merged; otherwise a rank marks all GPUs
    own_gpu_only: bool
    unread: tuple[str, ...]  # elements that this release's parser does not know
    trimmed: tuple[str, ...]  # which elements are dropped if nothing below them is used; empty: all elements
    drops_collnet_adapters: bool  # if CollNet is off, adapters are dropped that do collectives according to the file
    # Adapters that do collectives have no rail in the file, and NCCL reads 0 for all of them (sic)
    collnet_is_one_rail: bool


@dataclass(frozen=True, slots=True, eq=False)
class CpuLinks:
    """Bandwidths of links between NUMA nodes, 1e9 bytes per second, by the processors' vendor."""

    arm_gbs: float
    power_gbs: float
    zhaoxin_gbs: float
    yongfeng_gbs: float
    amd_gbs: float
    # For these processor families, in NCCL's numbering, instead of ``amd_gbs``
    amd_family_gbs: tuple[tuple[int, float], ...]
    intel_gbs: float
    intel_model_gbs: tuple[tuple[int, float], ...]  # for family 6, from each of these models on, the newest model first


@dataclass(frozen=True, slots=True, eq=False)
class Devices:
    """Rules for making a system graph from the topology XML."""

    # The beginning of a PCI class, and the kind of such a device; any other device is a switch
    pci_classes: tuple[tuple[str, str], ...]
    nvlink_gbs: tuple[tuple[int, float], ...]  # from each of these compute capabilities on, the newest first
    nvlink_exactly_gbs: tuple[tuple[int, float], ...]  # for exactly one compute capability; this takes precedence
    # Ranges of compute capabilities, each from first to last, that NCCL treats as Rubin
    rubin: tuple[tuple[int, int], ...]
    c2c: Literal["NVL", "C2C"]  # the path type of a chip-to-chip link
    ports_share_nic: bool  # the functions of one PCI device count as one adapter
    gpu_and_rank_apart: bool  # the GPU and the rank on it are two devices of the graph
    # Two levels of switches that NCCL merges into one: device words of the upper and the lower level
    flattened: tuple[tuple[int, int], ...]
    flattened_by_equal_device: bool  # instead, a lower-level switch is recognised by having the same device word
    flattened_goes_on_at: int  # the number of the switch at which NCCL continues after it has merged one
    cpu_above: CpuAbove  # how NCCL looks for the CPU of a GPU; every way except "upwards" may loop for ever
    cpu_links: CpuLinks

    def is_rubin(self, comp_cap: int) -> bool:
        """Whether NCCL treats a compute capability (107 for 10.7) as Rubin."""
        return any(first <= comp_cap <= last for first, last in self.rubin)


@dataclass(frozen=True, slots=True, eq=False)
class Routing:
    """Rules for finding paths between devices."""

    prefer: Literal["wider", "nearer_type"]
    reverse_of_any_type: bool  # the way back may use a link of another type
    unreached: Literal["disconnected", "disconnected_for_others", "local"]
    cpu_of_gpu: Literal["first_of_fewest_hops", "fewest_hops", "widest"]
    p2p_level: Literal["PXB_but_two_on_amd", "SYS_but_on_intel_arm_zhaoxin"]
    # Whether the hosts of an NVLink domain are always joined, or only if NCCL_P2P_LEVEL allows their path
    hosts_joined: Literal["always", "by_level"]
    # NCCL may treat an NVLink domain as several nodes; otherwise libnccl crashes on such a domain
    domains_fall_apart: bool
    # Pairs for which NVML denies peer-to-peer are led through a CPU, unless NCCL_IGNORE_DISABLED_P2P is set
    disabled_p2p_is_diverted: bool
    p2c: Literal["none", "of_phb_paths", "of_all_adapters", "of_local_adapters"]
    joined_p2c: bool  # a path through a CPU has type P2C if one half is C2C and the other half PHB
    pxn_c2c: bool | None  # the default of NCCL_PXN_C2C; None: the release has no such variable
    pxn_instead_of: Literal["farther_than_pxb", "farther_than_relay", "farther_than_pxn"]
    pxn_needs_gpu_direct: bool
    # Only paths nearer than PHB are led through the CPU where GPUDirect RDMA is not possible
    gpu_direct_below_phb_only: bool
    gpu_direct_c2c: Literal["none", "of_phb_paths", "of_p2c_paths", "as_level"]
    gpu_direct_c2c_default: bool  # the default of NCCL_NET_GDR_C2C
    gpu_direct_read_on_ampere: bool  # from Ampere on, adapters may also read GPU memory without NVLink
    local_nets: Literal["by_masks", "mirrored_of_any_gpu", "mirrored", "mirrored_modulo_gpus", "adapter_by_adapter"]
    nets_policy: bool  # the release has NCCL_NETDEVS_POLICY
    nets_removed_on_one_node: bool
    # The bandwidth of adapters that the tuning model uses
    net_gbs: Literal["unknown", "slowest_adapter", "slowest_path_to_own"]


@dataclass(frozen=True, slots=True, eq=False)
class Tries:
    """The limits of the search: how many GPUs it may try."""

    all: int  # for one graph
    one: int  # for one set of parameters
    same_channels: int
    pci_order: int


@dataclass(frozen=True, slots=True, eq=False)
class ChannelRules:
    """Rules for laying channels one after the other."""

    connections_limit_nets: bool  # an adapter has no more channels than it allows connections
    trees_need_way_back: bool  # in trees, the path back has to be of a type as near as the path's
    # What happens if no path joins two devices; "refused": only if one of them is the NVSwitch
    disconnected: Literal["followed", "not_followed", "refused"]
    no_hops_succeed: bool  # a path without links needs no bandwidth and may have any type
    reverse_needs_type: bool  # traffic in the other direction takes a link of the same type
    only_power_pays_nvlinks: bool  # an NVLink into a CPU takes bandwidth in both directions only on POWER
    nvls_heads: Literal[
        "none", "by_number_of_net", "of_net_by_channel", "of_first_net", "distinct_losing_nets", "distinct"
    ]
    nets_rotate: bool  # each channel begins with the next adapter
    nets: Literal["by_type_shuffled", "own_first"]
    # A channel that does not cross adapters stays on one rail, and every channel on one plane, if these are known
    rails: bool
    policy_limits_nets: bool  # NCCL_NETDEVS_POLICY=MAX:n also limits the adapters that belong to no GPU
    # NCCL_MNNVL_SCATTER_NETS_ENABLE exists: in an NVLink domain, adapters are tried one of each GPU in turn
    nets_scatter: bool
    rail_per_host: (
        # NCCL_MNNVL_RAIL_PER_HOST exists: adapters of several hosts may have the same rail, depending on their PCI
        # device
        bool
    )
    nets_limit: bool  # NCCL looks at no more adapters than the largest number of channels
    replay: Literal["always", "if_channels_are_alike"]
    pci_order_first: Literal["always", "without_nvswitch"]
    starts: Literal["widest_unused_first", "widest_in_turn", "widest_reached_in_turn", "nearest", "own_then_nearest"]
    # A channel leaves through a port with the number of the one it entered by, even if it crosses adapters
    ports_apart: bool
    # Which odd channels go back through the adapters of the even ones
    alternate: Literal["none", "any_pattern", "rings"]
    # Whether neighbours in number are tried for GPUs at an NVSwitch: never, first, or only these
    neighbours: Literal["none", "first", "only"]
    compare_nvls: Literal["bandwidth", "more_channels", "more_channels_or_bandwidth"]
    handicap_of_crossing: bool  # channels that cross adapters have to be better by 15 %


@dataclass(frozen=True, slots=True, eq=False)
class LoopRules:
    """Rules for the order of the searches that are tried one after the other."""

    types: Literal["fixed", "of_the_machine"]  # the nearest and the farthest path types that are tried
    tries_disconnected: bool
    any_adapter_before_hopper: bool  # before Hopper, adapters of any distance (SYS) may be used
    two_rings_on_split_nvlinks: bool
    total_bounds_start: bool  # the bandwidth of all channels together limits the bandwidth with which the search starts
    one_gpu_unbounded: bool  # one GPU has no limit, because of a division by zero (sic)
    # On one node, the search of NVLS starts with a GPU's bandwidth divided by the number of GPUs
    nvls_shares_start: bool
    direct_graph: bool  # NCCL searches a graph of its own for CollNet direct
    nvls_heads_limited: bool  # NVLS has at most as many channels as GPUs
    most_nvls_heads: int | None
    most_direct_heads: int | None
    gpus_without_nvls: int  # NVLS is not searched for this number of GPUs or fewer
    # That number counts the GPUs of the NVLink domain, if NCCL treats the domain as several nodes
    nvls_counts_domain: bool
    same_channels_on_amd: bool  # between AMD sockets, all channels have to be the same
    simpler_trees: bool
    split_trees_become_simple: bool
    forced_crossing: Literal["kept", "tried_first"]  # what NCCL does first if NCCL_CROSS_NIC is 1
    cross_nic: int  # what NCCL tries if NCCL_CROSS_NIC is 2
    cross_nic_of: tuple[str, ...]  # the patterns for which ``cross_nic`` applies
    duplicate: Literal["at_the_end_by_generation", "at_the_end", "before_raising"]
    raised: Literal["not_rings", "all"]
    fallback_nets: bool  # the channel that NCCL lays if the search finds none has adapters


@dataclass(frozen=True, slots=True, eq=False)
class Dump:
    """The form in which NCCL writes graphs to a file (NCCL_GRAPH_DUMP_FILE)."""

    graphs: tuple[str, ...]  # names of the graphs, in the order of the file
    ids: tuple[int, ...]  # the ids of these graphs in the file
    hexadecimal: bool  # numbers of devices are hexadecimal
    ranks: bool  # each GPU has its rank beside its number
    nvls_heads_only: bool


@dataclass(frozen=True, slots=True, eq=False)
class Search:
    """The table ``[search]`` of a release's file: how NCCL searches its graphs."""

    reading: XmlReading
    merging: Merging | None  # None: the release does not merge adapters
    # When NCCL's InfiniBand network merges two ports of one device into one adapter, before NCCL sees them: always, or
    # only if all adapters have the same number of ports.
    ports_merged: Literal["never", "always", "where_all_alike"]
    devices: Devices
    routing: Routing
    channels: ChannelRules
    loop: LoopRules
    tries: Tries
    dump: Dump
    intra_gbs: Steps  # the bandwidths that are tried for a channel on one node, by compute capability
    inter_gbs: Steps  # the same between nodes
