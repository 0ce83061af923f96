"""What somebody may have meant who names a machine that is not in the catalogue."""

import re
from collections.abc import Collection, Mapping
from difflib import SequenceMatcher, get_close_matches

MOST = 8  # names that a message suggests
LEAST_LETTERS = 3  # of a word that is also found inside another, as h100 in DGXH100
CHIP_WEIGHT = 3  # a GPU that is named counts as much as three other words
WEAK = re.compile(r"v?[0-9]+[a-z]?")  # v5, 8g: words that say nothing where they are all that two names share
MISSPELT = 0.9  # likeness of a name with one letter too few or too many: nothing else is suggested then


def nearest(name: str, words: Mapping[str, Collection[str]], chips: Collection[str]) -> tuple[str, ...]:
    """The keys of ``words`` that ``name`` shares most words with, at most :data:`MOST`; else one that is spelled alike.

    ``words`` has what describes each machine, ``chips`` all words that name a GPU (h100), both in lower case. Where
    the name has such a word, machines with other GPUs are none of those that were meant. A version (v5) or a number
    counts beside other words only.
    """
    asked = _words(name)
    said = {chip for chip in chips if _says(asked, chip)}
    named = {chip for chip in said if not any(chip in other and chip != other for other in said)}  # gh200, not h200
    able = {key: known for key, known in words.items() if named <= set(known)} if named else words
    scores = {
        key: _score([word for word in set(known) if _says(asked, word)], named, asked) for key, known in able.items()
    }
    best = max(scores.values(), default=0)
    if best:
        equal = [key for key, score in scores.items() if score == best]
        ranked = sorted(equal, key=lambda key: (-_likeness(name, key), key))[:MOST]
        return tuple(key for key in ranked if _likeness(name, key) >= MISSPELT) or tuple(ranked)
    return tuple(get_close_matches(name.lower(), able, n=1))


def having_all_words(name: str, words: Mapping[str, Collection[str]]) -> tuple[str, ...]:
    """The keys of ``words`` that have every word of the name, whole or as one end of theirs: 4090 of rtx4090."""
    asked = _words(name)
    return tuple(key for key, known in words.items() if asked and all(_is_in(known, word) for word in asked))


def _score(shared: Collection[str], named: Collection[str], asked: Collection[str]) -> int:
    if len(asked) > 1 and all(WEAK.fullmatch(word) for word in shared):
        return 0
    return sum(CHIP_WEIGHT if word in named else 1 for word in shared)


def _is_in(known: Collection[str], word: str) -> bool:
    return any(word == each or _begins_or_ends(each, word) for each in known)


def _likeness(name: str, key: str) -> float:
    return SequenceMatcher(None, name.lower(), key).ratio()


def words_of(*texts: str) -> frozenset[str]:
    """The words of texts that describe a machine, in lower case: {dgx, h100, sxm5} of "dgx-h100", "H100 SXM5"."""
    return frozenset(word for text in texts for word in _words(text))


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", text.lower())


def _says(asked: Collection[str], word: str) -> bool:
    """Whether one of the words asked for is this one, without a number at its end (sxm of sxm5), or has it inside."""
    return any(each in (word, word.rstrip("0123456789")) or _begins_or_ends(each, word) for each in asked)


def _begins_or_ends(text: str, word: str) -> bool:
    """Whether a word is one end of another, and no number is cut: dgx and h100 of dgxh100, not h10 of h100."""
    if len(word) < LEAST_LETTERS:
        return False
    after, before = text.removeprefix(word)[:1], text.removesuffix(word)[-1:]
    begins = text.startswith(word) and not (word[-1].isdigit() and after.isdigit())
    return begins or (text.endswith(word) and not (word[0].isdigit() and before.isdigit()))
