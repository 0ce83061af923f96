"""Windows of memory that ranks register together (ncclCommWindowRegister): which buffers have one, with which flags."""

from collections.abc import Sequence
from enum import IntFlag

from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput, did_you_mean, one_of
from tuner.base.names import Buffers


class Sides(IntFlag):
    """Buffers of a call: the one that is sent from, the one that is received into."""

    none = 0
    send = 1
    receive = 2
    both = 3


class WindowFlag(IntFlag):
    """``NCCL_WIN_*``. Source: src/nccl.h.in, v2.30.7-1, and nccl.h of the wheel of 2.32.3."""

    DEFAULT = 0
    COLL_SYMMETRIC = 1
    STRICT_ORDERING = 2
    GIN_ONLY = 4
    CFT_COUNTED = 8


@dataclass(frozen=True, slots=True)
class Windows:
    """The windows of a call; a buffer without one is plain."""

    sides: Sides = Sides.both
    flags: WindowFlag = WindowFlag.COLL_SYMMETRIC

    @property
    def symmetric(self) -> Sides:
        """Buffers in symmetric windows, as far as flags say."""
        return self.sides if WindowFlag.COLL_SYMMETRIC in self.flags else Sides.none

    @property
    def words(self) -> str:
        """What differs from the default, for headings: `` of send, default``."""
        sides = "" if self.sides is Sides.both else f" of {self.sides.name}"
        flags = "" if self.flags == WindowFlag.COLL_SYMMETRIC else f", {flag_words(self.flags)}"
        return f"{sides}{flags}"


SYMMETRIC = Windows()  # both buffers in windows with NCCL_WIN_COLL_SYMMETRIC


def flag_words(flags: WindowFlag) -> str:
    """Flags as options have them: ``coll-symmetric,strict-ordering``."""
    return ",".join(_word(flag) for flag in flags) or _word(WindowFlag.DEFAULT)


def flags_of(words: WindowFlag | str | Sequence[str]) -> WindowFlag:
    """NCCL's names without NCCL_WIN_, in any case, with commas between them. BadInput for an unknown one."""
    if isinstance(words, WindowFlag):
        return words
    flags = WindowFlag.DEFAULT
    known = {_word(flag): flag for flag in WindowFlag.__members__.values()}
    for each in words.split(",") if isinstance(words, str) else words:
        word = each.strip().lower().replace("_", "-").removeprefix("nccl-win-")
        if word not in known:
            raise BadInput(f"unknown window flag {each!r}{did_you_mean(word, [*known])}; {one_of([*known])}")
        flags |= known[word]
    return flags


def _word(flag: WindowFlag) -> str:
    return (flag.name or str(int(flag))).lower().replace("_", "-")


def windows_of(buffers: Buffers, sides: str | None, flags: WindowFlag | str | Sequence[str] | None) -> Windows:
    """From words, None for the default. BadInput for unknown ones, and where buffers are no windows."""
    if buffers is not Buffers.window and (sides, flags) != (None, None):
        raise BadInput("`windows` and `window_flags` need `buffers` window")
    if sides not in (None, "send", "receive", "both"):
        raise BadInput(f"unknown windows {sides!r}; {one_of(['send', 'receive', 'both'])}")
    return Windows(Sides[sides or "both"], WindowFlag.COLL_SYMMETRIC if flags is None else flags_of(flags))
