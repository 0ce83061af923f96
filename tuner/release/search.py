"""Records of NCCL's topology search in a release's file: constants and named rules, table ``[search]``.

``tuner.graphs`` implements what the names stand for.
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

    adapters: Literal["every", "several"]  # whether those that nothing is merged with become virtual ones, too
    most: int  # in one
    levels: tuple[str, ...]  # that NCCL_NET_MERGE_LEVEL may name
    by_rail: (
        bool  # NCCL_NET_MERGE_POLICY=RAIL: of those near each other only adapters that NCCL_IB_HCA puts on one rail
    )
    failure: Literal["is_an_error", "is_tried_apart"]  # where the network refuses
    below_pci_devices: bool  # a virtual adapter goes below the PCI device above what its adapters share, if any
    new_devices_below: tuple[Literal["pci", "bridge", "cpu"], ...]  # it gets a PCI device of its own there
    widened: Literal["none", "adapters", "virtual_adapter"]  # whose links get the width of all
    refuses_sockets: bool  # adapters of different ones; else what is merged of them is lost
    collnet_keeps: bool  # adapters that do collectives keep their PCI devices
    leaks: bool  # a process's later communicators have the adapters, too, that virtual ones are made of (sic)


@dataclass(frozen=True, slots=True, eq=False)
class XmlReading:
    """Rules by which the XML is read, before a system graph is made of it."""

    own_gpu_only: bool  # a rank marks its own GPU, and the XMLs of a host's ranks are fused; else it marks all
    unread: tuple[str, ...]  # elements that this release's parser does not know yet
    trimmed: tuple[str, ...]  # elements that are dropped where nothing below them is used; empty: all
    drops_collnet_adapters: bool  # adapters that the file says do collectives, where CollNet is off
    collnet_is_one_rail: bool  # adapters that do collectives have no rail of their own, and NCCL takes 0 for it (sic)


@dataclass(frozen=True, slots=True, eq=False)
class CpuLinks:
    """Links between NUMA nodes, 1e9 bytes per second."""

    arm_gbs: float
    power_gbs: float
    zhaoxin_gbs: float
    yongfeng_gbs: float
    amd_gbs: float
    amd_family_gbs: tuple[tuple[int, float], ...]  # of these families, as NCCL counts them, instead
    intel_gbs: float
    intel_model_gbs: tuple[tuple[int, float], ...]  # of family 6 from these models on, the newest first


@dataclass(frozen=True, slots=True, eq=False)
class Devices:
    """Rules by which a system graph is made of the XML."""

    pci_classes: tuple[tuple[str, str], ...]  # the beginning of a class, and what such a device is; else a switch
    nvlink_gbs: tuple[tuple[int, float], ...]  # from a compute capability on, the newest first
    nvlink_exactly_gbs: tuple[tuple[int, float], ...]  # of one compute capability, which goes first
    rubin: tuple[tuple[int, int], ...]  # compute capabilities that are taken for Rubin's, each from first to last
    c2c: Literal["NVL", "C2C"]  # the type of a chip-to-chip link
    ports_share_nic: bool  # the functions of a PCI device are one adapter
    gpu_and_rank_apart: bool  # the GPU and the rank on it are two devices
    flattened: tuple[tuple[int, int], ...]  # switches of two levels that are made one: upper and lower level
    flattened_by_equal_device: bool  # instead: the lower level has the same device word
    flattened_goes_on_at: int  # the number of the switch that is looked at after one was made one
    cpu_above: CpuAbove  # how the CPU of a GPU is looked for; all but upwards may go in circles
    cpu_links: CpuLinks

    def is_rubin(self, comp_cap: int) -> bool:
        """Whether a compute capability (107 for 10.7) is taken for Rubin's."""
        return any(first <= comp_cap <= last for first, last in self.rubin)


@dataclass(frozen=True, slots=True, eq=False)
class Routing:
    """Rules by which paths are found."""

    prefer: Literal["wider", "nearer_type"]
    reverse_of_any_type: bool  # the way back may take a link of another type
    unreached: Literal["disconnected", "disconnected_for_others", "local"]
    cpu_of_gpu: Literal["first_of_fewest_hops", "fewest_hops", "widest"]
    p2p_level: Literal["PXB_but_two_on_amd", "SYS_but_on_intel_arm_zhaoxin"]
    hosts_joined: Literal["always", "by_level"]  # of a NVLink domain: whatever NCCL_P2P_LEVEL says, or as that says
    domains_fall_apart: bool  # a NVLink domain may be several nodes; else libnccl crashes there
    disabled_p2p_is_diverted: bool  # what NVML says, without NCCL_IGNORE_DISABLED_P2P
    p2c: Literal["none", "of_phb_paths", "of_all_adapters", "of_local_adapters"]
    joined_p2c: bool  # a path through a CPU is P2C where one half is C2C and the other PHB
    pxn_c2c: bool | None  # default of NCCL_PXN_C2C; None: there is no such variable
    pxn_instead_of: Literal["farther_than_pxb", "farther_than_relay", "farther_than_pxn"]
    pxn_needs_gpu_direct: bool
    gpu_direct_below_phb_only: bool  # no other path is diverted through the CPU
    gpu_direct_c2c: Literal["none", "of_phb_paths", "of_p2c_paths", "as_level"]
    gpu_direct_c2c_default: bool  # of NCCL_NET_GDR_C2C
    gpu_direct_read_on_ampere: bool  # without NVLink, too
    local_nets: Literal["by_masks", "mirrored_of_any_gpu", "mirrored", "mirrored_modulo_gpus", "adapter_by_adapter"]
    nets_policy: bool  # NCCL_NETDEVS_POLICY
    nets_removed_on_one_node: bool
    net_gbs: Literal["unknown", "slowest_adapter", "slowest_path_to_own"]  # what tuning knows of adapters


