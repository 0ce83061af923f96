"""A tuner whose answers are in a file, a decision table or NVIDIA's CSV, which this project's plugin decides by."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from tuner.base.errors import BadTable
from tuner.base.names import ALGO_PROTOS
from tuner.emulator.communicator import Communicator
from tuner.emulator.request import Request
from tuner.emulator.selection import Selection
from tuner.emulator.tuner_plugin import ChunkQuestion, TunerAnswers, TunerQuestion
from tuner.plugin import loading
from tuner.plugin.asked import opened
from tuner.plugin.formats import convert
from tuner.plugin.table.records import Interval, Table


@dataclass(frozen=True)  # without slots, for the table that is read once
class FileTuner:
    """This project's plugin with a file of the format ``table`` or ``nvidia``."""

    format: str
    file: Path

    @property
    def title(self) -> str:
        """Name as it is asked for: ``table:pod.table``."""
        return f"{self.format}:{self.file}"

    @property
    def settings(self) -> Mapping[str, str]:
        """None: no variable of NCCL comes with it."""
        return {}

    @cached_property
    def _table(self) -> Table:
        read = convert.read(self.file)
        if read.format != self.format:
            raise BadTable(f"{self.file}: of the format {read.format}, not {self.format}; valid: {read.format}:FILE")
        return read.table

    def answers(self, question: TunerQuestion) -> TunerAnswers:
        """Cells and channels by the file. Errors: BadTable, BadInput for a release without plugins."""
        _ = self._table  # which says what is wrong with the file
        answers = TunerAnswers.none(len(question.nbytes))
        selection = Selection(replace(question.communicator, tuner=None))
        costs_us = question.cost_table_us
        with opened(self.file, selection) as asked:
            for at, size in enumerate(question.nbytes.tolist()):
                tuned = asked.answer(asked.call(question.request, size), costs_us[at])
                if tuned is not None:
                    answers.cell[at], answers.channels[at] = ALGO_PROTOS.index(tuned.algo_proto), tuned.channels
        return answers

    def breaks(self, communicator: Communicator, request: Request) -> Sequence[int]:
        """Sizes in bytes at which a row begins, and the last ones before."""
        rows = (*self._table.decisions, *self._table.costs)
        starts = {start for row in rows for start in _starts(row.bytes, 1)}
        starts |= {start for row in rows for start in _starts(row.bytes_per_rank, communicator.ranks)}
        return sorted(start + more for start in starts for more in (-1, 0) if 0 < start + more < 2**62)

    def may_flicker(self, communicator: Communicator, request: Request) -> bool:
        """No: rows have ends."""
        return False

    def why_not(self, communicator: Communicator) -> str | None:
        """None: every communicator may have rows."""
        return None

    def chunk_bytes(self, question: ChunkQuestion) -> int | None:
        """The chunk size of the row that chose; None where NCCL does not ask the plugin, as no row has one."""
        communicator, request = question.communicator, question.request
        if not self.chunks_follow_choices or not loading.interface(communicator.release).asks_chunks:
            return None
        selection = Selection(replace(communicator, tuner=None))
        with opened(self.file, selection) as asked:
            asked.answer(
                asked.call(request, question.call_bytes), selection.cost_table(request, question.call_bytes)[0]
            )
            return asked.plugin.chunk_bytes(request.collective, *question.algo_proto, question.chunk_bytes)

    @property
    def chunks_follow_choices(self) -> bool:
        """Whether a row has a chunk size."""
        return any(choice.chunk_bytes for row in self._table.decisions for choice in row.choices)


def _starts(interval: Interval, ranks: int) -> list[int]:
    ends = [] if interval.high is None else [(interval.high + 1) * ranks]
    return [interval.low * ranks, *ends]
