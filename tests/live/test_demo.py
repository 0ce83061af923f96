"""``make demo``: everything that it says is so, and it shows a gain."""

import re
import shlex
from dataclasses import replace

import pytest

from benchmarks import demo
from tests.support import doc_sessions


@pytest.mark.slow
def test_the_demo_agrees_and_shows_a_gain(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """With a release that the tests fetch, which picks the same there."""
    for name in ("SCENARIO", "LARGE"):
        monkeypatch.setattr(demo, name, replace(getattr(demo, name), nccl="2.28.9"))
    assert demo.main() == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "All 42 cost cells and 6 picks are equal" in said
    gain = re.search(r"([\d.]+) % faster, at least ([\d.]+) % beyond the noise", said)
    assert gain is not None
    assert float(gain[1]) > float(gain[2]) > 5
    assert said.count(" the same") >= len(demo.SIZES)
    assert "NOT" not in said.replace("NOT the same", "")


def test_what_to_try_next_exists() -> None:
    tried = [line for line in demo.NEXT.splitlines() if line.startswith("   nccl-tuner ")]
    assert len(tried) >= 4
    for line in tried:
        doc_sessions.parse(shlex.split(line, comments=True)[1:])
