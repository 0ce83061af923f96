"""Each-choice coverage of a parametrised test: fewer cases, which have every value of each parameter all the same."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from hashlib import sha256

import pytest


def beyond_each_choice(items: Iterable[pytest.Item]) -> Iterator[pytest.Item]:
    """The cases all of whose values other cases of their test have, in an order that is the same in every process."""
    seen: defaultdict[str, set[tuple[str, str]]] = defaultdict(set)
    for item in sorted(items, key=lambda item: sha256(item.nodeid.encode()).digest()):
        test, _, _ = item.nodeid.partition("[")
        assert isinstance(item, pytest.Function)
        values = {(name, repr(value)) for name, value in item.callspec.params.items()}
        if values <= seen[test]:
            yield item
        seen[test] |= values
