"""Finds which libnccl a job in a Python environment loads, and why: from the files of its packages, without importing
any."""

import base64
import csv
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tuner.base.dataclass import dataclass
from tuner.base.errors import BadInput, OracleUnavailable
from tuner.base.expressions import expression
from tuner.base.files import read_bytes, sha256
from tuner.base.findings import Finding, Severity
from tuner.jobs.diagnosis.records import FileDiagnosis, FileKind, KnownFacts, found_in
from tuner.oracle.library import MEMBER, says_release

SONAME = "libnccl.so.2"
MARK = "pyvenv.cfg"
MOST_BYTES = 2 << 30  # of a libnccl; those of wheels have 0.5e9
MOST_PACKAGES = 4096
_NAME = expression(r"([A-Za-z0-9][\w.]*)-(\d[^-]*)\.dist-info")
_REQUIRED = expression(r"^Requires-Dist: (nvidia[-_]nccl[-_]cu\d+)\s*\(?==\s*([\d.]+)", re.M | re.I)
NCCL = expression(r"nvidia_nccl_cu\d+")
BY_LOADER = ("nccl4py", "cuda_pathfinder")  # what opens it by cuda-pathfinder's order
FINDERS = "a program that searches like cuda-pathfinder (nccl4py)"
LINKED = "a program that is linked with NCCL"
VLLM_VARIABLE = "VLLM_NCCL_SO_PATH"
SYSTEM = ("/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/local/lib", "/usr/lib")


@dataclass(frozen=True, slots=True)
class InstalledPackage:
    """An installed package, by its folder of metadata: its name with underscores, and its version."""

    name: str
    version: str
    folder: Path

    @property
    def title(self) -> str:
        """Name and version, as pip shows them."""
        return f"{self.name.replace('_', '-')} {self.version}"

    def text(self, file: str) -> str:
        """Text of a file of its metadata; empty if there is no such file."""
        path = self.folder / file
        return read_bytes(path, BadInput).decode("utf-8", "replace") if path.is_file() else ""

    def recorded(self, member: str) -> str | None:
        """A file's checksum as the package's RECORD writes it; None if RECORD has no checksum of that file."""
        rows = csv.reader(self.text("RECORD").splitlines())
        return next((row[1] for row in rows if len(row) > 1 and row[0] == member and row[1]), None)


def site_packages(folder: Path) -> list[Path]:
    """The folders of packages in an environment, or ``folder`` itself if it is one; empty for anything else."""
    if next(folder.glob("*.dist-info"), None) is not None:
        return [folder]
    if not (folder / MARK).is_file() and not (folder / "conda-meta").is_dir() and not (folder / "bin").is_dir():
        return []
    found = [each for lib in ("lib", "lib64") for each in sorted(folder.glob(f"{lib}/python3*/*-packages"))]
    return list({each.resolve(): each for each in found if each.is_dir()}.values())


def of_packages(folder: Path, known: KnownFacts, environment: Mapping[str, str] | None = None) -> FileDiagnosis:
    """The findings that say which libnccl the jobs of a Python environment load. ``environment`` are the environment
    variables of the jobs (None: the caller's).

    torch searches for libnccl in the order that its own file says, nccl4py in the order of cuda-pathfinder, and other
    programs in the order of the loader.
    """
    variables = os.environ if environment is None else environment
    found = list(_Environment(folder, variables).findings())
    return found_in(folder, FileKind.packages, found, known)


class _Environment:
    """A Python environment and its packages, read from its files."""

    def __init__(self, folder: Path, variables: Mapping[str, str]) -> None:
        self.prefix, self.variables = folder, variables
        self.sites = site_packages(folder)
        self.packages = [each for site in self.sites for each in _packages(site)]
        self._sums: dict[Path, str | None] = {}

    def findings(self) -> Iterator[Finding]:
        """Finds what is wrong with the packages, then which package loads which library."""
        nccl = [each for each in self.packages if NCCL.fullmatch(each.name)]
        yield from self._of_wheels(nccl)
        yield from self._required(nccl)
        loaded = dict(self._loaded())
        if len({file.resolve() for file, _ in loaded.values()}) > 1:
            each_loads = [f"{by}: {file}" for by, (file, _) in loaded.items()]
            yield Finding("packages.differ", Severity.UNLIKE, {"loads": each_loads})
        for by, (file, why) in loaded.items():
            nccl_of_file = self._release(file) or "of an unknown release"
            facts = {"by": by, "file": str(file), "nccl": nccl_of_file, why: True}
            yield Finding("packages.loads", Severity.NOTE, facts)
        if not loaded:
            yield Finding("packages.none", Severity.UNKNOWN, {"packages": len(self.packages)})

    def _file(self) -> Path | None:
        """The libnccl file of the wheels; None if there is none."""
        return next((site / MEMBER for site in self.sites if (site / MEMBER).is_file()), None)

    def _of_wheels(self, nccl: Sequence[InstalledPackage]) -> Iterator[Finding]:
        titles = [each.title for each in nccl]
        file = self._file()
        if nccl and file is None:
            yield Finding("packages.file_missing", Severity.FAULT, {"packages": titles, "member": MEMBER})
            return
        if file is None:
            return
        owners = [each for each in nccl if self._sum(file) == each.recorded(MEMBER)]
        facts = {"packages": titles, "file": str(file), "owner": owners[0].title if owners else None}
        if len(nccl) > 1:
            yield Finding("packages.shared_file", Severity.FAULT, {**facts, "nccl": self._release(file)})
        elif not owners:
            yield Finding("packages.replaced", Severity.FAULT, {**facts, "nccl": self._release(file)})

    def _required(self, nccl: Sequence[InstalledPackage]) -> Iterator[Finding]:
        """Finds packages that require another release of NCCL than that of the installed libnccl."""
        file = self._file()
        there = None if file is None else self._release(file)
        for package in self.packages:
            for name, version in _REQUIRED.findall(package.text("METADATA")) if package.name == "torch" else ():
                wanted = ".".join(version.split(".")[:3])
                if there is not None and there != wanted:
                    facts = {"package": package.title, "requires": f"{name} {wanted}", "nccl": there}
                    yield Finding("packages.not_required", Severity.UNLIKE, facts)

    def _loaded(self) -> Iterator[tuple[str, tuple[Path, str]]]:
        """Each program in the environment, with the libnccl that it loads and the code of the step at which it is
        found.
        """
        preloaded = self._named("LD_PRELOAD")
        torch = next((each for each in self.packages if each.name == "torch"), None)
        if torch is not None and (found := self._of_torch()) is not None:
            yield torch.title, found if preloaded is None else (preloaded, "preloaded")
        vllm = next((each for each in self.packages if each.name == "vllm"), None)
        given = self.variables.get(VLLM_VARIABLE)
        if vllm is not None and given and Path(given).is_file():
            yield vllm.title, (Path(given), "vllm_variable")
        loader = next((each for name in BY_LOADER for each in self.packages if each.name == name), None)
        by = FINDERS if loader is None else loader.title
        if loader is not None or self._file() is not None:
            conda = Path(self.variables.get("CONDA_PREFIX") or self.prefix) / "lib" / SONAME
            own = (self._file(), "wheel"), (conda if conda.is_file() else None, "conda")
            if (first := _first([(preloaded, "preloaded"), *own, *self._by_loader()])) is not None:
                yield by, first
        others = [(preloaded, "preloaded"), *self._by_loader()]
        if (first := _first(others)) is not None:
            yield LINKED, first

    def _of_torch(self) -> tuple[Path, str] | None:
        """The libnccl that torch loads, by the search paths in its library's file; RPATH is searched before
        LD_LIBRARY_PATH.
        """
        for site in self.sites:
            library = site / "torch" / "lib" / "libtorch_cuda.so"
            said = _needs(library) if library.is_file() else None
            if said is None:
                continue
            folders, before = said
            in_file = [(_expanded(each, library.parent) / SONAME) for each in folders]
            own = (next((each for each in in_file if each.is_file()), None), "rpath" if before else "runpath")
            named = (self._named("LD_LIBRARY_PATH"), "library_path")
            return _first([own, named, *self._by_loader()] if before else [named, own, *self._by_loader()])
        return None

    def _by_loader(self) -> list[tuple[Path | None, str]]:
        system = next((Path(each) / SONAME for each in SYSTEM if (Path(each) / SONAME).is_file()), None)
        return [(self._named("LD_LIBRARY_PATH"), "library_path"), (system, "system")]

    def _named(self, variable: str) -> Path | None:
        """The first libnccl that a variable with a list of folders, or of libraries, leads to; None if there is
        none."""
        for part in re.split(r"[:;\s]" if variable == "LD_PRELOAD" else "[:;]", self.variables.get(variable, "")):
            file = Path(part) if variable == "LD_PRELOAD" else Path(part) / SONAME
            if part and file.name.startswith("libnccl.so") and file.is_file():
                return file
        return None

    def _sum(self, file: Path) -> str | None:
        """A file's checksum in the form of a RECORD; None if the file is too large to be a library."""
        if file not in self._sums:
            self._sums[file] = None
            if file.stat().st_size <= MOST_BYTES:
                digest = bytes.fromhex(sha256(file))
                self._sums[file] = f"sha256={base64.urlsafe_b64encode(digest).rstrip(b'=').decode()}"
        return self._sums[file]

    def _release(self, file: Path) -> str | None:
        """The release that a libnccl says it is; None if it says none."""
        if not 0 < file.stat().st_size <= MOST_BYTES:
            return None
        try:
            return says_release(file)
        except OracleUnavailable:
            return None


def _packages(site: Path) -> Iterator[InstalledPackage]:
    for folder in sorted(site.glob("*.dist-info"))[:MOST_PACKAGES]:
        if (match := _NAME.fullmatch(folder.name)) is not None:
            yield InstalledPackage(match[1].lower().replace(".", "_"), match[2], folder)


def _first(steps: Sequence[tuple[Path | None, str]]) -> tuple[Path, str] | None:
    return next(((file, why) for file, why in steps if file is not None), None)


def _named_by(tag: Any) -> list[str]:
    """The needed library, RPATH or RUNPATH in an entry of the dynamic section."""
    return [str(getattr(tag, each)) for each in ("needed", "rpath", "runpath") if hasattr(tag, each)]


def _needs(library: Path) -> tuple[list[str], bool] | None:
    """The folders in which a library looks for libnccl.so.2, and whether it does so before LD_LIBRARY_PATH; None for a
    file that does not need it, or is no library.
    """
    from elftools.elf.dynamic import DynamicSection  # of an extra

    from tuner.oracle import symbols

    try:
        with symbols.opened(library) as file:
            dynamic = file.get_section_by_name(".dynamic")
            tags = list(dynamic.iter_tags()) if isinstance(dynamic, DynamicSection) else []
            named = [(each.entry.d_tag, name) for each in tags for name in _named_by(each)]
            needed = {name for tag, name in named if tag == "DT_NEEDED"}
            rpath = [name for tag, name in named if tag == "DT_RPATH"]
            runpath = [name for tag, name in named if tag == "DT_RUNPATH"]
    except OracleUnavailable:
        return None
    if SONAME not in needed:
        return None
    paths = runpath or rpath  # RPATH counts only where there is no RUNPATH: ld.so(8)
    return [folder for each in paths for folder in each.split(":") if folder], not runpath and bool(rpath)


def _expanded(folder: str, origin: Path) -> Path:
    return Path(folder.replace("${ORIGIN}", str(origin)).replace("$ORIGIN", str(origin)))
