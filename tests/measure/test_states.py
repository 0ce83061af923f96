"""What is noted of GPUs while they are measured, by an NVML that is imitated."""

import json
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tuner.bench.gpu.states import States
from tuner.cli.measure import noting


class NVMLError(Exception):
    pass


def nvml(**changed: Any) -> Any:
    def refused(*arguments: Any) -> Any:
        raise NVMLError("Not Supported")

    functions = {
        "nvmlInit": lambda: None,
        "nvmlDeviceGetCount": lambda: 2,
        "nvmlDeviceGetHandleByIndex": lambda number: number,
        "nvmlDeviceGetUUID": lambda handle: f"GPU-{handle}",
        "nvmlDeviceGetClockInfo": lambda handle, clock: {0: 1980, 1: 2619}[clock],
        "nvmlDeviceGetTemperature": lambda handle, sensor: 41 + handle,
        "nvmlDeviceGetPowerUsage": lambda handle: 350_500,
        "nvmlDeviceGetCurrentClocksThrottleReasons": lambda handle: 0x4 | 0x20,
    }
    numbers = {
        "NVML_CLOCK_SM": 0,
        "NVML_CLOCK_MEM": 1,
        "NVML_TEMPERATURE_GPU": 0,
        "nvmlClocksThrottleReasonNone": 0,
        "nvmlClocksThrottleReasonSwPowerCap": 0x4,
        "nvmlClocksThrottleReasonSwThermalSlowdown": 0x20,
        "nvmlClocksThrottleReasonAll": 0x24,
    }
    given = {name: refused if value is None else value for name, value in changed.items()}
    return SimpleNamespace(**{**functions, **numbers, **given, "NVMLError": NVMLError})


def test_a_line_for_each_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", nvml())
    states = States(tmp_path / "states.jsonl")
    loop, seen = SimpleNamespace(round=0), list[int]()
    with noting(lambda loop: nullcontext(seen.append), states)(loop) as show:  # type: ignore[arg-type]
        for blocks, round_ in enumerate((0, 0, 1), start=1):
            loop.round = round_
            show(blocks)
    assert seen == [1, 2, 3]
    lines = [json.loads(line) for line in (tmp_path / "states.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == [0, 1]
    assert lines[0]["gpus"][1] == {
        "gpu": 1,
        "uuid": "GPU-1",
        "sm_mhz": 1980,
        "memory_mhz": 2619,
        "temperature_c": 42,
        "power_w": 350.5,
        "slowed_by": ["SwPowerCap", "SwThermalSlowdown"],
    }


def test_what_a_gpu_does_not_say_is_null(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", nvml(nvmlDeviceGetPowerUsage=None, nvmlDeviceGetUUID=None))
    States(tmp_path / "states.jsonl").note(0)
    (line,) = (tmp_path / "states.jsonl").read_text().splitlines()
    gpu = json.loads(line)["gpus"][0]
    assert (gpu["power_w"], gpu["uuid"], gpu["sm_mhz"]) == (None, None, 1980)


@pytest.mark.parametrize("missing", ["package", "driver", "lost"])
def test_without_nvml_nothing_is_noted(missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    changed = {"package": {}, "driver": {"nvmlInit": None}, "lost": {"nvmlDeviceGetHandleByIndex": None}}[missing]
    monkeypatch.setitem(sys.modules, "pynvml", None if missing == "package" else nvml(**changed))
    States(tmp_path / "states.jsonl").note(0)
    assert (tmp_path / "states.jsonl").is_file() is (missing == "lost")
