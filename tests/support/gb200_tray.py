"""A tray of a GB200 NVL72, made up after public descriptions: two Grace CPUs with two GPUs and two adapters each."""

CPU = """  <cpu numaid="{cpu}" affinity="ffffffff,ffffffff,000000ff" arch="arm64">
{devices}
  </cpu>"""
GPU = """    <pci busid="00{cpu}{slot}:01:00.0" class="0x030200" vendor="0x10de" device="0x2941" \
subsystem_vendor="0x10de" subsystem_device="0x2046" link_speed="32.0 GT/s PCIe" link_width="16">
      <gpu dev="{dev}" sm="{sm}" rank="{dev}" gdr="1">
        <nvlink target="ffff:ff:ff.f" count="18" tclass="0x068000"/>
        <c2c bw="44712" count="10"/>
      </gpu>
    </pci>"""
NET = """    <pci busid="00{cpu}{slot}:03:00.0" class="0x020700" vendor="0x15b3" device="0x1021" \
subsystem_vendor="0x15b3" subsystem_device="0x0041" link_speed="32.0 GT/s PCIe" link_width="16">
      <nic>
        <net name="mlx5_{dev}" dev="{dev}" speed="{speed_mbps}" port="1" latency="0" guid="0x{guid:x}" \
maxconn="131072" gdr="1"/>
      </nic>
    </pci>"""
FIRST_GUID = 0xA088C20300E1A258


def tray(gpus: int = 4, sm: int = 100, speed_mbps: int = 400000) -> str:
    """The topology XML of a tray; with fewer GPUs than 4 the last ones are missing."""
    cpus = []
    for cpu in range(2):
        of_gpus = [GPU.format(cpu=cpu, slot=8 + i, dev=2 * cpu + i, sm=sm) for i in range(2) if 2 * cpu + i < gpus]
        of_nets = [
            NET.format(cpu=cpu, slot=2 * i, dev=2 * cpu + i, speed_mbps=speed_mbps, guid=FIRST_GUID + 2 * cpu + i)
            for i in range(2)
        ]
        cpus.append(CPU.format(cpu=cpu, devices="\n".join(of_gpus + of_nets)))
    return '<system version="1">\n' + "\n".join(cpus) + "\n</system>\n"
