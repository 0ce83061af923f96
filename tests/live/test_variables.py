"""Variables a user may set: those without effect on the choice have none in libnccl, the others the emulated one."""

from contextlib import nullcontext
from dataclasses import replace
from itertools import combinations

import pytest

from tests.scripts.add_release import variables_in
from tests.scripts.record_defaults import asked
from tests.support.available_releases import HERE
from tests.support.draws import Draws
from tuner import release
from tuner.base.errors import BadInput, NcclFails, OracleFailed
from tuner.base.names import Buffers, Collective, DataType, Op
from tuner.emulator.group import Operation, plan
from tuner.emulator.request import Request
from tuner.emulator.selection import Selection
from tuner.oracle import library
from tuner.oracle.api import Oracle
from tuner.oracle.conformance.check import ALL_COLLECTIVES, check
from tuner.oracle.process import OWN_VARIABLES
from tuner.release.variables import defaults, in_library
from tuner.scenario import Scenario

# A value unlike NCCL's default for each.
TRIED = {
    "NCCL_DIAGNOSTICS_ECC_THRESHOLD": "1",
    "NCCL_DIAGNOSTICS_IB_BW_TIMEOUT": "1",
    "NCCL_GDAKI_FORCE_MCST": "1",
    "NCCL_GDAKI_USE_RELIABLE_DB": "1",
    "NCCL_GDRCOPY_USE_INTERNAL_DMABUF": "1",
    "NCCL_GIN_COUNTER_POOL_SIZE": "1",
    "NCCL_GIN_ERROR_QUERY_SEC": "1",
    "NCCL_GIN_EXCLUSIVE_CONTEXTS": "1",
    "NCCL_GIN_GDAKI_LAG_AWARE_DISABLE": "1",
    "NCCL_GIN_GDAKI_MAX_DEST_RD_ATOMIC": "1",
    "NCCL_GIN_GDAKI_MAX_QP_RD_ATOMIC": "1",
    "NCCL_GIN_GDAKI_NIC_HANDLER": "1",
    "NCCL_GIN_GDAKI_QP_DEPTH": "1",
    "NCCL_GIN_IB_OOO_OPT": "1",
    "NCCL_GIN_IB_TC": "1",
    "NCCL_GIN_NCONNECTIONS": "1",
    "NCCL_GIN_NCONTEXTS": "1",
    "NCCL_GIN_PROXY_NTHREADS": "1",
    "NCCL_GIN_PROXY_POLL_BATCH": "1",
    "NCCL_GIN_PROXY_QUEUE_SIZE": "1",
    "NCCL_GIN_SIGNAL_POOL_SIZE": "1",
    "NCCL_IB_DATA_DIRECT": "1",
    "NCCL_IB_DEVICE_PCI_ORDER": "1",
    "NCCL_IB_EVENT_BASED_LB": "1",
    "NCCL_IB_EVENT_BASED_LB_REMOTE": "1",
    "NCCL_IB_PKEY_VALUE": "1",
    "NCCL_IB_QUERY_PORT_SPEED": "1",
    "NCCL_IB_RESILIENCY_PORT_FAILOVER": "1",
    "NCCL_IB_RESILIENCY_PORT_FAILOVER_MAX_ATTEMPTS": "1",
    "NCCL_IB_RESILIENCY_PORT_FAILOVER_PROBE_DELAY": "1",
    "NCCL_IB_RESILIENCY_PORT_RECOVERY": "1",
    "NCCL_IB_RESILIENCY_PORT_RECOVERY_ACK_TIMEOUT": "1",
    "NCCL_IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_BATCH_INTERVAL": "1",
    "NCCL_IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_BATCH_SIZE": "1",
    "NCCL_IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_SEQUENCE_SIZE": "1",
    "NCCL_IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_TIMEOUT": "1",
    "NCCL_IB_RESILIENCY_PORT_RECOVERY_ATTEMPTS_MAX": "1",
    "NCCL_IB_RESILIENCY_PORT_RECOVERY_START_DELAY": "1",
    "NCCL_IB_SUBNET_AWARE_ROUTING": "1",
    "NCCL_IB_SUBNET_PREFIX_LEN": "1",
    "NCCL_IB_WQE_LATENCY_REPORT": "1",
    "NCCL_IB_WQE_LATENCY_THRESHOLD_NS": "1",
    "NCCL_IGNORE_COLLNET_MISMATCH": "1",
    "NCCL_IGNORE_NET_MISMATCH": "1",
    "NCCL_NO_CACHE": "1",
    "NCCL_NUM_RMA_INT_CTX": "1",
    "NCCL_PARAM_DUMP_ALL": "1",
    "NCCL_PROGRESS_COUNTERS": "1",
    "NCCL_PROGRESS_COUNTER_MONITOR_POLL_MS": "1",
    "NCCL_PROGRESS_COUNTER_MONITOR_STALE_MS": "1",
    "NCCL_PROGRESS_COUNTER_MONITOR_STALE_WARN_SEC": "1",
    "NCCL_RMA_DISABLE": "1",
    "NCCL_RMA_EAGER_INIT": "1",
    "NCCL_RMA_IB_WR_BATCHSIZE": "1",
    "NCCL_RMA_MULTI_CTX_THRESHOLD": "1",
    "NCCL_RMA_PROXY_QUEUE_SIZE": "1",
    "NCCL_RUN_DIAGNOSTICS": "1",
    "NCCL_RUN_RAS_DIAGNOSTICS": "1",
    "NCCL_SHADOW_MEMPOOL_MAX_SIZE": "1",
    "NCCL_DMABUF_ENABLE": "0",
    "NCCL_MNNVL_CLIQUE_SIZE": "2",
    "NCCL_ALLGATHERV_ENABLE": "0",
    "NCCL_TOPO_SPLIT_MLOPART": "0",
    "NCCL_NET_GDR_MLOPART": "1",
    "NCCL_MLOPART_RDMA_ENABLE": "1",
    "NCCL_DEBUG_LEVELS": "WARN",
    "NCCL_SOCKET_MAGIC": "7",
    "NCCL_IB_SORT_MERGE_NICS": "1",
    "NCCL_IB_RAIL_POLICY": "1",
    "NCCL_DEBUG_TIMESTAMP_FORMAT": "%T",
    "NCCL_DEBUG_TIMESTAMP_LEVELS": "INFO",
    "NCCL_WARN_ENABLE_DEBUG_INFO": "1",
    "NCCL_SET_THREAD_NAME": "1",
    "NCCL_NVTX_DISABLE": "1",
    "NCCL_PROXY_PROFILE": "/dev/null",
    "NCCL_PROXY_DUMP_SIGNAL": "10",
    "NCCL_RMA_PROXY_DUMP_SIGNAL": "10",
    "NCCL_RAS_ADDR": "localhost:28099",
    "NCCL_RAS_TIMEOUT_FACTOR": "2",
    "NCCL_REPORT_CONNECT_PROGRESS": "1",
    "NCCL_GRAPH_DUMP_FILE_RANK": "1",
    "NCCL_TOPO_DUMP_FILE_RANK": "1",
    "NCCL_SOCKET_FAMILY": "AF_INET",
    "NCCL_SOCKET_RETRY_CNT": "35",
    "NCCL_SOCKET_RETRY_SLEEP_MSEC": "90",
    "NCCL_SOCKET_POLL_TIMEOUT_MSEC": "1",
    "NCCL_UID_STAGGER_RATE": "6000",
    "NCCL_UID_STAGGER_THRESHOLD": "200",
    "NCCL_OOB_NET_IFNAME": "lo",
    "NCCL_CONNECT_ROUND_MAX_PEERS": "64",
    "NCCL_IPC_USE_ABSTRACT_SOCKET": "0",
    "NCCL_IB_TIMEOUT": "22",
    "NCCL_IB_RETRY_CNT": "6",
    "NCCL_IB_GID_INDEX": "3",
    "NCCL_IB_TC": "106",
    "NCCL_IB_SL": "1",
    "NCCL_IB_PKEY": "1",
    "NCCL_IB_FIFO_TC": "84",
    "NCCL_IB_AR_THRESHOLD": "0",
    "NCCL_IB_QPS_PER_CONNECTION": "4",
    "NCCL_IB_SPLIT_DATA_ON_QPS": "1",
    "NCCL_IB_PCI_RELAXED_ORDERING": "1",
    "NCCL_IB_ADAPTIVE_ROUTING": "1",
    "NCCL_IB_USE_INLINE": "1",
    "NCCL_IB_ROCE_VERSION_NUM": "1",
    "NCCL_IB_ADDR_FAMILY": "AF_INET6",
    "NCCL_IB_ADDR_RANGE": "::/0",
    "NCCL_IB_RETURN_ASYNC_EVENTS": "0",
    "NCCL_IB_ECE_ENABLE": "0",
    "NCCL_IB_ROUTABLE_FLID_GID_INDEX": "2",
    "NCCL_IB_WARN_RAIL_LOCAL": "1",
    "NCCL_IB_OOO_RQ": "1",
    "NCCL_IB_MQP_RETRY_ALL": "1",
    "NCCL_IB_MQP_RETRY_CNT": "30",
    "NCCL_IB_MQP_RETRY_SLEEP_MSEC": "90",
    "NCCL_IB_PREPOST_RECEIVE_WORK_REQUESTS": "0",
    "NCCL_IB_RECEIVER_SIDE_MATCHING_SCHEME": "0",
    "NCCL_GDR_FLUSH_DISABLE": "1",
    "NCCL_NET_FORCE_FLUSH": "1",
    "NCCL_NET_SHARED_BUFFERS": "0",
    "NCCL_NET_SHARED_COMMS": "0",
    "NCCL_NET_OPTIONAL_RECV_COMPLETION": "0",
    "NCCL_GDRCOPY_FIFO_ENABLE": "0",
    "NCCL_GDRCOPY_SYNC_ENABLE": "0",
    "NCCL_SOCKET_NTHREADS": "4",
    "NCCL_NSOCKS_PERTHREAD": "4",
    "NCCL_SOCKET_INLINE": "256",
    "NCCL_SOCKET_MIN_TASKSIZE": "32768",
    "NCCL_SOCKET_RCVBUF": "1048576",
    "NCCL_SOCKET_SNDBUF": "1048576",
    "NCCL_PROXY_APPEND_BATCH_SIZE": "8",
    "NCCL_PROGRESS_APPENDOP_FREQ": "4",
    "NCCL_PROXY_CPUSET": "0",
    "NCCL_BUFFSIZE": "8388608",
    "NCCL_LL_BUFFSIZE": "1048576",
    "NCCL_LL128_BUFFSIZE": "9830400",
    "NCCL_CHUNK_SIZE": "65536",
    "NCCL_NVLS_CHUNKSIZE": "65536",
    "NCCL_NVLSTREE_MAX_CHUNKSIZE": "32768",
    "NCCL_SHM_LOCALITY": "1",
    "NCCL_SHM_MEMCPY_MODE": "2",
    "NCCL_SHM_USE_CUDA_MEMCPY": "1",
    "NCCL_P2P_READ_ENABLE": "1",
    "NCCL_P2P_DIRECT_DISABLE": "1",
    "NCCL_CUMEM_HOST_ENABLE": "0",
    "NCCL_WORK_FIFO_BYTES": "2097152",
    "NCCL_WORK_FIFO_DEPTH": "32768",
    "NCCL_MIN_P2P_NCHANNELS": "4",
    "NCCL_MAX_P2P_NCHANNELS": "8",
    "NCCL_NCHANNELS_PER_NET_PEER": "4",
    "NCCL_P2P_LL_THRESHOLD": "0",
    "NCCL_P2P_NET_CHUNKSIZE": "262144",
    "NCCL_P2P_PCI_CHUNKSIZE": "262144",
    "NCCL_P2P_NVL_CHUNKSIZE": "1048576",
    "NCCL_P2P_EPOCH_ENABLE": "0",
    "NCCL_P2P_MAX_PEERS": "4",
    "NCCL_P2P_PER_CHANNEL_NET_BW": "20",
    "NCCL_P2P_SCHEDULE_GROUP_SIZE": "4",
    "NCCL_ALLOC_P2P_NET_LL_BUFFERS": "1",
    "NCCL_NVB_PRECONNECT": "0",
    "NCCL_LAUNCH_MODE": "GROUP",
    "NCCL_LAUNCH_ORDER_IMPLICIT": "1",
    "NCCL_LAUNCH_RACE_FATAL": "0",
    "NCCL_GROUP_CUDA_STREAM": "0",
    "NCCL_GRAPH_HELPER_DISABLE": "1",
    "NCCL_GRAPH_MIXING_SUPPORT": "0",
    "NCCL_GRAPH_STREAM_ORDERING": "0",
    "NCCL_CGA_CLUSTER_SIZE": "2",
    "NCCL_MEM_SYNC_DOMAIN": "0",
    "NCCL_L1_SHARED_MEMORY_CARVEOUT": "50",
    "NCCL_NVLINK_UTIL_CENTRIC_SCHED_ENABLE": "1",
    "NCCL_SET_STACK_SIZE": "1",
    "NCCL_SET_CPU_STACK_SIZE": "0",
    "NCCL_CREATE_THREAD_CONTEXT": "1",
    "NCCL_CHECK_POINTERS": "1",
    "NCCL_CHECK_MODE": "DEBUG_LOCAL",
    "NCCL_COMM_BLOCKING": "1",
    "NCCL_COMM_SPLIT_SHARE_RESOURCES": "1",
    "NCCL_COMM_SHRINK_SHARE_RESOURCES": "1",
    "NCCL_ENABLE_VERSION_CHECK": "0",
    "NCCL_DISABLE_MEM_MANAGER": "1",
    "NCCL_UNPACK_DOUBLE_NCHANNELS": "0",
}
REGISTERED_BUFFERS = {
    "NCCL_CUMEM_ENABLE": "0",
    "NCCL_WIN_ENABLE": "0",
    "NCCL_WIN_STRIDE": "1",
    "NCCL_LEGACY_CUDA_REGISTER": "1",
    "NCCL_SINGLE_PROC_MEM_REG_ENABLE": "1",
    "NCCL_MULTI_SEGMENT_REGISTER": "0",
    "NCCL_ELASTIC_BUFFER_REGISTER": "0",
    "NCCL_P2P_USE_CUDA_MEMCPY": "1",
    "NCCL_NVLS_UB_SIZE": "0",
    "NCCL_SYM_CTAS": "4",
    "NCCL_SYM_CE_THRESHOLD": "1",
    "NCCL_SYM_TMA_ENABLE": "1",
    "NCCL_SYM_GIN_KERNELS_ENABLE": "0",
    "NCCL_SYM_RS_GIN_CHUNK_SIZE": "1024",
    "NCCL_GIN_ENABLE": "0",
    "NCCL_GIN_TYPE": "0",
    "NCCL_NUM_RMA_CTX": "0",
    "NCCL_CE_COLL_AG_MULTICAST_THRESHOLD": "65536",
    "NCCL_CE_CHUNK_SIZE": "65536",
    "NCCL_CE_INTRA_GPU_MEMCPY_ENABLE": "1",
    "NCCL_CFT_ENABLE": "1",
    "NCCL_HIER_CE_COLL_NUM_CTX": "2",
    "NCCL_HIER_CE_COLL_AG_RAIL_RING_ENABLE": "1",
    "NCCL_SYM_REUSE_SYSMEM_HANDLES": "1",
    "NCCL_P2P_PER_CHANNEL_REG_NET_BW": "20",
    "NCCL_GIN_PLUGIN": "none",
    "NCCL_DEV_API_JIT": "1",
}
# Without windows the first asks of no release, and the second of releases that do not read it, for a symmetric kernel.
SYMMETRIC_KERNELS = {"NCCL_SYM_KERNEL": "^", "NCCL_SYM_NOWIN_ENABLE": "0"}
# What the simulated machine cannot run with: other ways to meet, connections that are not made here, a missing library.
UNTRIED = {
    "NCCL_HOSTID",  # the simulated nodes are one host
    "NCCL_IBVERBS_LIB",  # of another network
    "NCCL_IB_MERGE_VFS",
    "NCCL_RMA_PLUGIN",
    "NCCL_COMM_ID",
    "NCCL_OOB_NET_ENABLE",
    "NCCL_RUNTIME_CONNECT",
    "NCCL_P2P_PXN_LEVEL",
    "NCCL_GDRCOPY_ENABLE",
    "NCCL_GDRCOPY_FLUSH_ENABLE",
}

