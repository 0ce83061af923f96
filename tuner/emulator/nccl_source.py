"""The functions of NCCL that contain rules, by file.

A rule's registration also says since which release: ``nccl.TOPO_TUNE_MODEL(since="2.18.1")``. In 2.31 the model moved
from src/graph to src/tuning, and src/enqueue.cc to src/enqueue.
"""

from functools import partial

from tuner.base.registry import FromBinary, NotNccl, Source

EQUIVALENT_PRIMARY = partial(Source, "src/device/generate.py", "equivalent_primary")
GENERATE_ALL = partial(Source, "src/device/generate.py", "enumerate_func_rows")

ADD_CBD_COLL_TO_PLAN = partial(Source, "src/enqueue.cc", "addCBDCollToPlan")
ADD_COLL_TO_PLAN = partial(Source, "src/enqueue.cc", "addCollToPlan")
CALC_COLL_CHUNKING = partial(Source, "src/enqueue.cc", "calcCollChunking")
COMPUTE_COLL = partial(Source, "src/enqueue.cc", "computeColl")
COMPUTE_COLL_CHUNK_INFO = partial(Source, "src/enqueue.cc", "computeCollChunkInfo")
GET_ALGO_INFO = partial(Source, "src/enqueue.cc", "getAlgoInfo")
GET_ALGO_INFO_EXPORTED = partial(Source, "src/enqueue.cc", "ncclGetAlgoInfo")
GET_CHANNEL_THREAD_INFO = partial(Source, "src/enqueue.cc", "getChannnelThreadInfo")
GET_TUNER_INFO = partial(Source, "src/enqueue.cc", "getTunerInfo")
HOST_TO_DEV_RED_OP = partial(Source, "src/enqueue.cc", "hostToDevRedOp")
INIT_COLL_WORK_ELEM = partial(Source, "src/enqueue.cc", "initCollWorkElem")
PREPARE_TASKS = partial(Source, "src/enqueue.cc", "ncclPrepareTasks")
REGISTER_COLL_BUFFERS = partial(Source, "src/enqueue.cc", "registerCollBuffers")
REGISTER_INTRA_NODE_BUFFERS = partial(Source, "src/enqueue.cc", "registerIntraNodeBuffers")
SCHEDULE_COLL_TASKS_TO_PLAN = partial(Source, "src/enqueue.cc", "scheduleCollTasksToPlan")
TASK_APPEND = partial(Source, "src/enqueue.cc", "taskAppend")
TOPO_GET_ALGO_INFO = partial(Source, "src/enqueue.cc", "topoGetAlgoInfo")
UPDATE_COLL_COST_TABLE = partial(Source, "src/enqueue.cc", "updateCollCostTable")

CALC_COLL_CHUNKING_MOVED = partial(Source, "src/enqueue/enqueue.cc", "calcCollChunking")
HOST_TO_DEV_RED_OP_MOVED = partial(Source, "src/enqueue/enqueue.cc", "hostToDevRedOp")
PREPARE_TASKS_MOVED = partial(Source, "src/enqueue/enqueue.cc", "ncclPrepareTasks")
SCHEDULE_COLL_TASKS_TO_PLAN_MOVED = partial(Source, "src/enqueue/enqueue.cc", "scheduleCollTasksToPlan")
TASK_APPEND_MOVED = partial(Source, "src/enqueue/enqueue.cc", "taskAppend")

CONNECT_COLL_NET = partial(Source, "src/graph/connect.cc", "connectCollNet")
TOPO_POSTSET = partial(Source, "src/graph/connect.cc", "ncclTopoPostset")

TOPO_PATH_ALL_DIRECT_NVLINK = partial(Source, "src/graph/paths.cc", "ncclTopoPathAllDirectNVLink")

TOPO_COMPUTE = partial(Source, "src/graph/search.cc", "ncclTopoCompute")

CHECK_MULTI_RANK = partial(Source, "src/graph/topo.cc", "ncclCheckMultiRank")

PAT_ENABLE = partial(Source, "src/graph/tuning.cc", "ncclPatEnable")
TOPO_GET_ALGO_TIME = partial(Source, "src/graph/tuning.cc", "ncclTopoGetAlgoTime")
TOPO_TUNE_MODEL = partial(Source, "src/graph/tuning.cc", "ncclTopoTuneModel")

FUNC_INDEX = partial(Source, "src/include/collectives.h", "FUNC_INDEX")

TASK_COLL_SORTER_INSERT = partial(Source, "src/include/comm.h", "ncclTaskCollSorterInsert")

CHECK_MNNVL = partial(Source, "src/init.cc", "checkMNNVL")
COLL_NET_TRY = partial(Source, "src/init.cc", "collNetTrySetup")
ENV_CONFIG_OVERRIDE = partial(Source, "src/init.cc", "envConfigOverride")
GET_ENV_CTA_POLICY_ONCE = partial(Source, "src/init.cc", "getEnvCtaPolicyOnce")
INIT_TRANSPORTS_RANK = partial(Source, "src/init.cc", "initTransportsRank")


