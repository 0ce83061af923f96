"""README's table of releases says what the last `make test-releases` found, and that it found what it has to."""

import readme
import releases

from tuner import release
from tuner.check import KINDS


def test_the_table_is_that_of_the_file() -> None:
    text = readme.FILE.read_text()
    assert readme.with_table(text, releases.read()) == text, "make readme"


def test_every_release_was_compared_and_matched() -> None:
    found = releases.read()
    assert list(found) == release.names(), "make test-releases"
    for name, row in found.items():
        assert row["libnccl_sha256"] == release.load(name).table["library"]["x86_64"]["sha256"], name
        assert row["failed"] == 0, name
        assert row["cells"]["compared"] >= 500_000, name
        assert all(row[kind]["matched"] == row[kind]["compared"] > 0 for kind in KINDS), name


def test_a_share_is_100_only_where_all_match() -> None:
    assert readme.share(10**6, 10**6) == "100 %"
    assert readme.share(10**6 - 1, 10**6) == "99.99 %"
    assert readme.share(1, 3) == "33.33 %"
