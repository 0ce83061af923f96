"""NCCL's variables as a log shows them, and settings of the program that a variable sets as well."""

from tuner.release import Release
from tuner.release.variables import not_emulated
from tuner.scenario.logs.reading import Reading

# Settings of a program's own ncclConfig_t that a variable sets as well (envConfigOverride, src/init.cc).
_CONFIG = {
    "minCTAs": "NCCL_MIN_CTAS",
    "maxCTAs": "NCCL_MAX_CTAS",
    "nvlsCTAs": "NCCL_NVLS_NCHANNELS",
    "collnetEnable": "NCCL_COLLNET_ENABLE",
    "CTAPolicy": "NCCL_CTA_POLICY",
}
# Their effect is in the graphs, which the log shows: where the topology is, and which adapters there are.
FILES_AND_ADAPTERS = (
    "NCCL_TOPO_FILE",
    "NCCL_NET",
    "NCCL_NET_PLUGIN",
    "NCCL_IB_HCA",
    "NCCL_IB_DISABLE",
    "NCCL_IB_CUDA_SUPPORT",
)


def environment(reading: Reading, nccl: Release | None) -> dict[str, str]:
    """The variables set for this communicator's processes, rank 0's first, and its program's own settings."""
    processes = sorted({log.thread.process for log in reading.logs}, key=lambda p: p != _root_process(reading))
    variables = dict(reading.given.environment)
    for process in processes or reading.log.environment:
        for name, value in reading.log.environment.get(process, {}).items():
            if variables.setdefault(name, value) != value and name not in reading.given.environment:
                reading.notes.append(f"{name} differs between processes; taken: {variables[name]}")
    for log in reading.logs:
        for setting, value in log.config.items():
            if setting in _CONFIG:
                variables.setdefault(_CONFIG[setting], value)
    if not reading.log.environment:
        reading.notes.append("no variable is printed: taken as unset, as NCCL_DEBUG_SUBSYS=ENV would show it")
    if nccl is not None:
        in_graphs = {*FILES_AND_ADAPTERS, *nccl.environment.search}
        for name in not_emulated(nccl, set(variables) - in_graphs):
            reading.notes.append(f"{name}={variables[name]} may change choices and is not emulated")
    return variables


def _root_process(reading: Reading) -> tuple[str, int] | None:
    root = reading.group.root if reading.group else None
    return root.thread.process if root else None