EFFECTS: list[dict[str, str]] = [
    {"NCCL_ENQUEUE_REARCH_ENABLE": "1"},
    # With a network that offers GIN, 2.32.3 fails where arguments have no room for a symmetric kernel.
    {"NCCL_WORK_ARGS_BYTES": "208", "NCCL_GIN_TYPE": "0"},
    {"NCCL_WORK_ARGS_BYTES": "96", "NCCL_MIN_CTAS": "4", "NCCL_GIN_TYPE": "0"},
    # What NCCL keeps in an int wraps around: to 256, 6, 3, INT_MIN, 7.
    {"NCCL_NTHREADS": "4294967552"},
    {"NCCL_MIN_NRINGS": "-4294967290"},
    {"NCCL_MAX_CTAS": "4294967299"},
    {"NCCL_MAX_NCHANNELS": "2147483648"},
    {"NCCL_NVLS_NCHANNELS": "0x100000007", "NCCL_PAT_ENABLE": "4294967296"},
    # sscanf's numbers; products of threads and thresholds that overflow, with one channel and with many
    {"NCCL_THREAD_THRESHOLDS": "16,32 64"},
    {"NCCL_THREAD_THRESHOLDS": "+4 010\t0x8 2"},
    {"NCCL_THREAD_THRESHOLDS": "262144 1048576 131072 262144 1048576 131072", "NCCL_MIN_NCHANNELS": "24"},
    {"NCCL_THREAD_THRESHOLDS": "400000 99999999999 8 1048576 1666458331 4", "NCCL_MAX_NCHANNELS": "1"},
    # The fewest blocks of a call are more than the most; numbers that NCCL corrects
    {"NCCL_MIN_CTAS": "17", "NCCL_MAX_CTAS": "3"},
    {"NCCL_MIN_CTAS": "-5"},
    {"NCCL_NTHREADS": "100"},
    {"NCCL_MAX_NCHANNELS": "0", "NCCL_MIN_CTAS": "99"},
    {"NCCL_MAX_NCHANNELS": "many"},
    {"NCCL_MAX_NCHANNELS": "- 4"},
    {"NCCL_MAX_NCHANNELS": "0x", "NCCL_PAT_ENABLE": "on"},
]


