"""What a log says of the hardware besides graphs: GPUs, adapters, hosts."""

from tuner.scenario.logs.imported import Hardware
from tuner.scenario.logs.reading import Reading


def of(reading: Reading) -> Hardware:
    """Of the communicator's hosts; adapters are those of rank 0's, or of the first that names them."""
    log, logs = reading.log, sorted(reading.logs, key=lambda each: each.rank or 0)
    hosts = list(dict.fromkeys(each.thread.host for each in logs))
    by_host = {host: {each.rank for each in logs if each.thread.host == host} for host in hosts}
    shown = sum(map(len, by_host.values()))
    every = reading.group is not None and shown == reading.group.ranks and "" not in hosts
    host = next((host for host in [*hosts, *log.adapters] if host in log.adapters), None)
    adapters = () if host is None else log.adapters[host]
    speeds = {log.speeds_mbps[host, name] for name in adapters if host is not None and (host, name) in log.speeds_mbps}
    bus_ids = {each.bus_id for each in logs if each.thread.host == hosts[0] and each.bus_id is not None}
    return Hardware(
        instance=log.instance,
        gpu_names=tuple(dict.fromkeys(log.devices.values())),
        comp_caps=tuple(sorted(set(reading.given.comp_caps))),
        ranks_of_hosts=tuple(len(ranks) for ranks in by_host.values()) if every else (),
        bus_ids=tuple(sorted(bus_ids)),
        adapters=adapters,
        adapters_mbps=tuple(sorted(speeds)),
        multicast=log.multicast == {True} if log.multicast else None,
        networks=tuple(dict.fromkeys(log.networks.values())),
    )
