"""Topologies of small machines made up here, so that every number in an expectation is visible."""

GPU = """<pci busid="0000:0{dev}:00.0" class="0x030200"><gpu dev="{dev}" sm="{sm}">{links}</gpu></pci>"""
NET = """<pci busid="0000:2{dev}:00.0" class="0x020700"><nic><net name="net{dev}" dev="{dev}" {rest}/></nic></pci>"""
SWITCH = """<nvlink target="0000:C{n}:00.0" count="{count}" tclass="0x068000"/>"""
PEER = """<nvlink target="0000:0{n}:00.0" count="{count}" tclass="0x030200"/>"""
INTEL = 'arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143"'


def gpu(dev: int, sm: int = 90, links: str = "") -> str:
    return GPU.format(dev=dev, sm=sm, links=links)


def net(dev: int, rest: str = 'port="1" speed="400000" latency="0" guid="0xbeef"') -> str:
    return NET.format(dev=dev, rest=rest)


def cpu(inner: str, numaid: int = 0, kind: str = INTEL) -> str:
    return f'<cpu numaid="{numaid}" {kind}>{inner}</cpu>'


def system(*cpus: str) -> str:
    return f'<system version="1">\n{"".join(cpus)}\n</system>\n'
