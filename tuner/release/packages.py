"""Finds the NCCL release that a package installs, for users who only know the package: ``torch==2.13.0``, or a pip
freeze.

``tables/packages.toml`` has the requirements that the packages state, ``tables/images.toml`` the NCCL releases in
NVIDIA's container images.
"""

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from tuner.base import tables
from tuner.base.errors import Remedy, UnknownRelease, one_of
from tuner.base.expressions import expression
from tuner.base.files import read_bytes

ASKED = expression(r"([a-z][a-z0-9_-]*)(?:\[[\w,-]*\])?(?:={2,3}|@)v?(\d[\w.]*)(\+[\w.]+)?", re.IGNORECASE)
ALONE = expression(r"([a-z][a-z0-9_-]*)(?:\[[\w,-]*\])?", re.IGNORECASE)  # a package without its release
LIST = (".txt", ".lock", ".freeze")  # the endings of files that list packages
PINNED = expression(r"^\s*([a-z][\w.-]*)(?:\[[\w,-]*\])?\s*==\s*(\d[\w.]*)(\+[\w.]+)?", re.IGNORECASE | re.MULTILINE)
IMAGE = expression(r"ngc[-:@]?\S*|nvcr\.io/\S+|(?!\S*libnccl)[\w.-]+(?:/[\w.-]+)+:[\w.-]+", re.IGNORECASE)
# Images by others than NVIDIA, named after a package and its release; what else they contain differs.
CALLED_AFTER = expression(r"\S*/(?:(vllm)|(sglang)|(pytorch))[\w-]*:v?(\d+(?:\.\d+)+(?:\.post\d+)?)\S*", re.IGNORECASE)
TAG = expression(r"(?:ngc[-:@=]*|nvcr\.io/nvidia/([\w-]+):)(\d\d\.\d\d)(?:[-.]\S*)?", re.IGNORECASE)
OWN = "nvidia-nccl-cu"  # the beginning of the names of NCCL's own packages
MOST_BYTES = 1 << 20
EXACTLY = "=="


def names_one(text: str) -> bool:
    """Whether a text names a package, a list of packages, or an image, rather than a release of NCCL."""
    if text.endswith(LIST) or any(form.fullmatch(text) for form in (ASKED, IMAGE)):
        return True
    alone = ALONE.fullmatch(text)
    return alone is not None and _spelled(alone[1]) in _table()


def release_in(text: str, newest: str) -> str:
    """The NCCL release in a package or image (see :func:`names_one`).

    ``newest`` is the release that the error's message suggests if a package does not determine NCCL's release.

    Raises UnknownRelease for an unknown package, package release or image, for a package that leaves NCCL's release
    open, and for a list without a package that installs NCCL.
    """
    if text.endswith(LIST):
        return _of_list(Path(text), newest)
    if (asked := ASKED.fullmatch(text)) is not None:
        return _of_package(_spelled(asked[1]), asked[2], newest, asked[3] or "")
    if (alone := ALONE.fullmatch(text)) is not None and _spelled(alone[1]) in _table():
        return _of_newest(text, _spelled(alone[1]), newest)
    return _of_image(text)


def _spelled(package: str) -> str:
    return package.lower().replace("_", "-")


def _of_newest(text: str, package: str, newest: str) -> str:
    """Raises UnknownRelease for a package without a release: the error names the newest known one, or says that this
    leaves NCCL open."""
    last = list(_table()[package])[-1]
    _of_package(package, last, newest)
    raise UnknownRelease(
        f"{text} does not say which release of the package it is: add it, as in {package}=={last}"
    ).cured(Remedy("nccl", f"{package}=={last}"))


