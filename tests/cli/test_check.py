"""``check`` over several communicators: what was compared before one fails is printed."""

import json

import pytest

from tests.support.command_line import run
from tuner.base.errors import OracleFailed
from tuner.oracle.conformance.mismatches import MatchReport
from tuner.scenario import Scenario


@pytest.mark.parametrize("form", [(), ("--json",)], ids=["table", "JSON"])
def test_a_failure_loses_nothing(form: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    def check(scenario: Scenario, *_: object) -> MatchReport:
        if scenario.title.startswith("4 x"):
            raise OracleFailed("libnccl did not answer")
        return MatchReport(scenario.title, {"cells": 7}, {"cells": 7}, ())

    monkeypatch.setattr("tuner.oracle.conformance.check.check", check)
    done = run("check", "--machine", "gb200-nvl72", "--nccl", "2.28.9", *form, code=1)
    assert done.stderr.endswith("nccl-tuner: libnccl did not answer\n")
    if form:
        assert [each["compared"] for each in json.loads(done.stdout)] == [{"cells": 7}] * 2
    else:
        assert done.stdout.count("7/7") == 2
        assert "14/14" in done.stdout
