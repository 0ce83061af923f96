"""The errors that a user can cause. Each message is one line that says what is wrong, what is valid, and where the
program looked.
"""

from collections.abc import Iterable
from typing import NamedTuple, Self

MOST_LISTED = 12  # the most names that a message lists in full
NEAREST = 5  # names that a message lists if there are more


class Remedy(NamedTuple):
    """A change of a request after which it would be answered: a parameter's new value, or None to remove the parameter.

    ``given`` is used if the parameter holds environment variables: it names the one variable that gets the new value.
    The variable is added if it is not set.
    """

    parameter: str
    value: str | None
    given: str | None = None


class TunerError(Exception):
    """Base of all errors of this project; the message is one complete line.

    ``remedies`` are changes of the request after which it would be answered, as far as they are known. ``by_nccl``:
    whether NCCL itself refuses the request or crashes on it, so that the error is the answer.
    """

    remedies: tuple[Remedy, ...] = ()
    by_nccl = False

    def cured(self, *remedies: Remedy) -> Self:
        """Adds the remedies to this error, and returns the error."""
        self.remedies = remedies
        return self


class BadInput(TunerError):
    """A value from the command line or the environment that cannot be used."""


class NcclFails(BadInput):
    """Raised if NCCL itself refuses the request or crashes on it; the message says which of the two."""

    by_nccl = True


class TooManyRanges(BadInput):
    """Raised if an answer changes with the size more often than can be listed; ``last`` is the largest size that was
    listed."""

    def __init__(self, message: str, last: int) -> None:
        super().__init__(message)
        self.last = last


class UnknownRelease(TunerError):
    """The NCCL release has no table."""


class BadReleaseFile(TunerError):
    """The file of a release cannot be read, or has a wrong form."""


class UnknownMachine(TunerError):
    """The machine's name has no entry in ``tables/machines``."""


class UnknownGpu(TunerError):
    """The GPU model has no entry in ``tables/gpus.toml``."""


class BadTopology(TunerError):
    """A topology or graph file that cannot be read or does not describe a machine."""


class IncompleteTopology(BadTopology):
    """A topology that says where devices are, but does not describe all of them. ``gpus`` is the number of GPUs that it
    does not describe, out of ``of`` GPUs, and ``adapters`` the number of adapters whose speed it does not say.
    """

    def __init__(self, message: str, gpus: int, of: int, adapters: int) -> None:
        super().__init__(message)
        self.gpus, self.of, self.adapters = gpus, of, adapters


class BadTable(TunerError):
    """A decision table that cannot be read."""


class BadConstants(TunerError):
    """A file of fitted constants that cannot be used."""


class BadCalibration(TunerError):
    """A file of calibrated times that cannot be used."""


class BadMeasurement(TunerError):
    """A file of measurements that cannot be read."""


class CannotBeJudged(TunerError):
    """The input can be read, but nothing in it can be judged; the message says what is missing."""

    def __init__(self, missing: str) -> None:
        super().__init__(f"cannot be judged: {missing}")


class MeasuringFailed(TunerError):
    """Measuring on GPUs stopped: a rank is gone, or NCCL or CUDA failed."""


class NoAlgorithm(TunerError):
    """No algorithm is left to pick from; in NCCL, the collective fails, too."""

    by_nccl = True


class OracleUnavailable(TunerError):
    """The real library cannot be asked: it is missing, built for another processor architecture, or stripped."""


class OracleFailed(TunerError):
    """The real library did not answer: it crashed, hung or returned an error.

    ``what`` is the message without the last lines of NCCL's log. ``returned``: whether NCCL itself returned an error;
    ``ended``: whether the process that runs NCCL crashed or ended; ``silent``: whether it did not answer in time.
    """

    def __init__(
        self, what: str, last_lines: str = "", returned: bool = False, ended: bool = False, silent: bool = False
    ) -> None:
        super().__init__(f"{what}; NCCL's last lines: {last_lines}" if last_lines else what)
        self.what, self.returned, self.ended, self.silent = what, returned, ended, silent


def one_of(values: Iterable[object]) -> str:
    """Text such as ``valid: a, b, c``, to end a message."""
    return "valid: " + ", ".join(str(value) for value in values)


def did_you_mean(name: str, valid: Iterable[str]) -> str:
    """Text such as ``; did you mean dgx-h100?`` if the name is close to a valid one, whatever the case; else an empty
    text."""
    import difflib

    spelled = {each.lower(): each for each in valid}
    close = difflib.get_close_matches(name.lower(), spelled, n=1)
    return f"; did you mean {spelled[close[0]]}?" if close else ""


def nearest_of(name: str, valid: Iterable[str]) -> str:
    """Text such as ``valid: a, b, c, d, e and 28 more``, which lists the values nearest to the name first; all values
    if they are a dozen or fewer."""
    import difflib

    spelled = {each.lower(): each for each in valid}
    if len(spelled) <= MOST_LISTED:
        return one_of(spelled.values())
    close = difflib.get_close_matches(name.lower(), spelled, n=NEAREST, cutoff=0)
    return f"{one_of(spelled[each] for each in close)} and {len(spelled) - len(close)} more"
