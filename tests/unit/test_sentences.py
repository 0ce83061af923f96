"""No code decides by a sentence that this project makes: rewording a message must change no verdict."""

import pytest

from tests.support import sentences, structure

# Of these the words are others': what sqlite3 says when an authorizer refuses is all that tells it from a broken file.
OF_OTHERS = {"tuner/base/bounds.py": 1}


def test_no_code_looks_into_a_sentence() -> None:
    found = {path: sentences.found_in(source) for path, source in structure.sources().items()}
    counts = {path: len(lines) for path, lines in found.items() if lines}
    assert counts == OF_OTHERS, {path: found[path] for path in counts}


@pytest.mark.parametrize(
    "code",
    [
        'try: f()\nexcept BadInput as error:\n    if "no line" in str(error): raise',
        'try: f()\nexcept BadInput as error:\n    if "no line" not in error.args[0]: raise',
        'try: f()\nexcept BadInput as error:\n    if str(error).startswith("no line"): raise',
        'try: f()\nexcept BadInput as error:\n    if re.search("no line", str(error)): raise',
        'try: f()\nexcept BadInput as error:\n    g(str(error).partition("; ")[0])',
        'if step.says.startswith("too few"): f()',
        'if " because: " in finding.reason: f()',
        'if "slow" in words(finding): f()',
        'name = device.says.removeprefix("the adapter at ")',
    ],
)
def test_what_looks_into_a_sentence_is_found(code: str) -> None:
    assert len(sentences.found_in(code)) == 1


@pytest.mark.parametrize(
    "code",
    [
        'try: f()\nexcept BadInput as error:\n    raise BadInput(f"{path}: {error}")',
        'try: f()\nexcept OSError as error:\n    say(" ".join(str(error).split()))',
        'if line.startswith("NCCL version"): f()',
        'if finding.code == "accept.step": f()',
    ],
)
def test_what_says_a_sentence_is_not(code: str) -> None:
    assert sentences.found_in(code) == []
