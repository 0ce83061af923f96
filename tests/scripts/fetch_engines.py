"""Fetches what the tests ask of serving engines' own packages, a few files each, into the cache's folder engines.

    python -m tests.scripts.fetch_engines

What cannot be fetched is no error: the tests that ask it are skipped and say so.
"""

from tests.support.serving import COMPARED
from tuner.base.errors import OracleUnavailable
from tuner.engines import releases
from tuner.oracle import serving

if __name__ == "__main__":
    for name in COMPARED:
        try:
            print(f"{serving.fetch(releases.load(name), print)} is there")
        except OracleUnavailable as error:
            print(f"{name} is not fetched: {error}")
