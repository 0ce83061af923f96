"""The forcing plugin, which NCCL has loaded: another table where one is given, and what the plugin did."""

from tuner.oracle.child.world import Failure
from tuner.oracle.messages import Counts, ReadCounts, SetTable


def force(request: SetTable | ReadCounts) -> Counts:
    """Only with the forcing plugin, whose state this process has once."""
    from tuner._native._force import ffi, lib

    if isinstance(request, SetTable):
        text = b"" if request.text is None else request.text.encode()
        wrong = lib.nccl_tuner_use_table(ffi.NULL if request.text is None else text, len(text))
        if wrong != ffi.NULL:
            raise Failure(f"table: {ffi.string(wrong).decode(errors='replace')}")
    seen = ffi.new("struct nccl_tuner_seen *")
    lib.nccl_tuner_see(seen)
    return Counts(seen.calls, seen.decided, seen.unavailable, seen.bytes, seen.collective, tuple(seen.costs_us))