def _of_image(text: str) -> str:
    """The NCCL release in an NVIDIA image, by its tag. Between two known tags it is answered if both have the same
    NCCL."""
    table, asks = _images(), "the image says it: docker run IMAGE printenv NCCL_VERSION"
    tag = TAG.fullmatch(text)
    if tag is None or (tag[1] or "pytorch").lower() not in table["images"]:
        valid = f"valid: ngc-YY.MM, or nvcr.io/nvidia/IMAGE:YY.MM of {', '.join(table['images'])}"
        refused = UnknownRelease(
            f"the NCCL release in {text} is not known, because no table lists that image; {asks}; {valid}"
        )
        if (called := CALLED_AFTER.fullmatch(text)) is not None:
            package = next(
                name for name, named in zip(("vllm", "sglang", "torch"), called.groups()[:3], strict=True) if named
            )
            refused = refused.cured(Remedy("nccl", f"{package}=={called[4]}"))
        raise refused
    rows: dict[str, str] = {name: row["nccl"] for name, row in table["nccl"].items()}
    if tag[2] in rows:
        return rows[tag[2]]
    before = max((name for name in rows if name < tag[2]), default=None)
    after = min((name for name in rows if name > tag[2]), default=None)
    if before is not None and after is not None and rows[before] == rows[after]:
        return rows[before]
    sides = " and ".join(f"{name} has {rows[name]}" for name in (before, after) if name is not None)
    near = rows[before or after or max(rows)]
    raise UnknownRelease(
        f"the NCCL release in the images {tag[2]} is not in tables/images.toml, where {sides}; {asks}; give an NCCL "
        f"release, or a tag of {', '.join(rows)}"
    ).cured(Remedy("nccl", near))


def _of_list(path: Path, newest: str) -> str:
    content = read_bytes(path, UnknownRelease)
    text = content[:MOST_BYTES].decode("utf-8", "replace")
    pinned = {name.lower().replace("_", "-"): (release, build) for name, release, build in PINNED.findall(text)}
    own = next((release for name, (release, _) in pinned.items() if name.startswith(OWN)), None)
    if own is not None:
        return str(own)
    known = next((name for name in _table() if name in pinned), None)
    if known is None:
        valid = ", ".join((f"{OWN}12", *_table()))
        raise UnknownRelease(f"{path} pins no package that says which NCCL it brings: give NAME==RELEASE of {valid}")
    release, build = pinned[known]
    return _of_package(known, release, newest, build)


def _of_package(package: str, release: str, newest: str, build: str = "") -> str:
    if package.startswith(OWN) or package == "nccl":
        return release
    if package not in _table():
        near = ("torch",) if package == "pytorch" else tuple(_table())
        refused = UnknownRelease(
            f"which NCCL {package} brings is not known, because no table lists that package; {one_of(near)}, or a "
            "release of NCCL"
        )
        raise refused.cured(Remedy("nccl", f"torch=={release}" if near == ("torch",) else newest))
    known = _table()[package]
    found = [name for name in known if name == release or name.startswith(f"{release}.")]
    if not found:
        raise _not_known(package, release, known)
    required: str = _builds().get(package, {}).get(found[-1] + build, known[found[-1]])
    if not required.startswith(EXACTLY):
        raise UnknownRelease(
            f"{package} {found[-1]} leaves NCCL open ({required}), so the newest at the time was installed with it: "
            f"look at pip freeze, and give a release of NCCL, such as {newest}"
        ).cured(Remedy("nccl", newest))
    return required.removeprefix(EXACTLY)


def _not_known(package: str, release: str, known: Mapping[str, str]) -> UnknownRelease:
    """The error for a package's release without a row: it suggests the nearest known release at or below it, or the
    oldest, and lists the newest first."""
    before = [name for name in known if _numbers(name) <= _numbers(release)]
    near, newest_first = max(before, key=_numbers) if before else next(iter(known)), list(known)[::-1]
    more = f" and {len(known) - 5} more" if len(known) > 5 else ""
    return UnknownRelease(
        f"{package} {release} is not in tables/packages.toml: known are {', '.join(newest_first[:5])}{more}; the "
        f"nearest is {near}"
    ).cured(Remedy("nccl", f"{package}=={near}"))


def _numbers(release: str) -> tuple[int, ...]:
    return tuple(int(each) for each in re.findall(r"\d{1,9}", release))


@cache
def _table() -> Mapping[str, Mapping[str, str]]:
    table = tables.toml(tables.folder() / "packages.toml")
    return {name: rows for name, rows in table.items() if isinstance(rows, dict)}


@cache
def _builds() -> dict[str, Any]:
    return tables.toml(tables.folder() / "package_builds.toml")


@cache
def _images() -> dict[str, Any]:
    return tables.toml(tables.folder() / "images.toml")
