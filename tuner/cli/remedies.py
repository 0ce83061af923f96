"""Makes the command line to suggest in place of a refused one, from the remedies of its error."""

import shlex
from collections.abc import Sequence

from tuner.base.errors import Remedy
from tuner.base.spelling import Spelling

ADDED = ("env", "nodes", "trays", "gpus_per_tray")  # parameters that a command gets where it does not have them
OWN = ("NCCL_", "OFI_NCCL_")  # variables that are shown: others may hold secrets, and change nothing


def command(words: Sequence[str], remedies: Sequence[Remedy]) -> str | None:
    """The command with the remedies applied, as text for a shell; None if it lacks the options that they change.

    ``words`` are its arguments, without the program's name.
    """
    pairs = _pairs(words)
    added = [each for each in remedies if _is_added(each, pairs)]
    changing = {Spelling.COMMAND_LINE.option(each.parameter) for each in remedies if each not in added}
    if not remedies or not changing - {"--env"} <= {option for option, _ in pairs}:
        return None
    changed: list[str] = []
    for option, value in pairs:
        of_option = [each for each in remedies if Spelling.COMMAND_LINE.option(each.parameter) == option]
        cure = next((each for each in of_option if each.given in (None, value.partition("=")[0])), None)
        if _is_hidden(option, value):
            continue
        if cure is None:
            changed += [option, value] if option else [value]
        elif cure.value is not None:
            changed += [option, cure.value if cure.given is None else f"{cure.given}={cure.value}"]
    for each in added:
        value = each.value or ""
        changed += [
            Spelling.COMMAND_LINE.option(each.parameter),
            value if each.given is None else f"{each.given}={value}",
        ]
    kept = [word for pair in pairs if not _is_hidden(*pair) for word in pair if word]
    return None if changed == kept else shlex.join(["nccl-tuner", *changed])


def _is_hidden(option: str, value: str) -> bool:
    return option == "--env" and not value.startswith(OWN)


def _is_added(remedy: Remedy, pairs: Sequence[tuple[str, str]]) -> bool:
    """Whether the remedy adds a variable, or a number of a machine's parts, that the command does not have yet."""
    option = Spelling.COMMAND_LINE.option(remedy.parameter)
    given = {value.partition("=")[0] if remedy.given else None for each, value in pairs if each == option}
    return remedy.parameter in ADDED and remedy.value is not None and remedy.given not in given


def _pairs(words: Sequence[str]) -> list[tuple[str, str]]:
    """Pairs of an option and its value; for arguments and flags, the option is empty."""
    pairs, rest = [], list(words)
    while rest:
        word = rest.pop(0)
        option, equals, value = word.partition("=")
        if word.startswith("--") and equals:
            pairs.append((option, value))
        elif word.startswith("--") and rest and not rest[0].startswith("--"):
            pairs.append((word, rest.pop(0)))
        else:
            pairs.append(("", word))
    return pairs