@dataclass(frozen=True, slots=True, eq=False)
class Tries:
    """Amount of search, in GPUs tried."""

    all: int  # for one graph
    one: int  # with one set of parameters
    same_channels: int
    pci_order: int


@dataclass(frozen=True, slots=True, eq=False)
class ChannelRules:
    """Rules by which channels are laid, one after the other."""

    connections_limit_nets: bool  # an adapter has no more channels than connections
    trees_need_way_back: bool  # the path back has to be as near as the path
    disconnected: Literal["followed", "not_followed", "refused"]  # where nothing joins; "refused": only the NVSwitch
    no_hops_succeed: bool  # a path without links needs no bandwidth and has any type
    reverse_needs_type: bool  # traffic the other way takes a link of the same type
    only_power_pays_nvlinks: bool  # an NVLink into a CPU takes both directions, on POWER alone
    nvls_heads: Literal[
        "none", "by_number_of_net", "of_net_by_channel", "of_first_net", "distinct_losing_nets", "distinct"
    ]
    nets_rotate: bool  # each channel begins with the next adapter
    nets: Literal["by_type_shuffled", "own_first"]
    rails: bool  # a channel that does not cross keeps to a rail, and every channel to a plane, where these are known
    policy_limits_nets: bool  # NCCL_NETDEVS_POLICY=MAX:n also limits the adapters that are no GPU's own
    nets_scatter: bool  # NCCL_MNNVL_SCATTER_NETS_ENABLE: in a NVLink domain one of each GPU in turn
    rail_per_host: (
        bool  # NCCL_MNNVL_RAIL_PER_HOST: adapters of several hosts may have the same rail by their PCI device
    )
    nets_limit: bool  # no more adapters than channels are looked at
    replay: Literal["always", "if_channels_are_alike"]
    pci_order_first: Literal["always", "without_nvswitch"]
    starts: Literal["widest_unused_first", "widest_in_turn", "widest_reached_in_turn", "nearest", "own_then_nearest"]
    ports_apart: bool  # a channel leaves through the port by whose number it entered, though it crosses adapters
    alternate: Literal["none", "any_pattern", "rings"]  # odd channels go back through the adapters of even ones
    neighbours: Literal["none", "first", "only"]  # of GPUs at an NVSwitch
    compare_nvls: Literal["bandwidth", "more_channels", "more_channels_or_bandwidth"]
    handicap_of_crossing: bool  # channels that cross adapters have to be better by 15 %


@dataclass(frozen=True, slots=True, eq=False)
class LoopRules:
    """Rules for the searches that are tried, one after the other."""

    types: Literal["fixed", "of_the_machine"]  # the nearest and farthest types that are tried
    tries_disconnected: bool
    any_adapter_before_hopper: bool  # the farthest type of adapters is SYS
    two_rings_on_split_nvlinks: bool
    total_bounds_start: bool  # all channels together bound the first bandwidth
    one_gpu_unbounded: bool  # a division by zero (sic)
    nvls_shares_start: bool  # the first bandwidth of NVLS on one node is that of a GPU divided by the GPUs
    direct_graph: bool  # CollNet direct is searched for itself
    nvls_heads_limited: bool  # NVLS has no more channels than GPUs
    most_nvls_heads: int | None
    most_direct_heads: int | None
    gpus_without_nvls: int  # and fewer
    nvls_counts_domain: bool  # these are those of the NVLink domain, where NCCL takes that for several nodes
    same_channels_on_amd: bool  # between sockets of AMD no other channels are tried
    simpler_trees: bool
    split_trees_become_simple: bool
    forced_crossing: Literal["kept", "tried_first"]  # where NCCL_CROSS_NIC is 1
    cross_nic: int  # what is tried where NCCL_CROSS_NIC is 2
    cross_nic_of: tuple[str, ...]  # patterns
    duplicate: Literal["at_the_end_by_generation", "at_the_end", "before_raising"]
    raised: Literal["not_rings", "all"]
    fallback_nets: bool  # the channel that is laid where nothing is found has adapters


@dataclass(frozen=True, slots=True, eq=False)
class Dump:
    """The form in which NCCL writes graphs to a file."""

    graphs: tuple[str, ...]  # in their order
    ids: tuple[int, ...]  # of these
    hexadecimal: bool  # the numbers of devices
    ranks: bool  # beside the numbers of GPUs
    nvls_heads_only: bool


@dataclass(frozen=True, slots=True, eq=False)
class Search:
    """The table ``[search]``."""

    reading: XmlReading
    merging: Merging | None  # of releases that merge adapters
    # NCCL's InfiniBand network makes one adapter of two ports of one device before NCCL sees them, in every case or
    # where all adapters have as many.
    ports_merged: Literal["never", "always", "where_all_alike"]
    devices: Devices
    routing: Routing
    channels: ChannelRules
    loop: LoopRules
    tries: Tries
    dump: Dump
    intra_gbs: Steps  # bandwidths of a channel that are tried on one node, by compute capability
    inter_gbs: Steps  # and between nodes
