"""Diagnosis of all ranks' Flight Recorder dumps: who did not call what others wait in."""

from collections.abc import Sequence
from pathlib import Path

from tuner.base.findings import Severity
from tuner.base.sizes import plural
from tuner.jobs.diagnosis.kinds import dumps
from tuner.jobs.diagnosis.records import MOST_EVIDENCE, FileDiagnosis, FileKind, KnownFacts, in_sentences
from tuner.jobs.traces import flight_recorder


def of_recorder(folder: Path, known: KnownFacts) -> FileDiagnosis:
    """The finding of all ranks' dumps: who did not call what others wait in."""
    dumped, absent, behind, untold = flight_recorder.laggards(dumps(folder))
    evidence = [f"{plural(len(dumped), 'rank')} with a dump"]
    if absent:
        evidence.append(
            f"without a whole dump: {named_ranks(absent)}: they ended, or hang where the recorder does not run"
        )
    if untold:
        evidence.append(
            f"may be behind: {named_ranks(untold)}: the recorder dropped its calls in a group where others wait"
        )
    late = [
        f"rank {each.rank} {'has no call' if each.at is None else f'is at {each.at}'} in {each.group}, where "
        f"{named_ranks(each.others)} {'is' if len(each.others) == 1 else 'are'} at {each.name} {each.other_at}"
        for each in behind
    ]
    if behind:
        which = named_ranks([each.rank for each in behind])
        says = f"{which} did not call what others wait in: their stacks, their GPUs (dmesg, Xid), their own logs"
        return in_sentences(folder, FileKind.recorder, Severity.FAULT, says, [*late, *evidence], known)
    says = "no rank with a dump is behind the others of its process groups: a rank without one, a GPU or the network"
    if untold:
        says = f"whether {named_ranks(untold)} called what others wait in; valid: a larger TORCH_NCCL_TRACE_BUFFER_SIZE"
    return in_sentences(folder, FileKind.recorder, Severity.UNKNOWN, says, evidence, known)


def named_ranks(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:MOST_EVIDENCE]))
    return f"rank{'s' * (len(ranks) > 1)} {shown}{' ...' * (len(ranks) > MOST_EVIDENCE)}"
