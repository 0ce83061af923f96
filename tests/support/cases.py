"""Public logs, topologies and outputs beside the repository, which are not part of it: tests skip without them."""

from pathlib import Path

import pytest

_ROOT = Path(__file__).resolve().parents[2]
_NEAR = [each / "shared" / "cases" for each in (_ROOT.parent, _ROOT.parents[1])]  # of a clone, of a work tree beside it
CASES = next((each for each in _NEAR if each.is_dir()), _NEAR[0])


def report(name: str) -> str:
    """A reduced input of ``reports``; skips the test where it is absent."""
    file = CASES / "reports" / name
    if not file.is_file():
        pytest.skip("../shared/cases is absent")
    return str(file)
