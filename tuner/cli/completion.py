"""``nccl-tuner completion``: what a shell runs to complete commands, options and names."""

import click
from click.shell_completion import get_completion_class


@click.command(name="completion")
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
def command(shell: str) -> None:
    """Prints what completes commands, options and their values in SHELL.

    \b
    eval "$(nccl-tuner completion bash)"                 # in ~/.bashrc
    eval "$(nccl-tuner completion zsh)"                  # in ~/.zshrc
    nccl-tuner completion fish > ~/.config/fish/completions/nccl-tuner.fish
    """
    from tuner.cli import everything

    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(everything, {}, "nccl-tuner", "_NCCL_TUNER_COMPLETE").source())
