#!/usr/bin/env bash
# hwloc 2.9.0 (Debian 12): hwloc-diff does not tell a PCI link that trained at half its speed.
#
# Expected: two topologies that differ in the speed of one GPU's link: the speed is reported, before and after.
# Seen:     "too complex": neither the device nor the speed is named, nothing is written, the exit code is 1. A GPU's changed
#           name of the operating system and a changed memory size are told in full.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
apt-get download --quiet hwloc=2.9.0-1 libhwloc15=2.9.0-1 libxml2 libpciaccess0 libltdl7 >/dev/null 2>&1
for package in *.deb; do dpkg -x "$package" root; done
export LD_LIBRARY_PATH=$folder/root/usr/lib/x86_64-linux-gnu:$folder/root/lib/x86_64-linux-gnu
root/usr/bin/lstopo-no-graphics -i "numa:1 core:1 pu:1" plain.xml
python3 - <<'PYTHON'
text = open("plain.xml").read()
device = """<object type="Bridge" gp_index="90" bridge_type="0-1" depth="0" bridge_pci="0000:[00-1f]">
<object type="PCIDev" gp_index="91" pci_busid="0000:18:00.0" pci_type="0302 [10de:2330] [10de:16c1] a1" pci_link_speed="{speed}">
<object type="OSDev" gp_index="92" name="{name}" subtype="CUDA" osdev_type="5"/></object></object>"""
end = text.rindex("</object>")
for file, speed, name in (("fast", "63.015385", "cuda0"), ("slow", "31.507692", "cuda0"), ("other", "63.015385", "cuda1")):
    open(file + ".xml", "w").write(text[:end] + device.format(speed=speed, name=name) + text[end:])
PYTHON
{
  root/usr/bin/hwloc-diff fast.xml slow.xml 2>&1 || echo "exit code $?"
  root/usr/bin/hwloc-diff fast.xml other.xml 2>/dev/null | grep -o 'oldvalue=.*"'
} >seen
diff seen - <<'SEEN' && echo "hwloc 2.9.0: as seen"
Found 1 differences, including 1 too complex ones.
Cannot export differences to stdout
exit code 1
oldvalue="cuda0" obj_attr_newvalue="cuda1"
SEEN