def indifferent(name: str) -> set[str]:
    return {variable for names in release.load(name).environment.indifferent.values() for variable in names}


def test_what_reaches_registered_buffers_is_refused_with_them() -> None:
    assert set(release.load("2.28.9").environment.registered_buffers) == set(REGISTERED_BUFFERS)
    assert set(release.load("2.28.9").environment.symmetric_kernels) == set(SYMMETRIC_KERNELS)
    scenario = Scenario(nccl="2.28.9", machine="dgx-h100", nodes=1, environment={"NCCL_P2P_USE_CUDA_MEMCPY": "1"})
    selection = Selection(scenario.communicator())
    assert selection.pick(Request(Collective.AllReduce, DataType.float32, Op.sum), 1 << 20).channels[0] > 0
    for buffers in (Buffers.registered, Buffers.window):
        with pytest.raises(BadInput, match="NCCL_P2P_USE_CUDA_MEMCPY: only emulated on plain buffers"):
            selection.pick(Request(Collective.AllReduce, DataType.float32, Op.sum, buffers=buffers), 1 << 20)


@pytest.mark.parametrize(("name", "alone"), [("2.30.7", False), ("2.31.2", True), ("2.32.3", True)])
def test_a_planner_that_asks_for_each_call_of_a_group_alone_is_refused_for_groups(name: str, alone: bool) -> None:
    calls = [Operation(request, 1 << 20) for request in ALL_COLLECTIVES[:2]]
    for value, refused in (("1", alone), ("0", False)):
        asked = Scenario(name, 2, machine="dgx-h100", environment={"NCCL_ENQUEUE_REARCH_ENABLE": value})
        selection = Selection(asked.communicator())
        assert selection.pick(ALL_COLLECTIVES[0], 1 << 20).channels[0] > 0
        with pytest.raises(BadInput, match="each call of a group alone") if refused else nullcontext():
            plan(selection, calls)
        registered = replace(ALL_COLLECTIVES[0], buffers=Buffers.registered)
        with pytest.raises(BadInput, match="only emulated on plain buffers") if refused else nullcontext():
            selection.pick(registered, 1 << 20)


