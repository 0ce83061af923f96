"""Options that say which buffers a call has."""

import click

from tuner.base.names import Buffers
from tuner.cli.named import Named

buffers_option = click.option(
    "--buffers",
    type=Named(Buffers, "kind of buffers"),
    default="plain",
    show_default=True,
    metavar="|".join(Buffers.__members__),
    help="How the buffers are registered: plain (not at all), registered (ncclCommRegister), window "
    "(ncclCommWindowRegister, symmetric), graph (by NCCL, as the call is captured into a CUDA graph).",
)
in_place_option = click.option(
    "--in-place", is_flag=True, help="What is received replaces what is sent; only calls on registered buffers differ."
)
