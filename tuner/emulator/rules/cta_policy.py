"""NCCL_CTA_POLICY: whether a collective should leave blocks to others, and what that changes on the classic path.

It holds without a tuner plugin.

"""

from collections.abc import Callable
from enum import Enum

from tuner.base.errors import BadInput
from tuner.base.registry import Registry
from tuner.emulator import nccl_source as nccl
from tuner.emulator.communicator import Communicator
from tuner.emulator.model import Tables
from tuner.emulator.request import Request
from tuner.emulator.rules import candidate, registered
from tuner.release.environment import Environment


class Policy(Enum):
    """NCCL_CTA_POLICY_*."""

    default = 0
    efficiency = 1
    zero = 2


RULES: Registry[Callable[[Environment], Policy]] = Registry()
NAME = "NCCL_CTA_POLICY"


def of(communicator: Communicator) -> Policy:
    """The policy of a communicator."""
    return communicator.rules.cta_policy(communicator.environment)


@RULES(nccl.ENV_CONFIG_OVERRIDE(since="2.18.1"))
def unsupported(environment: Environment) -> Policy:
    """The release knows no policy."""
    return Policy.default


@RULES(nccl.ENV_CONFIG_OVERRIDE(since="2.27.3"))
def efficiency_or_not(environment: Environment) -> Policy:
    """1 is efficiency."""
    return Policy.efficiency if environment.c_int(NAME, 0) == 1 else Policy.default


@RULES(nccl.ENV_CONFIG_OVERRIDE(since="2.28.3"))
def one_of_three(environment: Environment) -> Policy:
    """0, 1 or 2; other numbers are the default."""
    number = environment.c_int(NAME, 0)
    return Policy(number) if 0 <= number <= 2 else Policy.default


@RULES(nccl.GET_ENV_CTA_POLICY_ONCE(since="2.29.2"))
def words_or_digit(environment: Environment) -> Policy:
    """Words between bars, of which `zero` wins; of a number only the first digit counts."""
    text = environment.text(NAME) or ""
    if text[:1].isdigit():
        return {"1": Policy.efficiency, "2": Policy.zero}.get(text[0], Policy.default)
    words = {word.lower() for word in text.split("|")}
    return next((policy for policy in (Policy.zero, Policy.efficiency) if policy.name in words), Policy.default)


def multicast_channels(communicator: Communicator, tables: Tables, request: Request) -> int | None:
    """Channels NVLS takes for this call where the policy prefers it; None where the policy changes nothing.

    It is preferred to any pick that may use as many channels or more. BadInput where ranks share a process.
    """
    environment = communicator.environment
    if not registered.keeps(communicator, request) or not request.spreads or communicator.fabric:
        return None
    if of(communicator) is not Policy.efficiency or {"NCCL_ALGO", "NCCL_PROTO"} & set(environment.values):
        return None
    if candidate.nvls_missing(communicator, request) or (communicator.nodes > 1 and not communicator.collnet):
        return None
    if communicator.ranks_share_processes:
        raise BadInput(
            f"{NAME}: efficiency is not emulated for {request.buffers.name} buffers where a process has several GPUs; "
            "valid there: plain"
        )
    return registered.nvls_channels_by_heads(communicator, tables, request.collective)