def test_every_variable_without_effect_is_tried() -> None:
    assert indifferent(release.names()[-1]) == set(TRIED) | UNTRIED | (OWN_VARIABLES & indifferent(release.names()[-1]))


@pytest.mark.each_choice
@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("name", HERE)
def test_what_has_no_effect_has_none(name: str, nodes: int) -> None:
    environment = {**TRIED, **REGISTERED_BUFFERS, **SYMMETRIC_KERNELS}
    report = check(Scenario(nccl=name, machine="dgx-h100", nodes=nodes, gpus_per_node=4, environment=environment))
    assert report.mismatches == ()
    assert report.compared["picks"] >= 5 * 60


@pytest.mark.each_choice
@pytest.mark.parametrize("settings", EFFECTS, ids=str)
@pytest.mark.parametrize("name", HERE)
def test_what_has_an_effect(name: str, settings: dict[str, str]) -> None:
    scenario = Scenario(nccl=name, machine="dgx-h100", nodes=2, gpus_per_node=2, environment=settings)
    selection = Selection(scenario.communicator())
    report = check(scenario, [request for request in ALL_COLLECTIVES if selection.usable(request)])
    assert report.mismatches == ()
    assert report.compared["picks"] >= 60


# What bounds channels, with values on both sides of each other's and of what the machines below have.
CHANNEL_BOUNDS = {
    "NCCL_MIN_CTAS": (1, 2, 5, 12, 24, 32, 40, 64),
    "NCCL_MAX_CTAS": (1, 2, 5, 12, 24, 32, 64),
    "NCCL_NVLS_NCHANNELS": (0, 1, 4, 8, 17, 24, 32, 40),
    "NCCL_MIN_NCHANNELS": (1, 5, 20, 32, 40, 64),
    "NCCL_MAX_NCHANNELS": (1, 3, 9, 16, 30, 64),
    "NCCL_MIN_NRINGS": (1, 7, 33),
    "NCCL_MAX_NRINGS": (1, 4, 18),
    "NCCL_WORK_ARGS_BYTES": (1000, 2000, 4096),
    "NCCL_NVLS_ENABLE": (0, 1),
}
BOUNDED = (("dgx-h100", 1, None), ("dgx-h100", 2, 4), ("dgx-b200", 1, None), ("dgx-b200", 2, 4), ("dgx-a100", 2, 2))


