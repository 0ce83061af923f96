"""Prints the releases that `make test` fetches: the few that the live tests ask, without the installed one."""

from tests.support.available_releases import FEW, INTERFACES
from tuner import release
from tuner.oracle import library

if __name__ == "__main__":
    wanted = (FEW | INTERFACES) - {library.installed_release()}
    print(*(name for name in release.names() if name in wanted))
