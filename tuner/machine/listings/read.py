"""Reads a listing of any kind from its file."""

from pathlib import Path

from tuner.base.errors import BadTopology
from tuner.base.files import read_bytes
from tuner.machine.listings import hwloc, tree
from tuner.machine.listings.shape import Listing
from tuner.machine.topology.xml import MAX_BYTES, parse


def read(file: Path) -> Listing | None:
    """The listing in a file; None if the file is something else, such as a topology in NCCL's format.

    BadTopology if the file cannot be read, or the listing is incomplete.
    """
    data = read_bytes(file, BadTopology, MAX_BYTES)
    if data.lstrip().startswith(b"<"):
        if b"<topology" not in data[:4096]:
            return None
        elements = parse(data, str(file), by_nccl=False)
        return hwloc.listing(elements, str(file)) if hwloc.is_it(elements[0]) else None
    text = data.decode("utf-8", "replace")
    if not tree.is_it(text):
        return None
    printed = tree.tables(text, str(file))
    if not printed.connected:
        raise BadTopology(
            f"{file}: has only the table of nvidia-smi topo -p2p, which says neither links nor places: add that of "
            "nvidia-smi topo -m to the same file"
        )
    return tree.listing(printed, str(file))
