"""Hosts that NCCL treats as several nodes: two sockets, whose adapters are faster than the link between them."""

from collections.abc import Sequence

CPU = 'arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143"'  # 22 GB/s between sockets
LINK = 'vendor="0x15b3" device="0x1979" link_speed="16.0 GT/s PCIe" link_width="16"'  # 24 GB/s
L20 = 89  # compute capability


def two_sockets(*gpus_of_sockets: Sequence[int], gbps: int = 400) -> str:
    """GPUs like L20 by their numbers, those of a socket below one switch, with an adapter each."""
    sockets = []
    for number, gpus in enumerate(gpus_of_sockets):
        below = "".join(
            f'<pci busid="0000:{gpu + 16:02x}:00.0" class="0x030200" {LINK}>'
            f'<gpu dev="{gpu}" sm="{L20}" gdr="1"/></pci>\n'
            for gpu in gpus
        )
        adapter = (
            f'<pci busid="0000:{number + 160:02x}:00.0" class="0x020700" {LINK}><nic><net name="mlx5_{number}" '
            f'dev="{number}" port="1" speed="{gbps * 1000}" latency="0" guid="0x{number + 1}" gdr="1"/></nic></pci>\n'
        )
        switch = f'<pci busid="0000:{number + 176:02x}:00.0" class="0x060400" {LINK}>\n{below}{adapter}</pci>\n'
        sockets.append(f'<cpu numaid="{number}" affinity="ffffffff" {CPU}>\n{switch}</cpu>\n')
    return f'<system version="1">\n{"".join(sockets)}</system>\n'


SIXTEEN_L20 = two_sockets(range(8), range(8, 16))
UNEVEN = two_sockets(range(5), range(5, 8))
IN_TURN = two_sockets((0, 2), (1, 3))
