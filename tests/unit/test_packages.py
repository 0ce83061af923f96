"""NCCL by the package that brings it, by a list of packages, and by an image, which says it itself."""

from pathlib import Path

import pytest

from tests.scripts import write_images
from tests.support.command_line import run
from tuner import release
from tuner.base import tables
from tuner.base.errors import UnknownRelease
from tuner.release import packages

TABLE = {name: rows for name, rows in tables.toml(tables.folder() / "packages.toml").items() if isinstance(rows, dict)}


@pytest.mark.parametrize(
    ("text", "nccl"),
    [
        ("torch==2.9.1", "2.27.5"),
        ("torch@2.9.1", "2.27.5"),
        ("torch===2.9.1+cu128", "2.27.5"),
        ("Torch==2.5", "2.21.5"),
        ("nvidia-nccl-cu12==2.26.2", "2.26.2"),
        ("nvidia-nccl-cu12==2.26.2.post1", "2.26.2"),
        ("vllm==0.33.0", "2.30.7"),
        ("sglang==0.5.23", "2.30.7"),
        ("ngc-25.10", "2.27.7"),
        ("NGC:25.10", "2.27.7"),
        ("nvcr.io/nvidia/pytorch:25.10-py3", "2.27.7"),
        ("nvcr.io/nvidia/tensorflow:24.02-tf2-py3", "2.19.4"),
        ("ngc-25.09", "2.27.7"),  # as the tags before and after it
        ("ngc-25.02", "2.25.1"),
        ("torch==2.9.1+cu130", "2.27.7"),  # a build that the index does not have
        ("torch==2.10+cu128", "2.27.5"),
        ("torch==2.13.0+cu126", "2.29.3"),
        ("nvcr.io/nvidia/tritonserver:24.08-py3", "2.22.3"),
    ],
)
def test_a_package_names_the_release_that_it_requires(text: str, nccl: str) -> None:
    assert release.named(text) == nccl


def test_every_row_is_a_release_or_leaves_it_open() -> None:
    assert {"torch", "vllm", "sglang", "jax"} == TABLE.keys()
    for package, rows in TABLE.items():
        for number, required in rows.items():
            if package == "jax":
                assert required.startswith(">="), number
                continue
            assert release.named(f"{package}=={number}") == required.removeprefix("==")


def test_engines_are_built_with_what_their_packages_require() -> None:
    from tuner.engines import releases

    for engine in ("vllm", "sglang"):
        for each in sorted(TABLE[engine].keys() & {*releases.releases(engine)}):
            own = releases.load(f"{engine}@{each}")
            assert own.nccl in (None, release.named(f"{engine}=={own.release}"))


@pytest.mark.parametrize(
    ("content", "nccl"),
    [
        ("numpy==2.1\nnvidia-nccl-cu12==2.27.7\ntorch==2.9.1\n", "2.27.7"),
        ("# made by pip freeze\ntorch==2.9.1+cu128\nvllm==0.33.0\n", "2.27.5"),
        ("sglang[all]==0.5.23\r\n", "2.30.7"),
        ("torch==2.10.0+cu130\n", "2.28.9"),
    ],
)
def test_a_list_of_packages_says_it(content: str, nccl: str, tmp_path: Path) -> None:
    file = tmp_path / "freeze.txt"
    file.write_text(content)
    assert release.named(str(file)) == nccl


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("torch==99.0", "torch 99.0 is not in tables/packages.toml: known are "),
        ("tensorflow==2.18.0", "no table lists that package; valid: torch, vllm, sglang, jax"),
        ("jax[cuda12]==0.6.2", "jax 0.6.2 leaves NCCL open (>=2."),
        ("ngc-25.06", "where 25.04 has 2.26.3 and 25.08 has 2.27.7; the image says it"),
        ("ngc-99.01", "printenv NCCL_VERSION"),
        ("nvcr.io/nvidia/nemo:25.09", "no table lists that image"),
        ("nvcr.io/nvidia/pytorch:latest", "no table lists that image"),
        ("/nowhere/freeze.txt", "/nowhere/freeze.txt"),
    ],
)
def test_what_is_not_known_says_what_would(text: str, says: str) -> None:
    assert packages.names_one(text)
    with pytest.raises(UnknownRelease) as refused:
        release.named(text)
    assert says in str(refused.value)


def test_a_list_without_such_a_package_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "requirements.txt"
    file.write_text("numpy==2.1\n")
    with pytest.raises(UnknownRelease, match="pins no package that says which NCCL it brings"):
        release.named(str(file))


def test_commands_take_it_and_say_the_release() -> None:
    words = ("pick", "allreduce", "--machine", "dgx-h100", "--bytes", "1M")
    done = run(*words, "--nccl", "torch==2.9.1")
    assert done.stdout == run(*words, "--nccl", "2.27.5").stdout
    assert done.stderr == "note: torch==2.9.1 comes with NCCL 2.27.5\n"
    both = ("diff", "allreduce", "--machine", "dgx-h100", "--nodes", "2")
    named = run(*both, "--nccl", "torch==2.7.0", "torch==2.9.1").stdout
    assert named == run(*both, "--nccl", "2.26.2", "2.27.5").stdout
    open_ = run(*words, "--nccl", "jax==0.6.2", code=2).stderr
    assert f"try: nccl-tuner {' '.join(words)} --nccl {release.names()[-1]}" in open_


IMAGES = tables.toml(tables.folder() / "images.toml")


def test_every_image_says_its_source_and_no_later_one_has_an_older_nccl() -> None:
    rows = [IMAGES["nccl"][tag] for tag in sorted(IMAGES["nccl"])]
    assert all(row["source"] and release.named(row["nccl"]) == row["nccl"] for row in rows)
    numbers = [tuple(map(int, row["nccl"].split("."))) for row in rows]
    assert numbers == sorted(numbers)


PAGE = "<h2>Contents</h2><ul><li><a href='x'>NVIDIA cuDNN 9.10.1.4</a></li><li>NVIDIA&nbsp;<b>NCCL</b> {}</li></ul>"


def test_a_page_of_release_notes_says_which_nccl_its_image_has() -> None:
    assert write_images.nccl_of(PAGE.format("2.26.5 (optimized for NVLink)")) == "2.26.5"
    assert write_images.nccl_of(PAGE.format("2.26.5") + PAGE.format("2.27.3")) is None
    assert write_images.nccl_of("no such library") is None


def test_saved_pages_fill_the_table_of_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tmp_path / "images.toml"
    before = write_images.FILE.read_text()
    table.write_text(before)
    pages = {"rel-25-06.html": "2.27.3", "rel-25-10.html": "2.99.9", "rel-99-01.html": "none"}
    for name, nccl in pages.items():
        (tmp_path / name).write_text(PAGE.format(nccl))
    monkeypatch.setattr(write_images, "FILE", table)
    monkeypatch.setattr("sys.argv", ["write_images", *(str(tmp_path / name) for name in pages)])
    write_images.main()
    after = tables.toml(table)
    assert after["nccl"].pop("25.06")["nccl"] == "2.27.3"
    assert after["nccl"] == IMAGES["nccl"]
    assert after["images"] == IMAGES["images"]


def test_images_are_not_written_where_no_page_can_be_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = tmp_path / "images.toml"
    table.write_text(before := write_images.FILE.read_text())
    monkeypatch.setattr(write_images, "FILE", table)
    monkeypatch.setattr(write_images, "PAGES", f"file://{tmp_path}/rel-{{}}.html")
    monkeypatch.setattr("sys.argv", ["write_images"])
    with pytest.raises(SystemExit, match="1"):
        write_images.main()
    assert table.read_text() == before
