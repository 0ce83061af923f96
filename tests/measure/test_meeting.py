"""Arrivals of other processes: each is read once it is there as a whole, wherever what is there of it ends."""

import io
import pickle

import pytest

from tests.support.double import computer

ARRIVAL = (("communicator", 3), "an arrival")
CONTENT = pickle.dumps(ARRIVAL, pickle.HIGHEST_PROTOCOL)
RECORD = len(CONTENT).to_bytes(8, "little") + CONTENT


class Growing(io.BytesIO):
    """A file of which only the first bytes are there when it is read first; the rest is written right after that."""

    def __init__(self, there: int) -> None:
        super().__init__(RECORD)
        self._there: int | None = there

    def read(self, size: int | None = -1, /) -> bytes:
        assert size is not None
        there, self._there = self._there, None
        return super().read(size if there is None else min(size, there))


@pytest.mark.parametrize("there", range(len(RECORD)))
def test_an_arrival_that_is_being_written_is_read_later(there: int) -> None:
    file = Growing(there)
    found = computer._next(file)
    assert found in (None, ARRIVAL)
    if found is None:
        assert file.tell() == 0
        assert computer._next(file) == ARRIVAL
    assert computer._next(file) is None
