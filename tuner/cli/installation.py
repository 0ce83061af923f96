"""``nccl-tuner doctor``, ``completion``, ``fetch-nccl``: this installation."""

import ctypes
import os
import platform
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click
from click.shell_completion import get_completion_class

from tuner import release
from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput, OracleUnavailable, TunerError, one_of
from tuner.base.extras import EXTRAS, FOLDER, Extra, MissingExtra, bindings
from tuner.base.files import cache_folder
from tuner.cli import options
from tuner.cli.communicator_options import ReleaseName
from tuner.cli.output import json_wanted, print_json, print_table, say, show, verdict
from tuner.oracle import library, process

OBJECTS = ("libnccl_tuner_plugin.so", "libnccl_tuner_force.so", "libnccl_tuner_sim.so", "libnccl_tuner_picks.so")
REINSTALL = "pip install --force-reinstall nccl-tuner"
MODULES = {"_plugin": "plugin dry-run", "_force": "measure", "_sim": "oracle and check"}


@dataclass(frozen=True, slots=True)
class InstalledPart:
    """A part of the installation: whether it is there, and whether it works."""

    name: str
    state: str
    works: bool
    mend: str = ""  # a command or a sentence; nothing where it works, or cannot be mended here


@dataclass(frozen=True, slots=True)
class CachedLibrary:
    """A libnccl in the cache."""

    release: str
    build: str
    path: Path
    bytes: int


@dataclass(frozen=True, slots=True)
class Installation:
    """Everything about the installation; it :attr:`works` if every installed part works, even without extras."""

    version: str
    python: str
    platform: str
    folder: Path
    parts: tuple[InstalledPart, ...]
    extras: tuple[Extra, ...]
    cache: Path
    cached: tuple[CachedLibrary, ...]
    installed_nccl: tuple[CachedLibrary, ...]  # as packages of Python
    releases: tuple[str, ...]  # of NCCL, that are emulated

    @property
    def works(self) -> bool:
        """Whether every installed part works."""
        return all(part.works or not part.mend for part in self.parts)


def inspect() -> Installation:
    """Examines the installation on this computer. Nothing is changed, fetched or sent."""
    return Installation(
        version=version("nccl-tuner"),
        python=platform.python_version(),
        platform=f"{sys.platform} {platform.machine()}",
        folder=Path(__file__).resolve().parents[1],
        parts=(*(_object(FOLDER / name) for name in OBJECTS), *_modules(), _oracle(), _cache()),
        extras=EXTRAS,
        cache=cache_folder(),
        cached=tuple(_cached()),
        installed_nccl=tuple(_installed()),
        releases=tuple(release.names()),
    )


def _object(file: Path) -> InstalledPart:
    if not file.is_file():
        mend = "reinstall nccl-tuner from its wheel for Linux" if sys.platform == "linux" else ""
        return InstalledPart(file.name, "not in this installation", False, mend)
    try:
        ctypes.CDLL(str(file))
    except OSError as error:
        return InstalledPart(file.name, f"cannot be loaded: {error}", False, REINSTALL)
    return InstalledPart(file.name, str(file), True)


def _modules() -> list[InstalledPart]:
    parts = []
    for name, purpose in MODULES.items():
        if not any(FOLDER.glob(f"{name}*.so")):
            continue  # as its object is
        try:
            stale = _other_sources(bindings(name))
            state = "its shared object was built from other sources" if stale else "works"
            parts.append(InstalledPart(name, f"for {purpose}: {state}", not stale, REINSTALL if stale else ""))
        except MissingExtra as error:
            parts.append(InstalledPart(name, f"for {purpose}: {error}", False))
        except TunerError as error:
            parts.append(InstalledPart(name, f"for {purpose}: {error}", False, REINSTALL))
    return parts


def _other_sources(module: Any) -> bool:
    """Whether a module and its shared object were built from different sources, so that one of them is stale."""
    if not hasattr(module.lib, "sim_sources"):
        return False
    said = (module.lib.sim_sources(), module.lib.sim_expected_sources())
    return len({bytes(module.ffi.string(each)) for each in said}) > 1


def _oracle() -> InstalledPart:
    try:
        process.check_platform()
    except (OracleUnavailable, MissingExtra) as error:
        return InstalledPart("oracle", str(error), False)  # an extra, or another computer: nothing is broken
    return InstalledPart("oracle", "can run", True)


def _cache() -> InstalledPart:
    folder = cache_folder()
    there = next(each for each in (folder, *folder.parents) if os.path.exists(each))  # Path's raises: no permission
    if os.access(there, os.W_OK):
        return InstalledPart("cache", str(folder), True)
    return InstalledPart(
        "cache", f"{folder} cannot be written", False, "set NCCL_TUNER_CACHE to a folder that can be written"
    )


def _cached() -> list[CachedLibrary]:
    known = [(name, build) for build in library.WHEELS for name in release.names()]
    files = [(name, build, library.cached(name, build)) for name, build in known]
    there = [each for each in files if os.path.isfile(each[2])]
    return [CachedLibrary(name, build, path, path.stat().st_size) for name, build, path in there]