@pytest.mark.parametrize("name", HERE)
def test_pairs_of_variables_that_bound_channels(name: str, draws: Draws) -> None:
    random = draws.random(f"bounds of channels {name}")
    pairs = random.sample(list(combinations(CHANNEL_BOUNDS, 2)), k=12) * draws.times
    for pair in pairs:
        machine, nodes, gpus = random.choice(BOUNDED)
        settings = {variable: str(random.choice(CHANNEL_BOUNDS[variable])) for variable in pair}
        asked = Scenario(name, nodes, machine=machine, gpus_per_node=gpus, environment=settings)
        report = check(asked, sizes=[1 << power for power in range(6, 31, 3)], timeout_s=300)
        assert report.mismatches == (), f"{machine}, {nodes} nodes, {settings}"
        assert report.compared["channels"] > 20


def test_fewer_nvls_channels_than_the_fewest_blocks() -> None:
    settings = {"NCCL_NVLS_NCHANNELS": "8", "NCCL_MIN_CTAS": "32"}
    for name, channels in (("2.28.9", 32), ("2.30.7", 32), ("2.31.2", 8), ("2.32.3", 8)):
        communicator = Scenario(name, 1, machine="dgx-h100", environment=settings).communicator()
        asked = Selection(communicator).pick(Request(Collective.AllReduce, DataType.float32, Op.sum), [256 << 20])
        assert asked.channels.tolist() == [channels]


