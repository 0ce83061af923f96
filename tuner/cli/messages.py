"""Options in what the layers below say: they name an argument, `` `gpus_per_node` ``, which has an option here."""

import contextlib
import re
from collections.abc import Iterator

from tuner.base.errors import TunerError

ARGUMENT = re.compile(r"`([a-z][a-z_]*)`")
OTHERWISE = {  # arguments whose option is not called so
    "graphs": "topo-graphs",
    "net_gbps": "nic-gbps",
    "net_gbs": "slowest-path-gbs",
    "net_latency_us": "nic-latency-us",
}


def with_options(text: str) -> str:
    """The text with each argument's option in its place: ``--gpus-per-node``."""
    return ARGUMENT.sub(lambda found: f"--{OTHERWISE.get(found[1], found[1].replace('_', '-'))}", text)


@contextlib.contextmanager
def options_named() -> Iterator[None]:
    """Errors from below say the options of their arguments."""
    try:
        yield
    except TunerError as error:
        error.args = (with_options(str(error)), *error.args[1:])
        raise
