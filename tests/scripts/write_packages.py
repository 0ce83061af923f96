"""Writes tables/packages.toml: which NCCL a package of the index requires, of every release that the index has.

    python -m tests.scripts.write_packages

Asks the index that pip is configured for, for metadata alone. Releases that stand in the file already are kept. Where
it cannot be asked, nothing is written.
"""

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime

from tuner.base import tables

FILE = tables.folder() / "packages.toml"
OLDEST = {"torch": (2, 1), "vllm": (0, 8), "sglang": (0, 5), "jax": (0, 5)}
PLUGINS = {
    "jax": ("jax-cuda13-plugin", "jax-cuda12-plugin")
}  # where what it is asked for with [cuda13] or [cuda12] requires it
NCCL = re.compile(r"nvidia-nccl-cu\d+ ?\(?(==|>=)([\d.]+)")
TORCH = re.compile(r"torch ?\(?==([\d.]+)")
HEAD = """\
# Which NCCL a package requires, by its release: ==, or >= where the newest is installed with it.
#
# Source: the packages' own requirements (Requires-Dist): of torch on nvidia-nccl-cu12 or -cu13, of vllm and sglang on
# the torch that requires it, of jax those of jax-cuda13-plugin or jax-cuda12-plugin.
# Written, and brought up to date, by python -m tests.scripts.write_packages.
"""


def releases(package: str) -> list[str]:
    """Releases that the index has, the oldest first. Errors: CalledProcessError where it cannot be asked."""
    said = _pip("index", "versions", package).splitlines()
    listed = next((line for line in said if line.startswith("Available versions: ")), "")
    numbers = [each for each in listed.partition(": ")[2].split(", ") if re.fullmatch(r"[\d.]+(\.post\d+)?", each)]
    return [each for each in reversed(numbers) if _parts(each) >= OLDEST.get(package, (0,))]


def requirements(package: str, release: str) -> list[str]:
    """Lines of Requires-Dist of one release; none where the index does not have it for this Python."""
    try:
        report = _pip("install", "--dry-run", "--no-deps", "--ignore-installed", "-qq", "--report", "-",
                      f"{package}==={release}")  # fmt: skip
    except subprocess.CalledProcessError:
        return []
    found: list[str] = json.loads(report)["install"][0]["metadata"].get("requires_dist", [])
    return found


def required(known: Mapping[str, Mapping[str, str]], package: str, release: str) -> str | None:
    """What a release requires of NCCL, such as ``==2.27.5``; None where nothing says it."""
    asked = PLUGINS.get(package, (package,))
    lines = next(filter(None, (requirements(each, release) for each in asked)), [])
    if (own := next(filter(None, map(NCCL.match, lines)), None)) is not None:
        return f"{own[1]}{own[2]}"
    torch = next(filter(None, map(TORCH.match, lines)), None)
    return known.get("torch", {}).get(torch[1]) if torch else None


def _parts(release: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", release)))


def _pip(*words: str) -> str:
    done = subprocess.run([sys.executable, "-m", "pip", *words], check=True, capture_output=True, text=True)
    return done.stdout


def written(table: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    """Lines of the file."""
    yield HEAD
    yield f'date = "{datetime.now(UTC).date()}"'
    for package, by_release in table.items():
        yield f"\n[{package}]"
        yield from (f'"{release}" = "{by_release[release]}"' for release in sorted(by_release, key=_parts))


def main() -> None:
    before = tables.toml(FILE) if FILE.is_file() else {}
    table: dict[str, dict[str, str]] = {package: dict(before.get(package, {})) for package in OLDEST}
    for package in OLDEST:
        for release in releases(package):
            if release not in table[package] and (found := required(table, package, release)) is not None:
                table[package][release] = found
                print(package, release, found, flush=True)
    FILE.write_text("\n".join(written(table)) + "\n")


if __name__ == "__main__":
    main()
