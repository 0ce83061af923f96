"""A command line that is answered in place of one that is refused, from the remedies of its error."""

import shlex
from collections.abc import Sequence

from tuner.base.errors import Remedy
from tuner.base.spelling import Spelling

OWN = "NCCL_"  # variables that are shown: others may hold secrets, and change nothing


def command(words: Sequence[str], remedies: Sequence[Remedy]) -> str | None:
    """The command with the remedies, as a shell takes it; None where it does not have what they change.

    ``words`` are its arguments, without the program's name.
    """
    pairs, options = _pairs(words), {Spelling.COMMAND_LINE.option(each.parameter): each for each in remedies}
    if not remedies or not options.keys() <= {option for option, _ in pairs}:
        return None
    changed: list[str] = []
    for option, value in pairs:
        of_option = [each for each in remedies if Spelling.COMMAND_LINE.option(each.parameter) == option]
        cure = next((each for each in of_option if each.given in (None, value.partition("=")[0])), None)
        if option == "--env" and not value.startswith(OWN):
            continue
        if cure is None:
            changed += [option, value] if option else [value]
        elif cure.value is not None:
            changed += [option, cure.value if cure.given is None else f"{cure.given}={cure.value}"]
    return shlex.join(["nccl-tuner", *changed])


def _pairs(words: Sequence[str]) -> list[tuple[str, str]]:
    """Options with their values; of an argument or a flag the option is empty."""
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
