"""Records the states of this computer's GPUs while they are measured: clocks, temperatures, power, and what slows them
down.
"""

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tuner.base.errors import BadInput

_MILLIWATTS = 1000
_REASON = "nvmlClocksThrottleReason"  # later releases of NVML use EventReason for the same; each reason is a bit


class States:
    """Appends a line of JSON to a file at each :meth:`note`: the round, the time, and the state of each GPU according
    to NVML.

    Nothing is written without nvidia-ml-py or NVML; what a GPU does not report is null.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._nvml: Any = None
        try:
            import pynvml

            pynvml.nvmlInit()
        except ImportError:
            return
        except pynvml.NVMLError:
            return
        self._nvml = pynvml

    def note(self, round_: int) -> None:
        """Writes the current state. BadInput if the file cannot be written."""
        if self._nvml is None:
            return
        count = self._said(self._nvml.nvmlDeviceGetCount) or 0
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        line = {"round": round_, "time": now, "gpus": [self._gpu(number) for number in range(count)]}
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        except OSError as error:
            raise BadInput(f"{self.path}: {error.strerror}") from error

    def _gpu(self, number: int) -> Mapping[str, Any]:
        nvml = self._nvml
        handle = self._said(lambda: nvml.nvmlDeviceGetHandleByIndex(number))
        if handle is None:
            return {"gpu": number}
        power_mw = self._said(lambda: nvml.nvmlDeviceGetPowerUsage(handle))
        return {
            "gpu": number,
            "uuid": self._said(lambda: nvml.nvmlDeviceGetUUID(handle)),
            "sm_mhz": self._said(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
            "memory_mhz": self._said(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM)),
            "temperature_c": self._said(lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
            "power_w": None if power_mw is None else power_mw / _MILLIWATTS,
            "slowed_by": self._said(lambda: self._reasons(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))),
        }

    def _reasons(self, bits: int) -> list[str]:
        known = {getattr(self._nvml, name): name for name in dir(self._nvml) if name.startswith(_REASON)}
        single = {bit: name.removeprefix(_REASON) for bit, name in known.items() if bit and bit & (bit - 1) == 0}
        return [name for bit, name in sorted(single.items()) if bits & bit]

    def _said(self, ask: Callable[[], Any]) -> Any:
        """NVML's answer; None if this GPU, its driver or this nvidia-ml-py does not support the question."""
        try:
            answer = ask()
        except (self._nvml.NVMLError, AttributeError):
            return None
        return answer.decode() if isinstance(answer, bytes) else answer
