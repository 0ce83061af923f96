"""The reader in Python takes the files that the plugin's reader in C takes, and no others."""

import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tuner.base.errors import BadTable
from tuner.base.names import Algorithm, Collective, Protocol
from tuner.base.nouns import Span
from tuner.plugin.asked import strict
from tuner.plugin.dry_run import DryRun, PluginRefused
from tuner.plugin.formats import convert
from tuner.plugin.table.parse import from_text, to_text
from tuner.plugin.table.records import HEADER, Decision, Table, TableChoice


def plugin_takes(file: Path) -> str | None:
    """None, or the line and the reason why the plugin does not."""
    try:
        DryRun(file, ranks=16, nodes=2, env=strict(file)).close()
    except PluginRefused as refused:
        return str(refused).rpartition(f"{file}:")[2]
    return None


def python_takes(file: Path) -> str | None:
    """The same of the reader in Python; the plugin reads neither of NCCLX's formats."""
    try:
        found = convert.read(file).format
    except BadTable as refused:
        return str(refused).rpartition(f"{file}:")[2]
    return None if found in convert.OF_THE_PLUGIN else f"{found} is no format of the plugin"


OURS = [
    f"{HEADER}\n",
    "allreduce bytes=64K..4M ranks=16 nodes=2 -> ring/ll128 channels=16 | tree/ll128\n",
    "allgather bytes-per-rank=..32K nvlink-domains=2 registered=no -> nccl\n",
    "allreduce bytes=1M.. -> explore ring/ll128 channels=16 | NCCL | tree/simple every=20 block=10 calls=5000\n",
    "cost allreduce bytes=..1K -> ring/ll latency-us=20 bandwidth-gbs=1e-3 batch=4\n",
    f"cost allreduce -> ring/ll latency-us=0.{'0' * 70}1 bandwidth-gbs=1\n",
    "constant ll-gbs hopper more 141\n",
]
CSV = [
    "allreduce,0,65536,tree,simple,2,1,-1,-1,1\n",
    "allgather , 1,-1,\tcollnet_direct,ll128 ,-1, -1, 32, 4\r\n",
    "reduce,00000000000000000000000001,2,ring,ll,0,-1,-1,-0\n",
    "reduce,1,2,ring,ll,0,-1,-1 # why\n",
    "reduce,0002,2,ring,ll,000,-1,-1\n",
]
BOTH = [
    "# rows: 1\n",
    "# rows: 2\n",
    "#rows:  3 \r\n",
    "# rows: many\n",
    "# gpus: H100\n",
    "# \xe9\n",
    "\n",
    "\r\n",
    " \t\n",
]
WILD = ["\r", "\0", "#", ",", " ", "\n", "-1", "\x0b", "\u00e9", "9" * 25, "x", "->", "=", ".."]


@st.composite
def files(draw: st.DrawFn) -> bytes:
    """A file of rows, perhaps with something wild in it, perhaps cut."""
    rows = draw(st.sampled_from([OURS, CSV]))
    head = [HEADER + "\n"] if rows is OURS and draw(st.integers(0, 9)) else []
    parts = head + draw(st.lists(st.sampled_from(rows[1:] + BOTH), max_size=5))
    text = "".join(parts)
    if draw(st.integers(0, 2)) == 0:
        at = draw(st.integers(0, len(text)))
        text = text[:at] + draw(st.sampled_from(WILD)) + text[at:]
    if draw(st.integers(0, 2)) == 0:
        text = text[: draw(st.integers(0, len(text)))]
    return text.encode()


