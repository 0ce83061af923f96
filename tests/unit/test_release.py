"""Every release table: complete, sourced, and made of rules that exist."""

import re
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from tuner import release
from tuner.base.errors import UnknownRelease
from tuner.base.names import Collective
from tuner.emulator import printed_table, selection
from tuner.emulator.rules import (
    bandwidth,
    candidate,
    cells,
    collnet,
    cta_policy,
    enabled,
    equal_bytes,
    init,
    latency,
    launch,
    least_loaded,
    model_point,
    registered,
    schedule,
    symmetric,
    task,
)
from tuner.emulator.rules import time as timing
from tuner.release import ALGORITHM_KEYS
from tuner.release.environment import GRAMMARS

TABLES = sorted(files("tuner.tables").joinpath("nccl").iterdir(), key=lambda path: path.name)
FLAT: dict[str, Any] = {
    "backup": enabled.RULES,
    "grammar": GRAMMARS,
    "deal": launch.DEAL_RULES,
    "network_step": latency.NETWORK_STEP_RULES,
    "ring_network_steps": latency.RING_NETWORK_STEPS_RULES,
    "channels": init.CHANNEL_RULES,
    "nvls_channels": init.NVLS_RULES,
    "enabled": enabled.RULES,
    "candidate": candidate.RULES,
    "fp8_needs_hopper": candidate.FP8_RULES,
    "time": timing.CORRECTIONS,
    "penalty": timing.PENALTIES,
    "comp_caps": init.COMP_CAP_RULES,
    "cpu": init.CPU_RULES,
    "table_cpu": init.CPU_RULES,
    "tree_pattern": init.TREE_PATTERN_RULES,
    "block": launch.BLOCK_RULES,
    "pick": selection.PICK_RULES,
    "launch": launch.RULES,
    "nvls_bound": launch.NVLS_BOUND_RULES,
    "hw_latency_row": model_point.ROW_RULES,
    "nvls_kind": launch.NVLS_KIND_RULES,
    "traffic_per_channel": launch.TRAFFIC_RULES,
    "collnet": collnet.SUPPORT_RULES,
    "collnet_heads": collnet.HEADS_RULES,
    "collnet_direct_heads": collnet.DIRECT_HEADS_RULES,
    "registered": registered.RULES,
    "cta_policy": cta_policy.RULES,
    "leaves": symmetric.RULES,
    "symmetric_blocks": symmetric.BLOCK_RULES,
    "symmetric_time": symmetric.TIME_RULES,
    "bound_channels": launch.BOUND_CHANNELS_RULES,
    "schedule": schedule.RULES,
    "order": cells.ORDER_RULES,
    "counted_traffic": cells.COUNTED_TRAFFIC_RULES,
    "device_op": task.DEVICE_OP_RULES,
    "function": task.FUNCTION_RULES,
    "total": least_loaded.TOTAL_RULES,
    "work_estimate": equal_bytes.ESTIMATE_RULES,
    "share": least_loaded.SHARE_RULES,
    "symmetric": cells.SYMMETRIC_RULES,
    "printed_table": printed_table.PRINT_RULES,
    "ctas": init.CTAS_RULES,
    "search_start": init.START_RULES,
    "product": launch.PRODUCT_RULES,
}
BY_ALGORITHM: dict[str, Any] = {"fills": enabled.RULES, "bandwidth": bandwidth.RULES, "latency": latency.RULES}


@pytest.mark.parametrize("name", release.names())
def test_every_rule_a_release_names_exists(name: str) -> None:
    loaded = release.load(name)
    for kind, rules in FLAT.items():
        assert set(loaded.rules(kind)) <= {*rules}, kind
    for kind, rules in BY_ALGORITHM.items():
        for key, algorithm in ALGORITHM_KEYS.items():
            assert set(loaded.rules(kind, algorithm)) <= set(rules), (kind, key)
    assert set(loaded.table["rules"]) == {*FLAT, *BY_ALGORITHM, "exists"}


@pytest.mark.parametrize("name", release.names())
def test_every_algorithm_that_exists_has_a_model(name: str) -> None:
    loaded = release.load(name)
    assert set(loaded.table["rules"]["exists"]) == {collective.name for collective in Collective}
    for keys in loaded.table["rules"]["exists"].values():
        for key in keys:
            assert loaded.rules("bandwidth", ALGORITHM_KEYS[key]), key
            assert loaded.rules("latency", ALGORITHM_KEYS[key]), key


def test_every_rule_is_used_by_some_release() -> None:
    used = {
        rule
        for name in release.names()
        for kind in (*FLAT, *BY_ALGORITHM)
        for key in ([None] if kind in FLAT else ALGORITHM_KEYS.values())
        for rule in release.load(name).rules(kind, key)
    }
    of_layers = {bandwidth.measured_efficiency.__name__}
    assert {rule for rules in (*FLAT.values(), *BY_ALGORITHM.values()) for rule in rules} - of_layers == used


@pytest.mark.parametrize("path", TABLES, ids=lambda path: path.name)
def test_every_table_of_numbers_names_its_source(path: Path) -> None:
    text = path.read_text()
    for block in re.split(r"\n(?=\[)", text)[1:]:
        before = text[: text.index(block)].rstrip("\n").splitlines()[-1]
        assert "#" in block or before.startswith("#"), block.splitlines()[0]


def test_no_release_number_in_the_code_of_model_and_selection() -> None:
    for module in (Path(release.__file__).parents[1] / "emulator").rglob("*.py"):
        code = re.sub(r'""".*?"""|#.*', "", module.read_text(), flags=re.S)
        assert not re.search(r"\b2\.\d\d", code), module.name


def test_an_unknown_release_lists_the_known() -> None:
    with pytest.raises(UnknownRelease, match=r"no table for NCCL 2\.99\.1; valid: .*2\.28\.9"):
        release.load("2.99.1")
