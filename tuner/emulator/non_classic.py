"""A collective off the classic path: no algorithm, protocol and channels, but a kernel of another kind or none."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NonClassicPath:
    """How a call runs instead; a copy engine runs no kernel."""

    kernel: str | None  # NCCL's name, such as "AllReduce_AGxLL_R"; None: copy engines
    blocks: int
    threads: int  # of a block

    @property
    def name(self) -> str:
        """What takes the call, as commands print it."""
        return "copy engines" if self.kernel is None else f"symmetric kernel {self.kernel}"


COPY_ENGINES = NonClassicPath(None, 0, 0)
