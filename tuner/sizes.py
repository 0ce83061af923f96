"""Sizes in words."""

UNITS = ("EiB", "PiB", "TiB", "GiB", "MiB", "KiB")


def human_bytes(nbytes: int) -> str:
    """Exact: the largest binary unit that divides the size."""
    for power, unit in zip(range(60, 0, -10), UNITS, strict=True):
        if nbytes % (1 << power) == 0:
            return f"{nbytes >> power} {unit}"
    return f"{nbytes} B"