def _installed() -> list[CachedLibrary]:
    found = []
    for build in library.WHEELS:
        name = library.installed_release(build)
        if name is not None and (path := library.installed_file(build)).is_file():
            found.append(CachedLibrary(name, build, path, path.stat().st_size))
    return found


@click.command(name="doctor", cls=options.Command)
@options.json_option
@click.pass_context
def doctor_command(ctx: click.Context) -> None:
    """Says which parts of nccl-tuner are installed on this computer, which extras are missing, and which libnccl it
    has.

    It looks only at the installation; 'nccl-tuner diagnose FILE' says what is wrong with a topology.
    Exit code 1: something that is installed does not work. A missing extra is not a fault.

    \b
    nccl-tuner doctor
    nccl-tuner doctor --json
    """
    found = inspect()
    show(found, _print)
    ctx.exit(0 if found.works else 1)


def _print(found: Installation) -> None:
    say(_verdict(found))
    say(f"nccl-tuner {found.version} in {found.folder}, Python {found.python}, {found.platform}")
    say(f"NCCL releases with a table: {', '.join(found.releases)}\n")
    print_table("Parts", ("part", "state"), [(part.name, part.state) for part in found.parts])
    extras = [(each.name, ", ".join(each.missing) or "installed", each.gives) for each in found.extras]
    print_table("Extras", ("extra", "missing", "gives"), extras)
    libraries = [*map(_row, found.installed_nccl), *map(_row, found.cached)]
    if libraries:
        print_table("libnccl", ("release", "build", "MB", "file"), libraries)
    else:
        say(f"no libnccl was found, neither as a package nor in {found.cache}")
    mend = [f"{part.name}: {part.mend}" for part in found.parts if part.mend and not part.works]
    mend += [f"{each.gives}: {each.install}" for each in found.extras if each.missing]
    mend += (
        []
        if libraries
        else ["to get a libnccl: nccl-tuner fetch-nccl 2.28.9 (with --from DIR it takes wheels from a folder)"]
    )
    say("\nTo mend" if mend else "\nNothing is missing.")
    for line in mend:
        say(f"  {line}")


def _verdict(found: Installation) -> str:
    broken = [part.name for part in found.parts if part.mend and not part.works]
    if broken:
        return verdict(f"does not work: {', '.join(broken)}; the last lines say how to repair it", False)
    lacking = [f"{each.name} ({each.gives})" for each in found.extras if each.missing]
    without = f"; these extras are not installed: {', '.join(lacking)}" if lacking else ""
    return verdict(f"everything that is installed works{without}", True)


def _row(library: "CachedLibrary") -> tuple[str, str, str, str]:
    return library.release, library.build, f"{library.bytes / 1e6:.0f}", str(library.path)


@click.command(name="completion", cls=options.Command)
@click.argument("shell", type=click.Choice(("bash", "zsh", "fish")))
def completion_command(shell: str) -> None:
    """Prints the script with which SHELL completes commands, options and their values.

    \b
    eval "$(nccl-tuner completion bash)"                 # in ~/.bashrc
    eval "$(nccl-tuner completion zsh)"                  # in ~/.zshrc
    nccl-tuner completion fish > ~/.config/fish/completions/nccl-tuner.fish
    """
    from tuner.cli import everything

    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(everything, {}, "nccl-tuner", "_NCCL_TUNER_COMPLETE").source())


@click.command(name="fetch-nccl", cls=options.Command)
@click.argument("releases", nargs=-1, type=ReleaseName(only_known=False), metavar="[RELEASES]...")
@options.flag("--all", "every", "Fetch every release that has a table and this build.")
@options.option(
    "--build",
    "builds",
    "Which build: for CUDA 12 (wheel nvidia-nccl-cu12) or CUDA 13 (nvidia-nccl-cu13); repeatable.",
    type=click.Choice(tuple(library.WHEELS)),
    multiple=True,
    default=(library.BUILD,),
)
@options.option(
    "--from",
    "source",
    "Take the wheels from this folder instead of downloading them.",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    metavar="DIR",
)
@options.json_option
def fetch_nccl_command(releases: tuple[str, ...], every: bool, builds: tuple[str, ...], source: Path | None) -> None:
    """Fetches libnccl of RELEASES with pip into the cache (NCCL_TUNER_CACHE); only the .so is kept.

    Releases that are already in the cache are not fetched again, so an interrupted command can be repeated.

    \b
    nccl-tuner fetch-nccl 2.18.1 2.28.9
    nccl-tuner fetch-nccl --all
    nccl-tuner fetch-nccl 2.28.9 --build cu13
    nccl-tuner fetch-nccl 2.28.9 --from /media/wheels
    """
    if every == bool(releases):
        raise BadInput(f"name releases, or all of them with --all; {one_of(release.names())}")
    fetched = []
    for build in dict.fromkeys(builds):
        wanted = releases or library.with_build(build)
        for wheel in library.fetch_all(wanted, lambda message: click.echo(message, err=True), build, source):
            row = {"release": wheel.release, "build": build, "path": str(wheel.path), "sha256": wheel.sha256}
            fetched.append(row)
            if not json_wanted():
                click.echo(f"{wheel.release} {wheel.path} sha256 {wheel.sha256}")
    if json_wanted():
        print_json(fetched, "libraries")
