"""``nccl-tuner check log``: the emulator against what a run printed."""

import sys
from typing import Any

import click

from tuner.base.errors import BadInput
from tuner.cli import options
from tuner.cli.log_options import LogOptions, log_options, read_log
from tuner.cli.output import print_json, print_table, say
from tuner.oracle.conformance.check_log import KINDS, Compared, compare


@click.command(name="log", cls=options.Command)
@options.under(
    "What a log seldom lacks", "--cpu-arch", "--cpu-vendor", "--nvswitch", "--nic-latency-us", "--slowest-path-gbs"
)
@log_options
@options.call_options(buffers=False, in_place=False, windows=False)
@options.json_option
def command(call: options.CallOptions, as_json: bool, **given: Any) -> None:
    """Says whether the emulator agrees with what the run that wrote FILE printed.

    Compares, as the text NCCL prints, every cell of the tuning table, threads, thread thresholds, channels and
    choices. --dtype and --op are of calls whose own the log does not say (NCCL_DEBUG_SUBSYS=COLL says them). Exit code
    1 if anything differs, 2 if nothing can be compared.

    \b
    nccl-tuner check log nccl.log --comp-cap 8.0
    """
    imported = read_log(LogOptions(**given))
    compared = compare(imported, call.dtype, call.op)
    if not compared.report.compared:
        raise BadInput(f"nothing to compare: {'; '.join(compared.missing + compared.not_compared)}")
    if as_json:
        print_json(compared)
    else:
        _print(compared)
    sys.exit(1 if compared.report.mismatches else 0)


def _print(compared: Compared) -> None:
    report = compared.report
    print_table(
        "matched / compared with the log",
        ("communicator", *KINDS),
        [(report.title, *(f"{report.matched.get(kind, 0)}/{report.compared.get(kind, 0)}" for kind in KINDS))],
    )
    for mismatch in report.mismatches:
        say(f"MISMATCH {mismatch.what} {mismatch.where}: emulator {mismatch.emulator}, log {mismatch.libnccl}")
    for what, texts in (
        ("note", compared.notes),
        ("not printed", compared.missing),
        ("not compared", compared.not_compared),
    ):
        for text in texts:
            say(f"{what}: {text}")