@pytest.mark.parametrize("asked", ["0", "-3"])
@pytest.mark.parametrize("name", HERE)
def test_no_blocks_at_all(name: str, asked: str) -> None:
    """Releases that take the number have no channel then, and crash."""
    scenario = Scenario(nccl=name, machine="dgx-h100", nodes=1, gpus_per_node=2, environment={"NCCL_MAX_CTAS": asked})
    if release.load(name).rules.ctas == "positive_only":
        assert check(scenario).mismatches == ()
        return
    with pytest.raises(BadInput, match=f"NCCL_MAX_CTAS={asked} leaves NCCL {name} without a channel"):
        scenario.communicator()


@pytest.mark.parametrize(("machine", "nodes"), [("ws-2x-a6000", 2), ("dgx-a100", 1)])
@pytest.mark.parametrize("name", HERE)
def test_sockets(name: str, machine: str, nodes: int) -> None:
    """The variables that say what the adapters show, and any network on one node, which NCCL drops there."""
    settings = {"NCCL_NET": "Socket", "NCCL_IB_DISABLE": "1", "NCCL_NET_PLUGIN": "none"}
    report = check(Scenario(nccl=name, machine=machine, nodes=nodes, gpus_per_node=2, environment=settings))
    assert report.mismatches == ()
    assert report.compared["tables"] >= 100


