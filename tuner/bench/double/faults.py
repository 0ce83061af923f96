"""Faults that are planted outside of CUDA."""

import re

from tuner.bench.double.settings import DoubleSettings, Fault, FaultKind
from tuner.plugin.forcing import Forcing


def plant(settings: DoubleSettings) -> None:
    """In this process: the forcing plugin is handed another table than the process that measures gives it."""
    replaced = [fault for fault in settings.faults if fault.kind is FaultKind.replaced]
    if not replaced:
        return
    use_table = Forcing.use_table

    def swapped(forcing: Forcing, text: str | None) -> None:
        use_table(forcing, None if text is None else _swapped(text, replaced))

    Forcing.use_table = swapped  # type: ignore[method-assign, assignment]


def _swapped(text: str, faults: list[Fault]) -> str:
    for fault in faults:
        text = re.sub(rf"-> {re.escape(fault.forced)}(?!\S)", f"-> {fault.instead}", text)  # tree/ll is not tree/ll128
    return text
