"""Settings that destroy data or speed though NCCL takes them without a word (``tables/settings.toml``)."""

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

from tuner.base.errors import TunerError
from tuner.base.names import Collective, DataType, Op, Protocol
from tuner.base.numerics import parse_long
from tuner.emulator.request import Request
from tuner.emulator.selection import Selection

if TYPE_CHECKING:
    from tuner.scenario.description import Scenario

NET_STEP, LOCAL_STEP = 1 << 17, 1 << 19  # of sends and receives: ncclParamP2pNetChunkSize, NvlChunkSize, src/init.cc
BUFFER, STEPS = 1 << 22, 8  # NCCL_BUFFSIZE's default, NCCL_STEPS
ALIGNED = 16  # bytes that a thread loads at once
UNALIGNED = (
    f"bytes per rank that are no multiple of {ALIGNED}: AllGather and ReduceScatter load and store by elements then, "
    "several times slower than padded (pytorch/pytorch #195450, NVIDIA/nccl #413)"
)


@dataclass(frozen=True, slots=True)
class HarmfulSetting:
    """A row of the table: ``rule`` says for which values of ``variable``; ``harms`` data or speed."""

    variable: str
    rule: str
    harms: str
    says: str
    source: str


def harmful(values: Mapping[str, str], nodes: int | None, scenario: "Scenario | None" = None) -> list[str]:
    """A line for each of the variables in ``values`` that harms; ``scenario`` is the communicator, if it is known."""
    lines = []
    for row in _rows():
        if row.variable in values and (says := _RULES[row.rule](row, values, nodes, scenario)):
            what = "destroy data" if row.harms == "data" else "cost speed"
            lines.append(f"{row.variable}={values[row.variable]} may {what}: {says}; source: {row.source}")
    return lines


def is_unaligned(request: Request, nbytes: int, ranks: int) -> bool:
    """Whether such a call of ``nbytes`` (NCCL's nBytes) gives ranks parts that threads cannot load whole."""
    return request.collective in (Collective.AllGather, Collective.ReduceScatter) and nbytes // ranks % ALIGNED != 0


Rule = Callable[[HarmfulSetting, Mapping[str, str], int | None, "Scenario | None"], str]


def _beyond_a_step(row: HarmfulSetting, values: Mapping[str, str], nodes: int | None, _: "Scenario | None") -> str:
    local = _number(values, "NCCL_P2P_NVL_CHUNKSIZE", LOCAL_STEP)
    across = _number(values, "NCCL_P2P_NET_CHUNKSIZE", NET_STEP)
    step = min(_number(values, "NCCL_BUFFSIZE", BUFFER) // STEPS, local if nodes == 1 else across)
    return row.says.format(step=step) if _number(values, row.variable, 0) > step else ""


def _ll128_where_it_is_off(
    row: HarmfulSetting, values: Mapping[str, str], nodes: int | None, scenario: "Scenario | None"
) -> str:
    """Whether the list names LL128, and NCCL without it would not take it there: not known without a communicator."""
    if scenario is None or "LL128" not in values[row.variable].upper().replace("^", "-").split("-")[0]:
        return ""
    from dataclasses import replace

    plain = {name: value for name, value in values.items() if name != row.variable}
    request = Request(Collective.AllReduce, DataType.float32, Op.sum)
    try:
        usable = Selection(replace(scenario, environment=plain).communicator()).candidates(request)
    except TunerError:
        return ""
    return "" if any(protocol is Protocol.LL128 for _, protocol in usable) else row.says


def _is_on(row: HarmfulSetting, values: Mapping[str, str], nodes: int | None, _: "Scenario | None") -> str:
    return row.says if _number(values, row.variable, 0) > 0 else ""


def _is_off(row: HarmfulSetting, values: Mapping[str, str], nodes: int | None, _: "Scenario | None") -> str:
    return row.says if _number(values, row.variable, 1) == 0 else ""


def _is_group(row: HarmfulSetting, values: Mapping[str, str], nodes: int | None, _: "Scenario | None") -> str:
    return row.says if values[row.variable].upper() == "GROUP" else ""


_RULES: dict[str, Rule] = {
    "beyond_a_step": _beyond_a_step,
    "ll128_where_it_is_off": _ll128_where_it_is_off,
    "is_on": _is_on,
    "is_off": _is_off,
    "is_group": _is_group,
}


def _number(values: Mapping[str, str], name: str, default: int) -> int:
    text = values.get(name, "")
    return parse_long(text) if text.strip().lstrip("+-").isdecimal() else default


@cache
def _rows() -> tuple[HarmfulSetting, ...]:
    text = (files("tuner.tables") / "settings.toml").read_text(encoding="utf-8")
    return tuple(HarmfulSetting(**row) for row in tomllib.loads(text)["setting"])
