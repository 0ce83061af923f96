"""A release learnt from a library: the tables that are data in it, and a library that was changed."""

import struct
from pathlib import Path

import pytest

from tests.scripts.rehearse_by_source import by_source_alone
from tests.support.available_releases import HERE
from tuner import release
from tuner.base.errors import UnknownRelease
from tuner.oracle import library
from tuner.oracle.conformance import learn
from tuner.release import learnt, reader

pytestmark = pytest.mark.live
NCCL = "2.28.9"


@pytest.mark.parametrize("nccl", HERE)
def test_the_tables_of_every_library_are_those_of_its_file(nccl: str) -> None:
    found, own = learn.data_tables(library.find(nccl).path), reader.flat(release.load(nccl))
    assert len(found) >= 85
    assert {key: value for key, value in found.items() if own[key] != value} == {}


@pytest.mark.slow
@pytest.mark.skipif(NCCL not in HERE, reason=f"no libnccl {NCCL} here")
def test_a_changed_library_is_learnt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A latency and a correction are data, the plateau of rings is a number in the code."""
    data = bytearray(library.find(NCCL).path.read_bytes())
    changed = tmp_path / "libnccl.so.2"
    for (old, new), near in (
        ((struct.pack("<4d", 6.8, 14.0, 8.4, 6.6), struct.pack("<4d", 6.8, 14.0, 8.4, 7.3)), 1),
        ((struct.pack("<7f", 1, 1, 1, 1, 0.9, 0.8, 0.7), struct.pack("<7f", 1, 1, 1, 1, 0.9, 0.8, 0.55)), 1),
        ((struct.pack("<2d", 1.9, 1.4), struct.pack("<2d", 1.9, 1.25)), 1),
    ):
        assert data.count(old) == near
        at = data.index(old)
        data[at : at + len(old)] = new
    changed.write_bytes(data)
    monkeypatch.setattr(learn, "PROBES", (("dgx-h100", 1, 4), ("dgx-h100", 2, 2)))
    monkeypatch.setattr(learn, "HELD_OUT", (("hgx-h200", 2, 3),))  # of the same generation
    with_file = learn.learn(changed)
    assert with_file.exact
    assert with_file.parent == NCCL
    assert with_file.changes.keys() == {"base_latency_us.ring.ll", "tree_correction.ll", "ring_plateau.hopper"}
    assert (with_file.changes["base_latency_us.ring.ll"], with_file.changes["ring_plateau.hopper"]) == (7.3, 1.25)
    assert release.named(str(changed)) == with_file.name
    learnt.file_of(with_file.name).unlink()


@pytest.mark.slow
@pytest.mark.skipif(NCCL not in HERE, reason=f"no libnccl {NCCL} here")
def test_a_rule_that_nobody_knows_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The plateau of rings on one node, too: a jump over it where there are no two nodes is taken out."""
    data, changed = bytearray(library.find(NCCL).path.read_bytes()), tmp_path / "libnccl.so.2"
    compare, jump = bytes.fromhex("83bf8845100001"), bytes.fromhex("7e8c")  # comm->nNodes with 1, and if it is no more
    assert data.count(compare + jump) == 1
    at = data.index(compare + jump) + len(compare)
    data[at : at + len(jump)] = b"\x90" * len(jump)
    changed.write_bytes(data)
    monkeypatch.setattr(learn, "PROBES", (("dgx-h100", 1, 2), ("dgx-h100", 2, 2)))
    monkeypatch.setattr(learn, "HELD_OUT", ())
    found = learn.learn(changed)
    assert not found.exact
    assert not found.changes
    (case,) = (each for each in found.differing if each.part == "the model of times")
    assert case.communicator.startswith("1 x dgx-h100")
    assert case.where.endswith("Ring/Simple")
    assert "ring_plateau" in case.rules
    assert any("src/graph/tuning.cc" in source for source in case.sources)
    with pytest.raises(UnknownRelease, match="is not emulated exactly"):
        release.named(str(changed))
    learnt.file_of(found.name).unlink()


@pytest.mark.slow
@pytest.mark.skipif(NCCL not in HERE, reason=f"no libnccl {NCCL} here")
def test_a_limit_of_the_search_that_no_earlier_release_has_is_learnt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to 2.28.3 NCCL searches for NVLS on three GPUs and more, afterwards on two."""
    monkeypatch.setattr(learn, "PROBES", (("dgx-h100", 1, 2), ("dgx-h100", 1, 4)))
    monkeypatch.setattr(learn, "HELD_OUT", (("hgx-h200", 1, 2),))
    names = release.names()
    found = learn.learn(library.find(NCCL).path, names[names.index("2.28.7") :])
    learnt.file_of(found.name).unlink()
    assert found.exact
    assert found.changes["search.loop.gpus_without_nvls"] == 1


NEWEST = release.names()[-1]


@pytest.mark.slow
@pytest.mark.skipif(NEWEST not in HERE, reason=f"no libnccl {NEWEST} here")
def test_answers_by_source_are_held_against_the_library_when_there_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newest release by its parent and what its source files say alone, with a latency that was read wrongly."""
    monkeypatch.setattr(learn, "PROBES", (("dgx-h100", 1, 4), ("dgx-h100", 2, 2)))
    monkeypatch.setattr(learn, "HELD_OUT", ())
    monkeypatch.setattr(reader, "_folder_by_source", lambda: tmp_path)
    text, _ = by_source_alone((reader._folder() / f"{NEWEST}.toml").read_text("utf-8"))
    assert "[base_latency_us" not in text
    (tmp_path / f"{NEWEST}.toml").write_text(
        f"{text}\n[base_latency_us]   # src/tuning/cost_model.cc\nring.ll = 7.25\n", "utf-8"
    )
    found = learn.learn(library.find(NEWEST).path, [NEWEST])
    learnt.file_of(found.name).unlink()
    before = found.before
    assert before is not None
    assert before.standing == "by source, not compared"
    assert before.values["base_latency_us.ring.ll"] == (7.25, 6.6)
    assert before.compared["cells"] > before.matched["cells"] > 0
    assert len(before.wrong) == 2
    assert not before.refused


def test_what_answers_for_a_release_without_a_table() -> None:
    names = release.names()
    before, own, after = names[-3:]
    between = reader.uncompared(own, [before, after]).standing
    assert between is not None
    assert between.neighbours == (before, after)
    for known in names, [before]:  # it was compared; and it is newer than all that were
        with pytest.raises(UnknownRelease, match="neither by source nor between"):
            reader.uncompared(own, known)
