"""Installs the wheels of dist/ where nothing is, tries them, and prints the table of docs/installing.md.

    make wheels
    python benchmarks/install.py bookworm trixie forky        fresh systems: as root, with debootstrap
    python benchmarks/install.py ~/.pyenv/versions/3.12.1/bin/python /opt/musl/bin/python
    python benchmarks/install.py --wheel py3-none-any bookworm

A word is a suite of Debian, made anew in a folder and removed again, or a Python of this computer, which gets a new
virtual environment. pip has no cache. Each step has to say what it should; the exit code is 1 where one did not.
"""

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
SCRIPTS = Path("/usr/share/debootstrap/scripts")
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
NCCL = "2.28.9"  # of demo.py
SCENARIO = f"allreduce --machine dgx-h100 --nodes 2 --nccl {NCCL}"


@dataclass(frozen=True, slots=True)
class Step:
    """A command of a new environment, and what it has to print; ``only`` the wheels that it is for."""

    name: str
    command: str
    prints: str  # a regular expression
    code: int = 0
    only: str = ""


# {bin} is the environment's, {wheel} the wheel with its folder, {files} a folder that it may write into.
STEPS = (
    Step("no compiler", "! command -v cc gcc clang", ""),
    Step("base", "{bin}/python -m pip install --no-cache-dir --only-binary :all: {wheel}", "Successfully installed"),
    Step("first pick", f"{{bin}}/nccl-tuner pick {SCENARIO} --bytes 1M", "NVLSTree/Simple|Ring/|Tree/"),
    Step("explain", f"{{bin}}/nccl-tuner explain {SCENARIO} --bytes 1M", r"tuning\.cc"),
    Step(
        "an upgrade",
        "{bin}/nccl-tuner diff allreduce --machine aws-p6-b200 --nodes 2 --nccl 2.27.5 2.27.7 --fail-above 5%",
        "--fail-above allows 5 %",
        code=1,
    ),
    Step("doctor", "{bin}/nccl-tuner doctor", "pip install 'nccl-tuner", only="manylinux"),
    Step("no C parts", "{bin}/nccl-tuner doctor", "so: reinstall .* from its wheel for Linux", code=1, only="none-any"),
    Step(
        "report without its extra",
        "{bin}/nccl-tuner plot page --machine dgx-h100 --out {files}/page.html",
        r"pip install 'nccl-tuner\[report\]'",
        code=2,
    ),
    Step("report", "{bin}/python -m pip install --no-cache-dir '{wheel}[report,plot]'", "Successfully installed"),
    Step(
        "a page",
        f"{{bin}}/nccl-tuner plot page --machine dgx-h100 --nccl {NCCL} --out {{files}}/page.html",
        "page.html",
    ),
    Step("a picture", f"{{bin}}/nccl-tuner plot curves {SCENARIO} --out {{files}}/curves.svg", "curves.svg"),
    Step(
        "plugin loads",
        "{bin}/python -c 'import ctypes, nccl_tuner.plugin as p; ctypes.CDLL(str(p.path())).ncclTunerPlugin_v4'",
        "",
        only="manylinux",
    ),
    Step("no plugin", "{bin}/nccl-tuner plugin path", "no .*libnccl_tuner_plugin.so: .*Linux", code=2, only="none-any"),
    Step(
        "oracle",
        f"{{bin}}/python -m pip install --no-cache-dir '{{wheel}}[oracle]' nvidia-nccl-cu12=={NCCL}",
        "Successfully installed",
        only="x86_64",
    ),
    Step(
        "libnccl with the plugin",
        "{bin}/python {files}/demo.py",
        "took effect where it holds, and nowhere else",
        only="x86_64",
    ),
)

COLUMNS = ("base", "first pick", "report", "oracle")  # whose seconds are in the table; MB after those that install


@dataclass(frozen=True, slots=True)
class Place:
    """Where commands run: a new environment, on a fresh system under ``root`` or on this computer."""

    title: str
    folder: Path  # as this computer names it: holds the environment, the wheel and what commands write
    inside: str  # the same folder as the commands name it
    prefix: tuple[str, ...]
    environment: dict[str, str]

    def run(self, command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self.prefix, "sh", "-c", command],
            env=self.environment,
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=1800,
            check=False,
        )

    @property
    def megabytes(self) -> float:
        """What the environment takes on the disk."""
        files = (file.lstat() for file in (self.folder / "venv").rglob("*"))
        return sum(file.st_blocks * 512 for file in files) / 1e6


@dataclass(frozen=True, slots=True)
class Done:
    """A step: how long it took, and how large the environment is after it; ``wrong`` is what it printed instead."""

    step: Step
    seconds: float
    megabytes: float
    wrong: str


