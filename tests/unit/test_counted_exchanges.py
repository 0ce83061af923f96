"""What tests/scripts/check_exchanges.py counts of communicators of which nothing can be compared."""

import pytest
from click.testing import CliRunner, Result

from tests.scripts import check_exchanges
from tuner.base.errors import OracleFailed
from tuner.scenario import Scenario

CANNOT_MIX = Scenario("2.28.9", 1, machine="dgx-h100", others=(Scenario("2.28.9", 1, machine="pcie-l40s-no-p2p"),))


def counted(monkeypatch: pytest.MonkeyPatch, scenario: Scenario) -> Result:
    monkeypatch.setattr(check_exchanges, "scenarios", lambda nccl, seed: iter([scenario]))
    return CliRunner().invoke(check_exchanges.main, ["2.28.9", "--launches", "1"])


def test_what_the_oracle_cannot_make_is_told_and_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    result = counted(monkeypatch, CANNOT_MIX)
    assert "NOT TO BE ASKED 1 x dgx-h100, 8 GPUs each + 1 x pcie-l40s-no-p2p" in result.output
    assert result.exit_code == 0


def test_what_libnccl_could_have_been_asked_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(configuration: object) -> None:
        raise OracleFailed("libnccl hangs")

    monkeypatch.setattr(check_exchanges, "Oracle", fails)
    result = counted(monkeypatch, Scenario("2.28.9", 1, machine="dgx-h100"))
    assert "NOT ASKED 1 x dgx-h100, 8 GPUs each, NCCL 2.28.9 None: libnccl hangs" in result.output
    assert result.exit_code == 1
