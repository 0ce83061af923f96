"""Whether a search ended because NCCL allows only so many tries."""

from tuner.graphs.ends import DONE
from tuner.graphs.explain.runs import Run
from tuner.graphs.recorded import Attempt

MOST_SEARCHES = 6


def ran_out(attempt: Attempt) -> bool:
    """Whether a search used all the tries that it was allowed, and might have found more."""
    return attempt.left == 0 and not attempt.known


def all_ran_out(found: Run) -> bool:
    """Whether the tries for all searches of the graph were used up, and no slower channels were tried any more."""
    unused = found.nccl.search.tries.all
    for attempt in found.attempts:
        unused -= attempt.allowed
        if unused < 0 and attempt.best.channels:
            return True
        if not attempt.asked.same_channels and attempt.left != DONE:
            unused += attempt.left
    return False


def more_tries_help(found: Run, factor: int) -> bool:
    """Whether so many times the tries let one of the searches that ran out of them find something better."""
    if all_ran_out(found):
        return True
    out = [attempt for attempt in found.attempts if ran_out(attempt)]
    for attempt in reversed(out[-MOST_SEARCHES:]):
        best = found.trial.copied()
        found.loop.channels.search(attempt.asked.copied(), best, attempt.allowed * factor)
        if (best.channels, best.bw_intra, best.bw_inter) != (
            found.trial.channels,
            found.trial.bw_intra,
            found.trial.bw_inter,
        ):
            return True
    return False
