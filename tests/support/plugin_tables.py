"""Files of tables for the tuner plugin, and which interface a release asks it by."""

from pathlib import Path

from tuner import release
from tuner.plugin import loading
from tuner.plugin.table.records import HEADER
from tuner.plugin.table.values import close


def interface(nccl: str) -> int:
    """The version of the tuner interface that the release asks our plugin by."""
    return loading.interface(release.load(nccl)).version


def table_of(folder: Path, *rows: str, header: str | None = HEADER) -> Path:
    """A file of these rows, which shows that it is whole."""
    path = folder / "test.table"
    path.write_text(
        close("\n".join([*([header] if header else []), *rows, ""]), sum(not row.startswith("#") for row in rows))
    )
    return path