@pytest.mark.parametrize("settings", [{"NCCL_IB_DISABLE": "1"}, {"NCCL_NET": "Socket", "NCCL_IB_HCA": "none"}], ids=str)
@pytest.mark.parametrize("machine", ["dgx-h100", "oci-a100", "pcie-l40s"])
@pytest.mark.parametrize("name", HERE)
def test_sockets_in_place_of_adapters(name: str, machine: str, settings: dict[str, str]) -> None:
    """Its own network is off: NCCL takes the IP interfaces, which have no port and do not reach GPUs' memory."""
    asked = Scenario(nccl=name, machine=machine, nodes=2, gpus_per_node=4, environment=settings)
    nets = asked.resolve().kinds[0].topology.nets
    assert {(net.port, net.gpu_direct) for net in nets} == {(0, False)}
    report = check(asked)
    assert report.mismatches == ()
    assert report.compared["tables"] >= 100


@pytest.mark.parametrize(
    "settings",
    [{"NCCL_IB_DISABLE": "1", "NCCL_NET": "IB"}, {"NCCL_NET": "none"}, {"NCCL_NET_PLUGIN": "other"}],
    ids=str,
)
def test_a_network_that_is_not_there_is_refused(settings: dict[str, str]) -> None:
    with pytest.raises(BadInput, match=r"not emulated for NCCL 2\.28\.9|that NCCL_IB_DISABLE forbids"):
        Scenario("2.28.9", 2, machine="dgx-h100", environment=settings).communicator()


@pytest.mark.parametrize(("machine", "nodes"), [("dgx-a100", 1), ("pcie-l40s", 2)])
@pytest.mark.parametrize("name", HERE)
def test_multicast_that_no_gpu_has(name: str, machine: str, nodes: int) -> None:
    """NCCL_NVLS_ENABLE=1 does not ask the GPUs: NCCL searches in vain, and cells that are off have other latencies."""
    settings = {"NCCL_NVLS_ENABLE": "1"}
    report = check(Scenario(nccl=name, machine=machine, nodes=nodes, gpus_per_node=3, environment=settings))
    assert report.mismatches == ()
    assert report.compared["tables"] >= 200