@pytest.mark.slow
@settings(max_examples=1000, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=files())
def test_both_readers_take_the_same_files(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "some.table"
    file.write_bytes(content)
    by_plugin, by_python = plugin_takes(file), python_takes(file)
    assert (by_plugin is None) == (by_python is None), (by_plugin, by_python)


EXPLORE = {
    "explore ring/ll every=2 block=1": None,
    "EXPLORE nccl | ring/ll channels=64 every=100000 block=1000000 calls=4294967295": None,
    "explore ring/ll | ring/ll channels=2 every=2 block=1": None,
    "explore": "is not algorithm/protocol",
    "explore nccl every=2 block=1": "nothing to explore but nccl",
    "explore ring/ll block=1": "no every=N behind the last arm",
    "explore ring/ll every=2": "no block=N behind the last arm",
    "explore ring/ll every=2 block=1 | tree/ll": "stand behind the last arm",
    "explore ring/ll every=1 block=1": "every=1 is not a number from 2 to 100000",
    "explore ring/ll every=2 block=0": "block=0 is not a number from 1 to 1000000",
    "explore ring/ll every=2 block=1 calls=4294967296": "calls=4294967296 is not a number",
    "explore ring/ll every=2 every=3 block=1": "'every' twice",
    "explore ring/ll chunk=64K every=2 block=1": "unknown key 'chunk'",
    "explore nccl channels=2 | ring/ll every=2 block=1": "nccl takes no channels",
    "explore ring/ll | tree/ll | ring/ll every=2 block=1": "twice with the same channels",
    "explore ring/ll | every=2 block=1": "is not algorithm/protocol",
    "explore " + " | ".join(f"ring/ll channels={n}" for n in range(1, 18)) + " every=2 block=1": "more than 16 arms",
    "explore " + " | ".join(f"ring/ll channels={n}" for n in range(1, 17)) + " every=2 block=1": None,
}


@pytest.mark.parametrize(("right", "wrong"), EXPLORE.items())
def test_both_readers_say_the_same_of_rows_that_explore(tmp_path: Path, right: str, wrong: str | None) -> None:
    file = tmp_path / "some.table"
    file.write_text(f"{HEADER}\nallreduce bytes=1M..2M -> {right}\n")
    by_plugin, by_python = plugin_takes(file), python_takes(file)
    if wrong is None:
        assert (by_plugin, by_python) == (None, None)
        table = from_text(file.read_text())
        assert from_text(to_text(table)) == table
        assert table.decisions[0].arms is not None
    else:
        assert wrong in (by_plugin or "")
        assert wrong in (by_python or "")
    file.write_text(f"{HEADER}\nallreduce registered=yes -> {right}\n")
    assert "registered= in a row that explores" in (python_takes(file) or "")
    assert "registered= in a row that explores" in (plugin_takes(file) or "")


def rows() -> Table:
    choice = TableChoice(Algorithm.Ring, Protocol.LL, channels=16)
    return Table(
        tuple(Decision(Collective.AllReduce, (choice,), bytes=Span(0, end << 10)) for end in range(1, 6)),
        provenance={"by": "hand", "gpus": "H100"},
    )


@pytest.mark.parametrize("target", convert.OF_THE_PLUGIN)
def test_both_readers_refuse_the_same_prefixes(tmp_path: Path, target: str) -> None:
    """Of what is written, cut anywhere: nothing but whole files, a table's header, and files without rows."""
    file = tmp_path / "some.table"
    whole = convert.to_text(convert.from_content(to_text(rows()).encode(), "f"), target).encode()
    assert b"\n# rows: 5 sha256 " in whole
    taken = []
    for length in range(len(whole) + 1):
        file.write_bytes(whole[:length])
        by_plugin, by_python = plugin_takes(file), python_takes(file)
        assert (by_plugin is None) == (by_python is None), (length, by_plugin, by_python)
        if by_plugin is not None and by_python is not None and "the last line does not end" in by_plugin:
            assert by_python == by_plugin.partition(";")[0]
        if by_plugin is None:
            taken.append(length)
    without_last = whole.rindex(b"# rows: 5")
    assert taken == ([len(HEADER) + 1] if target == "table" else []) + [without_last, len(whole)]


def test_a_csv_without_its_last_newline_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "pod.conf"
    file.write_text("allreduce,0,65536,ring,ll,2,2,16\nallreduce,0,6553,tree,ll,16,2,1")
    with pytest.raises(BadTable, match=re.escape(f"{file}:2: the last line does not end")):
        convert.read(file)


@pytest.mark.parametrize("head", [f"{HEADER}\n", "allreduce,0,65536,ring,ll,2,2,16\n"])
def test_both_readers_refuse_a_file_past_16_mib(tmp_path: Path, head: str) -> None:
    file = tmp_path / "large.table"
    for size, taken in ((16 << 20, True), ((16 << 20) + 1, False)):
        line = "#" + "x" * 1022 + "\n"
        text = head + line * ((size - len(head)) // len(line) - 1)
        file.write_text(text + "#" * (size - len(text) - 1) + "\n")
        assert file.stat().st_size == size
        assert (plugin_takes(file) is None) == (python_takes(file) is None) == taken
    assert str(python_takes(file)) == str(plugin_takes(file)).partition(";")[0] == " larger than 16777216 bytes"


@pytest.mark.slow
def test_a_table_past_16_mib_is_not_written() -> None:
    row = Decision(Collective.AllReduce, (), bytes=Span(0, 1))
    with pytest.raises(
        BadTable, match="a table of 800000 rows is larger than 16777216 bytes, which the plugin does not"
    ):
        to_text(Table((row,) * 800_000))
