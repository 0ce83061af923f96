"""What clouds, images and frameworks really set: how much of it is refused, and why, and whether libnccl agrees.

python -m benchmarks.doors [--draws 700] [--seed 1] [--compare 300]

``doors.toml`` has the facts that it draws from. What NCCL itself fails at is counted apart from what is refused here.
Both have to print a command that answers. ``--compare`` asks
the libnccl of so many of those that are answered, on simulated devices, and counts every difference.
"""

import argparse
import contextlib
import io
import re
import shlex
import sys
import time
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

FACTS = Path(__file__).with_suffix(".toml")
TRIES = 3  # commands in a row that refusals print, until one answers
FAILS = "NCCL itself fails here"
TRY = re.compile(r"^try: (.*)$", re.MULTILINE)
MOST_RANKS = 32  # of a communicator that libnccl is asked about: it starts a thread for each
COMPARED_BYTES = (1 << 12, 1 << 16, 1 << 20, 1 << 24, 1 << 28, 1 << 31)


@dataclass(frozen=True)
class Configuration:
    """A call on a machine, with the variables that somebody sets there."""

    site: str
    framework: str
    machine: str
    nodes: int
    nccl: str
    collective: str
    bytes: str
    buffers: str
    environment: Mapping[str, str]

    def words(self) -> list[str]:
        """Arguments of ``nccl-tuner`` that ask for its pick."""
        shape = ["--machine", self.machine, "--nodes", str(self.nodes), "--nccl", self.nccl]
        call = ["pick", self.collective, "--bytes", self.bytes, *shape]
        buffers = [] if self.buffers == "plain" else ["--buffers", self.buffers]
        return [*call, *buffers, *(word for each in self.environment.items() for word in ("--env", "=".join(each)))]


@dataclass(frozen=True)
class Answer:
    """What a command ended with and printed."""

    code: int
    output: str
    errors: str


def facts() -> dict[str, Any]:
    """The sites and frameworks of ``doors.toml``."""
    return tomllib.loads(FACTS.read_text(encoding="utf-8"))


def draw(number: int, seed: int) -> Iterator[Configuration]:
    """So many configurations, the same for a seed; each site as often as it has machines."""
    known, random = facts(), Random(f"doors {seed}")
    sites = [(name, machine) for name, site in known["site"].items() for machine in site["machines"]]
    for _ in range(number):
        site, machine = random.choice(sites)
        framework = random.choice([*known["framework"]])
        environment = dict(known["site"][site]["base"])
        for bundles in (known["site"][site], known["framework"][framework]):
            for bundle in bundles["some"]:
                environment |= bundle if random.random() < 0.5 else {}
            environment |= random.choice([*bundles["alone"], {}])
        names = [random.choice(known[of]) for of in ("releases", "collectives", "bytes", "buffers")]
        nccl, collective, nbytes, buffers = names
        nodes = random.choice(known["site"][site]["nodes"])
        yield Configuration(site, framework, machine, nodes, nccl, collective, nbytes, buffers, environment)


def run(words: Sequence[str]) -> Answer:
    """Runs ``nccl-tuner`` in this process."""
    from tuner import cli

    output, errors = io.StringIO(), io.StringIO()
    with (
        contextlib.redirect_stdout(output),
        contextlib.redirect_stderr(errors),
        patch.object(sys, "argv", ["nccl-tuner", *words]),
    ):
        try:
            cli.main()
        except SystemExit as end:
            return Answer(int(end.code or 0), output.getvalue(), errors.getvalue())
    return Answer(0, output.getvalue(), errors.getvalue())


def led_on(refused: Answer) -> Answer | None:
    """The answer of the command that a refusal prints, or of the one that this prints; None where none answers."""
    for _ in range(TRIES):
        if (tried := TRY.search(refused.errors)) is None:
            return None
        refused = run(shlex.split(tried[1])[1:])
        if refused.code == 0:
            return refused
    return None


def reason(errors: str) -> str:
    """The kind of a refusal: its message without names and numbers."""
    line = next((each for each in errors.splitlines() if each.startswith("nccl-tuner: ")), errors)
    return re.sub(r"\d+(\.\d+)*", "N", line.removeprefix("nccl-tuner: "))[:90]


def differences(configuration: Configuration) -> list[str]:
    """What libnccl chooses otherwise, on a communicator of the same machine; small enough to simulate."""
    from tuner.base.names import Buffers, Collective, DataType, Op
    from tuner.emulator.request import Request
    from tuner.oracle.conformance.check import check
    from tuner.oracle.process import OWN_VARIABLES
    from tuner.release import named
    from tuner.scenario.describe import describe

    # The simulation sets some itself, and others than NCCL's reach no choice.
    own = {name for name in configuration.environment if not name.startswith("NCCL_")} | OWN_VARIABLES
    env = {name: value for name, value in configuration.environment.items() if name not in own}
    described = describe(configuration.machine, nccl=named(configuration.nccl), env=env, nodes=configuration.nodes)
    if (ranks := described.communicator().ranks) > MOST_RANKS:
        described = replace(described, nodes=max(1, MOST_RANKS * configuration.nodes // ranks))
    collective = next(each for each in Collective if each.name.lower() == configuration.collective)
    request = Request(collective, DataType.float32, Op.sum, buffers=Buffers[configuration.buffers])
    unit = request.unit_bytes(described.communicator().ranks)
    report = check(described, [request], sizes=[max(unit, nbytes // unit * unit) for nbytes in COMPARED_BYTES])
    return [str(each) for each in report.mismatches]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=700)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--compare", type=int, default=0, metavar="N")
    parser.add_argument("--show", action="store_true", help="every refusal, with its command")
    options = parser.parse_args()
    refused: Counter[str] = Counter()
    failing: Counter[str] = Counter()  # in NCCL itself
    answered, stuck, began = [], [], time.monotonic()
    for each in draw(options.draws, options.seed):
        answer = run(each.words())
        if answer.code == 0:
            answered.append(each)
            continue
        (failing if FAILS in answer.errors else refused)[reason(answer.errors)] += 1
        if led_on(answer) is None:
            stuck.append((each, answer))
        if options.show:
            print(shlex.join(["nccl-tuner", *each.words()]), answer.errors, sep="\n")
    for kind, number in [*failing.most_common(), *refused.most_common()]:
        print(f"{number:5} {kind}")
    share = refused.total() / options.draws
    print(f"{refused.total()} of {options.draws} refused ({share:.1%}), {failing.total()} that NCCL itself fails at, "
          f"{len(stuck)} without a command that answers, {time.monotonic() - began:.0f} s")  # fmt: skip
    _compare(answered, options.compare, options.seed)


def _compare(answered: Sequence[Configuration], number: int, seed: int) -> None:
    from tuner.base.errors import TunerError

    unlike: list[str] = []
    compared = failed = 0
    for each in Random(seed).sample(answered, len(answered)) if number else ():
        if compared == number:
            break
        try:
            found = differences(each)
        except TunerError as error:
            failed += 1
            print(f"not compared: {error}: {shlex.join(each.words())}", flush=True)
            continue
        compared += 1
        unlike += [f"{shlex.join(each.words())}: {line}" for line in found[:1]]
    if number:
        print(*unlike, sep="\n")
        print(f"{compared} compared with libnccl: {len(unlike)} with differences; {failed} not compared")


if __name__ == "__main__":
    main()
