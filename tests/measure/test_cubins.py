"""Libraries of libnccl that a user names, and one with one GPU's code: what stays, and what is refused."""

import hashlib
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from elftools.elf.elffile import ELFFile

from benchmarks.gpu_bundle import thin
from tests.support.available_releases import HERE
from tuner.base.errors import BadInput, OracleUnavailable
from tuner.base.names import Collective, DataType, Op
from tuner.bench.gpu.kernels import LINKED, RELOCATABLE, runs_on
from tuner.emulator.request import Request
from tuner.machine import catalogue
from tuner.oracle import library
from tuner.oracle.api import Oracle
from tuner.scenario.oracle_configuration import OracleConfiguration

CUBIN, PTX = 2, 1
COLLECTIVES = (Collective.AllReduce, Collective.AllGather, Collective.ReduceScatter)


def entry(kind: int, arch: int, content: bytes, header_bytes: int = 64) -> bytes:
    start = struct.pack("<HHIQIIHHI", kind, 0x101, header_bytes, len(content), 0, 64, 0, 9, arch)
    return start + bytes(header_bytes - len(start)) + content


def fat_binary(*entries: bytes) -> bytes:
    content = b"".join(entries)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(content)) + content


SM_90, SM_90_MORE = entry(CUBIN, 90, b"nineties"), entry(CUBIN, 90, b"second 9")
BINARIES = {
    LINKED: [
        fat_binary(entry(CUBIN, 80, b"eighties"), SM_90, entry(PTX, 120, b"ptx-text", 112)),
        fat_binary(entry(CUBIN, 100, b"hundreds", 96)),
        fat_binary(SM_90_MORE),
    ],
    RELOCATABLE: [fat_binary(entry(CUBIN, 80, b"rdc-code"), entry(CUBIN, 90, b"rdc-nine"))],
}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A shared object with such sections."""
    folder = tmp_path_factory.mktemp("library")
    source = "int before = 1;\n"
    for number, (section, binaries) in enumerate(BINARIES.items()):
        numbers = ",".join(map(str, b"".join(binaries)))
        source += f'__attribute__((section("{section}"), used)) const unsigned char code{number}[] = {{{numbers}}};\n'
    (folder / "made.c").write_text(source + "int after = 2;\n")
    subprocess.run(["cc", "-shared", "-g", "-o", folder / "made.so", folder / "made.c"], check=True)
    return folder / "made.so"


def section(path: Path, name: str) -> bytes:
    with path.open("rb") as file:
        found = ELFFile(file).get_section_by_name(name)
        assert found is not None
        content: bytes = found.data()
    return content


def emptied(binary: bytes, *kept: bytes) -> bytes:
    content = b"".join(kept)
    return binary[:8] + struct.pack("<Q", len(content)) + content + bytes(len(binary) - 16 - len(content))


def test_which_gpus_a_libnccl_has_code_for(made: Path, tmp_path: Path) -> None:
    def runs(path: Path) -> list[int]:
        return [capability for capability in (70, 80, 89, 90, 100, 103, 120, 130) if runs_on(path, capability)]

    assert runs(made) == [80, 89, 90, 100, 103, 120, 130], "130 by the PTX"
    thin(made, tmp_path / "thin.so", "sm_90")
    assert runs(tmp_path / "thin.so") == [90]
    with pytest.raises(BadInput, match="not a libnccl"):
        runs_on(Path(__file__), 90)


def test_the_cubins_of_one_gpu_stay(made: Path, tmp_path: Path) -> None:
    thinned = thin(made, tmp_path / "thin.so", "sm_90")
    first, second, third = BINARIES[LINKED]
    assert section(tmp_path / "thin.so", LINKED) == emptied(first, SM_90) + emptied(second) + third
    (relocatable,) = BINARIES[RELOCATABLE]
    assert section(tmp_path / "thin.so", RELOCATABLE) == emptied(relocatable, entry(CUBIN, 90, b"rdc-nine"))
    assert (thinned.kept, thinned.kept_bytes) == ("sm_90", 3 * (64 + 8))
    for path, digest in ((made, thinned.sha256), (tmp_path / "thin.so", thinned.thinned_sha256)):
        assert hashlib.sha256(path.read_bytes()).hexdigest() == digest
    thin(made, tmp_path / "linked.so", "sm_90", linked_only=True)
    assert section(tmp_path / "linked.so", RELOCATABLE) == emptied(relocatable)
    assert section(tmp_path / "linked.so", LINKED) == section(tmp_path / "thin.so", LINKED)


def test_nothing_else_changes(made: Path, tmp_path: Path) -> None:
    thin(made, tmp_path / "thin.so", "sm_90")
    with made.open("rb") as before, (tmp_path / "thin.so").open("rb") as after:
        pairs = zip(ELFFile(before).iter_sections(), ELFFile(after).iter_sections(), strict=True)
        differ = [one.name for one, other in pairs if (one.header, one.data()) != (other.header, other.data())]
    assert set(differ) == {LINKED, RELOCATABLE}


def test_a_gpu_without_its_own_takes_the_highest_below(made: Path, tmp_path: Path) -> None:
    assert thin(made, tmp_path / "thin.so", "sm_89").kept == "sm_80"
    assert thin(made, tmp_path / "thin.so", "sm_103").kept == "sm_100"
    for gpu, complaint in (
        ("sm_75", "has nothing for sm_75; valid: sm_80, sm_90, sm_100, and later ones of the same major number"),
        ("hopper", "'hopper' is no kind of GPU; .* has sm_80, sm_90, sm_100; valid: such as sm_90 for an H100"),
    ):
        with pytest.raises(BadInput, match=complaint):
            thin(made, tmp_path / "thin.so", gpu)


def test_what_is_no_libnccl_is_refused(made: Path, tmp_path: Path) -> None:
    (tmp_path / "text.so").write_text("no library")
    with pytest.raises(BadInput, match=r"text\.so: not a libnccl: "):
        thin(tmp_path / "text.so", tmp_path / "thin.so", "sm_90")
    subprocess.run(["cc", "-shared", "-x", "c", "-o", tmp_path / "plain.so", "/dev/null"], check=True)
    with pytest.raises(BadInput, match=r"plain\.so: no GPU code in it: no section \.nv_fatbin"):
        thin(tmp_path / "plain.so", tmp_path / "thin.so", "sm_90")
    broken = made.read_bytes().replace(struct.pack("<I", 0xBA55ED50), b"\0\0\0\0", 1)
    (tmp_path / "broken.so").write_bytes(broken)
    with pytest.raises(BadInput, match=r"no fat binary at byte [0-9]+: a format that is not known"):
        thin(tmp_path / "broken.so", tmp_path / "thin.so", "sm_90")


@pytest.mark.live
@pytest.mark.slow
@pytest.mark.parametrize("name", ["2.30.7", "2.32.3"])
def test_the_real_library_answers_as_before(name: str, tmp_path: Path) -> None:
    """Init, cost tables and picks on eight simulated H100."""
    if not library.cached(name).is_file():
        pytest.skip(f"no libnccl {name} here")
    original = library.cached(name)
    thinned = thin(original, tmp_path / "libnccl.so.2", "sm_90", linked_only=True)
    assert thinned.thinned_sha256 != thinned.sha256
    topology = catalogue.load("dgx-h100").topology_xml
    sizes = [1 << power for power in range(6, 31, 3)]
    answers = []
    for path in (original, tmp_path / "libnccl.so.2"):
        with Oracle(OracleConfiguration(topology, 1, 8, name, {}, library=path)) as oracle:
            requests = [Request(collective, DataType.float32, Op.sum) for collective in COLLECTIVES]
            costs = [oracle.costs(request, sizes) for request in requests]
            answers.append((costs, [oracle.launch(request, sizes) for request in requests]))
    (costs, launched), (costs_thinned, launched_thinned) = answers
    np.testing.assert_array_equal(costs, costs_thinned)
    assert launched == launched_thinned
    assert len({str(each) for each in launched}) == len(COLLECTIVES)


RELEASE = "2.28.9"
SKELETON = Path(__file__).parents[2] / "docs" / "examples" / "skeleton.xml"
COMMANDS = (("verify",), ("fit", "constants"), ("decide", "--no-gate", "--out", "out.table"))


@pytest.fixture(autouse=True)
def _nothing_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "_given", {})


def test_a_given_file_that_is_no_libnccl_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OracleUnavailable, match="does not exist"):
        library.give(tmp_path / "libnccl.so.2")
    (tmp_path / "libnccl.so.2").write_text("NCCL version 2.28.9+cuda12.9")
    with pytest.raises(OracleUnavailable, match="is not an ELF shared object"):
        library.give(tmp_path / "libnccl.so.2")


@pytest.mark.live
@pytest.mark.skipif(RELEASE not in HERE, reason=f"no libnccl {RELEASE} here")
def test_what_is_given_is_found_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = library.cached(RELEASE)
    (tmp_path / "moved.so").symlink_to(there)
    monkeypatch.setenv("NCCL_TUNER_CACHE", str(tmp_path / "cache"))
    assert library.give(tmp_path / "moved.so") == RELEASE
    assert library.find(RELEASE).path == library.given(RELEASE) == there.resolve()


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_commands_take_it(command: tuple[str, ...], tmp_path: Path) -> None:
    said = run(*command, "run.jsonl", "--library", str(tmp_path / "gone.so"), code=2)
    assert said == f"nccl-tuner: {tmp_path}/gone.so does not exist\n"


@pytest.mark.slow
def test_commands_complete_a_skeleton_without_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NCCL_TUNER_CACHE", str(tmp_path / "cache"))
    where = f"--topology {SKELETON} --gpu h100-sxm --nic-gbps 400 --nccl {RELEASE}"
    run(*f"measure allreduce --backend simulated {where} --bytes 1K,1M,64M --rounds 8 --out run.jsonl".split())
    for command in COMMANDS:
        assert "no libnccl" not in run(*command, "run.jsonl")


def run(*words: str, code: int = 0) -> str:
    """The command, in a process of its own; what it says."""
    command = [sys.executable, "-c", "from tuner.cli import main; main()", *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr
