"""`make site`: whether every link of the built site that stays within it leads to a file and, with #, to a place in it.

    python -m tests.scripts.check_site build/site

Looked through are the links, pictures, scripts and styles of each page, what styles name in url(), the places that the
search leads to, and the pages that llms.txt names. `make links`, which needs a network, asks for what leads elsewhere.
Exit code 1 where one is dead.
"""

import json
import posixpath
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

LEADING = ("href", "src", "data", "poster", "action")  # attributes that hold one address
ADDRESSES = ("srcset", "imagesrcset")  # several, each with its width
OF_STYLES = re.compile(r"""url\(\s*["']?(.*?)["']?\s*\)""")
OF_MARKDOWN = re.compile(r"\]\(([^)\s]+)\)")
SEARCH = Path("search", "search_index.json")


@dataclass
class Linked(HTMLParser):
    """What one page leads to, and the names of its places."""

    links: list[str] = field(default_factory=list)
    places: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Notes the addresses and the name of one element."""
        for name, value in attrs:
            if value is None:
                continue
            if name == "id" or (name == "name" and tag == "a"):
                self.places.add(value)
            elif name in LEADING:
                self.links.append(value)
            elif name in ADDRESSES:
                self.links += [each.split()[0] for each in value.split(",") if each.strip()]
            elif name == "style":
                self.links += OF_STYLES.findall(value)


def links_of(site: Path) -> Iterator[tuple[str, str]]:
    """Each file of the site that leads somewhere, by its path in the site, and each address in it."""
    for name, page in pages(site).items():
        yield from ((name, link) for link in page.links)
    for file in sorted(site.rglob("*.css")):
        name = file.relative_to(site).as_posix()
        yield from ((name, link) for link in OF_STYLES.findall(file.read_text("utf-8")))
    for name in ("llms.txt", "llms-full.txt"):
        if (site / name).is_file():
            yield from ((name, link) for link in OF_MARKDOWN.findall((site / name).read_text("utf-8")))
    if (site / SEARCH).is_file():
        for each in json.loads((site / SEARCH).read_text("utf-8"))["docs"]:
            yield SEARCH.as_posix(), f"/{each['location']}"


def pages(site: Path) -> dict[str, Linked]:
    """The pages of the site by their paths in it."""
    found = {}
    for file in sorted(site.rglob("*.html")):
        page = found[file.relative_to(site).as_posix()] = Linked()
        page.feed(file.read_text("utf-8"))
    return found


def checked(site: Path) -> tuple[int, list[str]]:
    """How many addresses lead to somewhere in the site, and a line for each of them that is dead."""
    count, dead = 0, dict[str, None]()
    places = {name: page.places for name, page in pages(site).items()}
    for name, link in links_of(site):
        address = urlsplit(link)
        if address.scheme or address.netloc:
            continue
        count += 1
        if why := _wrong(site, places, name, unquote(address.path), unquote(address.fragment)):
            dead[f"{name}: {link}: {why}"] = None
    return count, list(dead)


def _wrong(site: Path, places: dict[str, set[str]], name: str, path: str, fragment: str) -> str | None:
    """What is wrong with an address in the file ``name``; None if nothing is."""
    if path.startswith("/"):
        target = posixpath.normpath(path[1:]) if path[1:] else "."
    else:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(name), path)) if path else name
    if target == ".." or target.startswith("../"):
        return "outside the site"
    if (site / target).is_dir():
        target = posixpath.normpath(posixpath.join(target, "index.html"))
    if not (site / target).is_file():
        return "no such file"
    if fragment and target in places and fragment not in places[target]:
        return f"no #{fragment} there"
    return None


def main() -> int:
    """Prints what is dead in the site of the command line; the exit code."""
    site = Path(sys.argv[1])
    count, dead = checked(site)
    print("\n".join(dead) + "\n" * bool(dead) + f"{site}: {count} links within it, {len(dead)} dead")
    return 1 if dead or not count else 0


if __name__ == "__main__":
    sys.exit(main())