def of_caller(names: Sequence[str]) -> dict[str, str]:
    return {name: os.environ[name] for name in names if name in os.environ}


@contextmanager
def fresh_system(suite: str, keep: Path | None) -> Iterator[Place]:
    """A suite of Debian with Python, certificates and nothing more."""
    with tempfile.TemporaryDirectory(prefix=f"{suite}.") as temporary:
        root = Path(temporary)
        packages = "python3,python3-venv,ca-certificates"
        script = [] if (SCRIPTS / suite).exists() else ["http://deb.debian.org/debian", str(SCRIPTS / "sid")]
        base = keep / f"{suite}.base" if keep else None
        if base and base.is_dir():
            subprocess.run(["cp", "-a", f"{base}/.", root], check=True)
        else:
            words = ["debootstrap", "--variant=minbase", f"--include={packages}", suite, str(root), *script]
            subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
        shutil.copy("/etc/resolv.conf", root / "etc")
        if CERTIFICATES.exists():
            shutil.copy(CERTIFICATES, root / CERTIFICATES.relative_to("/"))
        names = ("PIP_INDEX_URL", "PIP_CERT", "PIP_DEFAULT_TIMEOUT", "HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY")
        environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "LANG": "C.UTF-8", **of_caller(names)}
        alone = ("unshare", "--mount", "--pid", "--fork", f"--mount-proc={root}/proc", "chroot", str(root))
        (root / "try").mkdir()
        release = dict(line.split("=", 1) for line in (root / "etc/os-release").read_text().splitlines() if "=" in line)
        yield Place(release["PRETTY_NAME"].strip('"'), root / "try", "/try", alone, environment)


@contextmanager
def here(python: Path) -> Iterator[Place]:
    """A folder of this computer, for a virtual environment of one of its Pythons."""
    with tempfile.TemporaryDirectory(prefix="install.") as folder:
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("NCCL_", "PYTHON"))}
        cache = {"NCCL_TUNER_CACHE": f"{folder}/cache"}
        yield Place(f"a virtual environment of {python}", Path(folder), folder, (), environment | cache)


def try_out(place: Place, python: str, wheel: Path) -> tuple[str, list[Done]]:
    """The version of Python, and every step up to the first that is wrong."""
    shutil.copy(wheel, place.folder)
    shutil.copy(ROOT / "benchmarks" / "demo.py", place.folder)
    made = place.run(f"cd {place.inside} && {python} -m venv venv && {python} --version")
    if made.returncode:
        raise SystemExit(made.stdout)
    words = {"bin": f"{place.inside}/venv/bin", "wheel": f"{place.inside}/{wheel.name}", "files": place.inside}
    done: list[Done] = []
    for step in STEPS:
        if step.only not in wheel.name or (step.name == "no compiler" and not place.prefix):
            continue
        began = time.monotonic()
        ran = place.run(f"cd {place.inside} && {step.command.format(**words)}")
        seconds = time.monotonic() - began
        right = ran.returncode == step.code and re.search(step.prints, ran.stdout) and "Traceback" not in ran.stdout
        done.append(Done(step, seconds, place.megabytes, "" if right else ran.stdout))
        print(f"  {step.name}: {'as it should' if right else 'WRONG'}, {seconds:.1f} s", file=sys.stderr, flush=True)
        if not right:
            break
    return made.stdout.split()[-1], done


def row(place: Place, version: str, done: Sequence[Done]) -> str:
    by_name = {each.step.name: each for each in done}
    cells = [place.title, version]
    for name in COLUMNS:
        each = by_name.get(name)
        cells.append(f"{each.seconds:.1f}" if each else "")
        if name != "first pick":
            cells.append(f"{each.megabytes:.0f}" if each else "")
    return "| " + " | ".join(cells) + " |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("places", nargs="+", metavar="SUITE|PYTHON")
    parser.add_argument("--wheel", default=f"manylinux2014_{platform.machine()}", help="part of its file's name")
    parser.add_argument("--systems", type=Path, help="a folder of systems that were made before, as SUITE.base")
    given = parser.parse_args()
    (wheel,) = (file for file in (ROOT / "dist").glob("*.whl") if given.wheel in file.name)
    titles = [f"{name}, s" if name == "first pick" else f"{name}, s | MB" for name in COLUMNS]
    print("| system | Python |", " | ".join(titles), "|")
    wrong = []
    for name in given.places:
        is_python = "/" in name
        with here(Path(name)) if is_python else fresh_system(name, given.systems) as place:
            print(f"{name}, {wheel.name}", file=sys.stderr)
            version, done = try_out(place, name if is_python else "python3", wheel)
            print(row(place, version, done), flush=True)
            wrong += [f"{name}: {each.step.name}\n{each.wrong}" for each in done if each.wrong]
    print("\n".join(wrong), file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