COLL_REG_REGISTER_BUFFERS = partial(Source, "src/register/coll_reg.cc", "ncclRegisterCollBuffers")
REGISTER_COLL_NVLS_BUFFERS = partial(Source, "src/register/coll_reg.cc", "ncclRegisterCollNvlsBuffers")

MAKE_SYMMETRIC_TASK_LIST = partial(Source, "src/scheduler/symmetric_sched.cc", "ncclMakeSymmetricTaskList")

KERNEL_MASK_USER = partial(Source, "src/sym_kernels.cc", "kernelMask_user")
SYMK_IMPLEMENTED = partial(Source, "src/sym_kernels.cc", "ncclSymkImplemented")
QUERY_MODEL = partial(Source, "src/sym_kernels.cc", "queryModel")
HIER_CE_AVAILABLE = partial(Source, "src/ce_coll.cc", "ncclHierCeAvailable")
QUERY_MODEL_GIN = partial(Source, "src/sym_kernels.cc", "queryModel_gin")
QUERY_MODEL_LSA = partial(Source, "src/sym_kernels.cc", "queryModel_lsa")

SYMMETRIC_KERNEL_MASK_USER = partial(Source, "src/symmetric.cc", "kernelMask_user")
SYMMETRIC_QUERY_MODEL = partial(Source, "src/symmetric.cc", "queryModel")

COLL_NET_START = partial(Source, "src/transport/coll_net.cc", "ncclCollNetSetup")

NVLS_INIT = partial(Source, "src/transport/nvls.cc", "ncclNvlsInit")
NVLS_REG_RESOURCES_QUERY = partial(Source, "src/transport/nvls.cc", "ncclNvlsRegResourcesQuery")
NVLS_TUNING = partial(Source, "src/transport/nvls.cc", "ncclNvlsTuning")

COLLNET_MODEL_INIT = partial(Source, "src/tuning/collnet.cc", "ncclTuningCollnetModelInit")
COLLNET_MODEL_SIM = partial(Source, "src/tuning/collnet.cc", "ncclTuningCollnetModelSim")

IS_LL128_ENABLED = partial(Source, "src/tuning/cost_model.cc", "isLL128Enabled")
MODEL_MAP = partial(Source, "src/tuning/cost_model.cc", "modelMap")
COST_MODEL_INIT = partial(Source, "src/tuning/cost_model.cc", "ncclTuningCostModelInit")

NVLS_MODEL_INIT = partial(Source, "src/tuning/nvls.cc", "ncclTuningNvlsModelInit")
NVLS_MODEL_SIM = partial(Source, "src/tuning/nvls.cc", "ncclTuningNvlsModelSim")

PAT_MODEL_INIT = partial(Source, "src/tuning/pat.cc", "ncclTuningPatModelInit")
PAT_MODEL_SIM = partial(Source, "src/tuning/pat.cc", "ncclTuningPatModelSim")

RING_MODEL_INIT = partial(Source, "src/tuning/ring.cc", "ncclTuningRingModelInit")
RING_MODEL_SIM = partial(Source, "src/tuning/ring.cc", "ncclTuningRingModelSim")

QUERY_MODEL_LSA_MOVED = partial(Source, "src/tuning/sym_model.cc", "queryModel_lsa")

TREE_MODEL_INIT = partial(Source, "src/tuning/tree.cc", "ncclTuningTreeModelInit")
TREE_MODEL_SIM = partial(Source, "src/tuning/tree.cc", "ncclTuningTreeModelSim")

TUNING_INIT = partial(Source, "src/tuning/tuning.cc", "ncclTuningInit")
TUNING_SELECT_BEST_TUNING = partial(Source, "src/tuning/tuning.cc", "ncclTuningSelectBestTuning")

TUNING_COMPUTE = partial(Source, "src/tuning/tuning.cc", "ncclTuningCompute")

TUNING_GET_CHANNELS = partial(Source, "src/tuning/tuning_general.cc", "ncclTuningGetChannels")
TUNING_GET_TIME = partial(Source, "src/tuning/tuning_general.cc", "ncclTuningGetTime")

COLLNET_NVLS_MODEL_INIT = partial(Source, "src/tuning/{collnet,nvls}.cc", "ncclTuning{Collnet,Nvls}ModelInit")

TREE_COLLNET_MODEL_INIT = partial(Source, "src/tuning/{tree,collnet}.cc", "ncclTuning{Tree,Collnet}ModelInit")

EVERY_MODEL_INIT = partial(
    Source, "src/tuning/{tree,ring,collnet,nvls,pat}.cc", "ncclTuning{Tree,Ring,Collnet,Nvls,Pat}ModelInit"
)

BINARY = partial(FromBinary, "libnccl.so.2")
NOT_NCCL = NotNccl("", "fitted constants, no rule of NCCL's", since="2.18.1")
