"""Writes tables/calibrations/*.json anew: ``make calibrations``. It runs the frozen splits first, for the intervals."""

from pathlib import Path

from tests.support import exchange_accuracy
from tuner.times.calibration import calibrate
from tuner.times.calibration.accuracy import evaluate
from tuner.times.calibration.calibrate import Widths
from tuner.times.timemodel import calibration

FOLDER = Path(__file__).parents[2] / "tables" / "calibrations"


def main() -> None:
    """Fits all of them; a few minutes."""
    _, factors = evaluate.run()
    widths = Widths(factors, exchange_accuracy.factors())
    for source in calibrate.sources():
        made = calibrate.shipped(source, widths)
        (FOLDER / f"{source.name}.json").write_text(calibration.text(made), encoding="utf-8")
        print(f"{source.name}: {sum(file.rows for file in made.measured)} rows")


if __name__ == "__main__":
    main()