@pytest.mark.parametrize("name", HERE)
def test_what_holds_no_call_is_refused(name: str) -> None:
    """NCCL returns an error up to 2.21, and later never returns."""
    known = release.load(name).environment.known
    tiny = {"NCCL_WORK_FIFO_DEPTH": "1"} if "NCCL_WORK_FIFO_DEPTH" in known else {"NCCL_WORK_ARGS_BYTES": "33"}
    scenario = Scenario(nccl=name, machine="dgx-h100", nodes=2, gpus_per_node=1, environment=tiny)
    request = ALL_COLLECTIVES[0]
    with pytest.raises(BadInput, match="too small for one collective"):
        Selection(scenario.communicator()).pick(request, 1 << 20)
    with Oracle(scenario.oracle_configuration(), timeout_s=2) as oracle, pytest.raises(OracleFailed):
        oracle.launch(request, [1 << 20])


@pytest.mark.parametrize("nccl", HERE)
def test_recorded_defaults_are_libnccls(nccl: str) -> None:
    assert asked(nccl) == defaults(nccl)


@pytest.mark.live
@pytest.mark.parametrize("nccl", HERE)
def test_names_are_those_of_the_library(nccl: str) -> None:
    of_another_text = {"NCCL_IPC_USE_ABSTRACT_SOCKET"}  # its end, in some
    assert in_library(nccl) == variables_in(library.find(nccl).path) | of_another_text


def test_every_release_has_a_list() -> None:
    for name in release.names():
        assert {"NCCL_ALGO", "NCCL_DMABUF_ENABLE", "NCCL_IB_MERGE_VFS", "NCCL_HOSTID"} <= in_library(name), name
    assert "NCCL_PAT_ENABLE" not in in_library("2.22.3")
    for name in release.names():  # debug subsystems, a level: names, but of no variables
        assert not {"NCCL_VERSION", "NCCL_GRAPH", "NCCL_COLL", "NCCL_LOG_WARN"} & in_library(name)


def test_a_release_without_a_list_is_like_the_one_before() -> None:
    assert in_library("99.9.9") == in_library(release.names()[-1])


LEAST_BUFFERS = [  # a value below the least, and the least, of a release that rounds chunks down to grains
    ("NCCL_BUFFSIZE", "Simple", "Ring", Collective.AllReduce, 1023, 1024),
    ("NCCL_BUFFSIZE", "Simple", "Ring", Collective.Broadcast, 4095, 4096),
    ("NCCL_LL_BUFFSIZE", "LL", "Ring", Collective.AllReduce, 255, 256),
    ("NCCL_LL128_BUFFSIZE", "LL128", "Ring", Collective.AllReduce, 16383, 16384),
]


@pytest.mark.parametrize("row", LEAST_BUFFERS, ids=str)
@pytest.mark.parametrize("nccl", sorted({"2.21.5", "2.22.3", "2.28.9", "2.32.3"} & set(HERE)))
def test_buffers_by_which_nccl_divides_by_zero_are_said(
    nccl: str, row: tuple[str, str, str, Collective, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    variable, protocol, algorithm, collective, below, least = row
    request = Request(collective, DataType.float32, Op.sum)
    ends = release.load(nccl).rules.channel_work not in ("chunks_of_all_ranges", "chunks_in_turns")
    for number, fails in ((below, ends), (least, False)):
        environment = {variable: str(number), "NCCL_PROTO": protocol, "NCCL_ALGO": algorithm}
        own = Scenario(nccl, 1, machine="dgx-h100", gpus_per_node=2, environment=environment)
        with pytest.raises(NcclFails, match="divides by zero") if fails else nullcontext():
            Selection(own.communicator()).pick(request, [1 << 26])
        with monkeypatch.context() as without:
            without.setattr("tuner.emulator.selection.check_buffer", lambda _: None)
            with pytest.raises(OracleFailed, match="killed by SIGFPE") if fails else nullcontext():
                assert check(own, [request], sizes=(1 << 26,)).mismatches == ()
