"""Runs the frozen splits and keeps what they reach in docs/accuracy.json: ``make accuracy``."""

import json
from pathlib import Path
from typing import Any

from tests.scripts import fit_network
from tests.support import exchange_accuracy
from tuner.base.records import to_json
from tuner.times.calibration.accuracy.evaluate import of_splits

FILE = Path(__file__).parents[2] / "docs" / "accuracy.json"


def read() -> dict[str, Any]:
    """What is kept: ``splits`` and ``alltoall`` in the file's order, ``summary`` by group, ``factors`` of intervals,
    ``updates`` of sites that were left out."""
    kept: dict[str, Any] = json.loads(FILE.read_text("utf-8"))
    return kept


def updates() -> list[dict[str, Any]]:
    """How sites that nothing was learnt from are predicted by a few of their rows."""
    of_tables = ({**to_json(each)} for each in fit_network.updates())
    return [
        {key: round(value, 4) if isinstance(value, float) else value for key, value in each.items()}
        for each in of_tables
    ]


def main() -> None:
    """A few minutes."""
    found = of_splits()
    splits = [
        {
            "kind": each.split.kind,
            "group": each.group,
            "machine": each.split.machine,
            "title": each.split.title,
            "rows": each.rows,
            "errors": {name: None if error is None else round(error, 4) for name, error in each.errors.items()},
            "coverage": round(each.coverage, 3),
            "half_width": round(each.half_width, 3),
        }
        for each in found.splits
    ]
    rounded = {"error": 4, "coverage": 3, "half_width": 3}
    alltoall = [
        {**to_json(each), **{key: round(getattr(each, key), digits) for key, digits in rounded.items()}}
        for each in exchange_accuracy.run()
    ]
    kept = {
        "splits": splits,
        "alltoall": alltoall,
        "summary": to_json(found.summary),
        "factors": to_json(found.factors),
        "updates": updates(),
    }
    FILE.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
