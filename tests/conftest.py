"""How hypothesis draws, and what a test may do that isn't marked `live`.

hypothesis draws the same examples in every run, and a busy computer is no failure;
`pytest --hypothesis-profile explore` (`make explore`) draws others each time.
"""

import gc
import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import click
import pytest
from hypothesis import HealthCheck, settings

from tests.support import fetched, prepared_children
from tests.support.available_releases import ALL
from tests.support.draws import Draws
from tests.support.each_choice import beyond_each_choice
from tests.support.not_live import sitecustomize as not_live
from tests.support.recorded import Recorder
from tuner.base import children
from tuner.base.files import cache_folder
from tuner.base.records import versioned
from tuner.cli import OBJECTS_BETWEEN_COLLECTIONS
from tuner.release import reader

PATIENT: dict[str, Any] = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}

settings.register_profile("same", derandomize=True, database=None, **PATIENT)
settings.register_profile("explore", **PATIENT)
settings.load_profile("same")

ROOT = Path(__file__).parents[1]
LIVE = ROOT / "tests" / "live"
CACHE = ROOT / "build" / "cache-of-tests"
_FOLDER = TemporaryDirectory(prefix="not-live-")  # of this process
TRIED = Path(_FOLDER.name) / "tried.txt"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--slow", action="store_true", help="the tests marked slow too; those of paths and marks you name run anyway"
    )
    parser.addoption(
        "--exhaustive", action="store_true", help="all cases of the tests marked each_choice, as where you name a path"
    )
    parser.addoption(
        "--draw",
        type=int,
        default=1,
        metavar="N",
        help="N times as many draws of live tests",
    )
    parser.addoption("--draw-seed", default="live", metavar="TEXT", help="others than they draw by default")
    parser.addoption("--record", action="store_true", help="what live tests compared, into docs/*.toml")


@pytest.hookimpl(trylast=True)  # after the reporter is there
def pytest_configure(config: pytest.Config) -> None:
    """What the processes inherit that tests start: among others a guard that they import."""
    named = config.args_source is not pytest.Config.ArgsSource.TESTPATHS
    # The processes of pytest-xdist get all options of this one.
    config.option.slow |= named or "slow" in config.option.markexpr
    config.option.exhaustive |= named or "each_choice" in config.option.markexpr
    gc.set_threshold(OBJECTS_BETWEEN_COLLECTIONS)
    if not (ALL or hasattr(config, "workerinput")):  # processes of pytest-xdist inherit it
        fetched.link(CACHE, cache_folder())
        os.environ["NCCL_TUNER_CACHE"] = str(CACHE)
    folder = str(Path(not_live.__file__).parent)
    # Where nothing is to be written beside the sources, each process would compile all of them, this one too.
    if os.environ.pop("PYTHONDONTWRITEBYTECODE", None):
        sys.pycache_prefix = os.environ.setdefault("PYTHONPYCACHEPREFIX", str(ROOT / "build" / "pycache"))
        sys.dont_write_bytecode = False
    if config.pluginmanager.has_plugin("terminalreporter"):  # keeps its own width
        config.get_terminal_writer().fullwidth = shutil.get_terminal_size().columns
    os.environ["COLUMNS"] = "1000"  # tables are as wide as they are, with every column
    # The tests themselves run side by side: threads of a linear algebra library would only wait for each other.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    os.environ["PYTHONPATH"] = os.pathsep.join([folder, *filter(None, [os.environ.get("PYTHONPATH")])])


def pytest_report_header(config: pytest.Config) -> list[str]:
    options = {
        "slow": "without the tests that take more than 2 CPU seconds; --slow runs them too",
        "exhaustive": "without cases of broad tests that have no value of their own; --exhaustive runs them too",
    }
    return [text for option, text in options.items() if not config.getoption(option)]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if LIVE in item.path.parents:
            item.add_marker("live")
    left_out: set[pytest.Item] = set()
    if not config.option.slow:
        left_out.update(item for item in items if item.get_closest_marker("slow"))
    if not config.option.exhaustive:
        left_out.update(beyond_each_choice(item for item in items if item.get_closest_marker("each_choice")))
    config.hook.pytest_deselected(items=list(left_out))
    items[:] = [item for item in items if item not in left_out]


def pytest_collection_finish() -> None:
    """Thousands of tests stay to the end: nobody looks among them for garbage any more."""
    gc.freeze()


@pytest.fixture(scope="session")
def explores(pytestconfig: pytest.Config) -> bool:
    """Whether tests that draw their input draw much of it, as in `make explore`."""
    return bool(pytestconfig.getoption("--hypothesis-profile", default=None) == "explore")


@pytest.fixture(scope="session")
def draws(pytestconfig: pytest.Config) -> Draws:
    """How much live tests draw, and from which seed: the options ``--draw`` and ``--draw-seed``."""
    return Draws(pytestconfig.getoption("--draw"), pytestconfig.getoption("--draw-seed"))


@pytest.fixture(scope="session")
def recorder(pytestconfig: pytest.Config) -> Recorder:
    """Writes what was compared, with the option ``--record``."""
    return Recorder(pytestconfig.getoption("--record"))


@pytest.fixture(autouse=True)
def no_library_named_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process takes the libnccl.so.2 that was named last for its release; no test inherits what another has named."""
    monkeypatch.setattr(reader, "_files", {})


@pytest.fixture(scope="session", autouse=True)
def children_of_the_oracle_are_forked() -> Iterator[None]:
    """All but the first of a process, from one that has imported what they import."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(children, "start", prepared_children.start)
        yield


@pytest.fixture(scope="session", autouse=True)
def printed_json_is_as_its_schema() -> Iterator[None]:
    """What any test lets a command print as JSON, in this process, is what the command's schema says."""
    from tests.support.json_schemas import check_printed

    made = versioned

    def checked(value: Any, several: str | None = None) -> dict[str, Any]:
        written = made(value, several)
        check_printed(click.get_current_context(), json.loads(json.dumps(written)))
        return written

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("tuner.cli.output.versioned", checked)
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    return (yield from _guarded(item))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    return (yield from _guarded(item))


def _guarded(item: pytest.Item) -> Iterator[None]:
    """A test that is not marked live fails where it, or a process of it, asks for libnccl or the network."""
    if item.get_closest_marker("live"):
        os.environ.pop(not_live.VARIABLE, None)
        yield
        return
    os.environ[not_live.VARIABLE] = str(TRIED)
    try:
        yield
    finally:
        os.environ.pop(not_live.VARIABLE, None)
        what = sorted(set(TRIED.read_text("utf-8").splitlines())) if TRIED.exists() else []
        TRIED.unlink(missing_ok=True)
    if what:
        pytest.fail(f"not marked live, but {'; '.join(what)}", pytrace=False)
