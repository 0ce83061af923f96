"""Entry of the command ``nccl-tuner`` and of ``python -m tuner``; it handles Ctrl-C before anything else is loaded."""

import os
import signal

INTERRUPTED = 130  # 128 + SIGINT, as shells have it


def _end(number: int, frame: object) -> None:
    os._exit(INTERRUPTED)


def main() -> None:
    """Runs the command line. Ctrl-C while it loads, which takes a moment, ends it silently."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else it was started to ignore interrupts
        signal.signal(signal.SIGINT, _end)
    from tuner.cli import main as answer

    answer()


if __name__ == "__main__":
    main()
