"""`make man`: a man page of every command into man/, which the wheels install into share/man/man1."""

import shutil
from importlib.metadata import version
from inspect import cleandoc
from pathlib import Path

import click
from click_man.core import write_man_pages

from tuner.cli import everything
from tuner.cli.command import Group

MAN = Path(__file__).parents[1] / "man"


def load(group: click.Group) -> None:
    """Loads what a group loads when it is called: click-man looks at ``commands`` alone."""
    context = click.Context(group)
    group.help = roff(group.help or "")
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None, name
        if isinstance(command, Group):
            load(command)
        else:
            command.help = roff(command.help or "")
        command.short_help = group.verbs[name] if isinstance(group, Group) and name in group.verbs else None
        group.commands[name] = command


def roff(text: str) -> str:
    """The help of a command: what click leaves as it is (below a \\b) stays so in a man page, too."""
    paragraphs = []
    for paragraph in cleandoc(text).split("\n\n"):
        lines = [f"\\&{line}" if line.startswith((".", "'")) else line for line in paragraph.split("\n")]
        if lines[0] == "\b":
            lines = [".nf", *(line.replace("-", r"\-") for line in lines[1:]), ".fi"]
        paragraphs.append("\n".join(lines))
    return "\n\n".join(paragraphs)


def main(folder: Path = MAN) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    load(everything)
    write_man_pages("nccl-tuner", everything, version=version("nccl-tuner"), target_dir=str(folder))
    print(f"wrote {sum(1 for _ in folder.iterdir())} pages into {folder}")


if __name__ == "__main__":
    main()
