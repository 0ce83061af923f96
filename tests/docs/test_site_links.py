"""The check of the built site's links: what is dead is found, in every kind of file, and nothing else."""

import json
from pathlib import Path

import pytest

from tests.scripts.check_site import checked

LIVE = {
    "index.html": """<a href="a/page.html#here">a</a><a href="#top" id="top">b</a><img srcset="p.png 1x, a/q.png 2x">
        <a href="https://example.invalid/gone">c</a><a href="mailto:a@example.invalid">d</a><a href="a/">e</a>
        <a href="two%20words.txt">f</a><link rel="stylesheet" href="/s.css"><a href="a/page.html?q=1#here">g</a>""",
    "a/index.html": '<a href="../index.html">up</a><a href="..">up</a>',
    "a/page.html": '<h2 id="here">h</h2><div style="background: url(../p.png)"></div><a name="old"></a>',
    "404.html": '<a href="/a/page.html#old">home</a><a href="/">home</a>',
    "s.css": "a { background: url('p.png') } b { background: url(data:image/png;base64,xx) }",
    "p.png": "",
    "a/q.png": "",
    "two words.txt": "",
    "llms.txt": "- [A page](a/page.html#here): x",
    "search/search_index.json": json.dumps({"docs": [{"location": "a/page.html#here"}, {"location": ""}]}),
}


def site(folder: Path, **changed: str) -> Path:
    for name, text in {**LIVE, **changed}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, "utf-8")
    return folder


def test_a_site_without_dead_links(tmp_path: Path) -> None:
    count, dead = checked(site(tmp_path))
    assert (count, dead) == (17, [])


@pytest.mark.parametrize(
    ("file", "text", "link", "why"),
    [
        ("index.html", '<a href="examples/job.sh">x</a>', "examples/job.sh", "no such file"),
        ("index.html", '<a href="a/page.html#gone">x</a>', "a/page.html#gone", "no #gone there"),
        ("index.html", '<a href="#gone">x</a><a href="#gone">y</a>', "#gone", "no #gone there"),
        ("index.html", '<a href="../outside.html">x</a>', "../outside.html", "outside the site"),
        ("index.html", '<img srcset="p.png 1x, r.png 2x">', "r.png", "no such file"),
        ("index.html", '<script src="a/x.js"></script>', "a/x.js", "no such file"),
        ("a/page.html", '<a href="page.html"></a><a href="p.png">x</a>', "p.png", "no such file"),
        ("a/page.html", '<i id="here" style="background: url(q2.png)"></i>', "q2.png", "no such file"),
        ("404.html", '<a href="/gone.html">x</a>', "/gone.html", "no such file"),
        ("s.css", "a { background: url(fonts/f.woff) }", "fonts/f.woff", "no such file"),
        ("llms.txt", "- [x](gone.html): x", "gone.html", "no such file"),
        ("search/search_index.json", '{"docs": [{"location": "gone.html"}]}', "/gone.html", "no such file"),
    ],
)
def test_a_dead_link_is_found_once(file: str, text: str, link: str, why: str, tmp_path: Path) -> None:
    _, dead = checked(site(tmp_path, **{file: text}))
    assert [each for each in dead if each.startswith(f"{file}: {link}:")] == [f"{file}: {link}: {why}"]
