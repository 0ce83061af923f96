"""Draws records as figures with matplotlib. All modules of this package import it, except the module of the colours."""

import io
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tuner.base.errors import BadInput, one_of
from tuner.base.extras import require
from tuner.base.files import write_bytes
from tuner.base.printable import printable

if TYPE_CHECKING:
    from types import ModuleType

    from matplotlib.figure import Figure

# What a file ends with, and what matplotlib puts into it: no dates, so that equal pictures are equal files.
_METADATA: Mapping[str, dict[str, None]] = {".png": {}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}


def plot(draw: "Callable[[ModuleType], Figure]", path: Path | str | None) -> "Figure":
    """Calls ``draw`` with :mod:`tuner.answers.charts.figures`; saves the picture if a ``path`` is given.

    MissingExtra without matplotlib. BadInput if the ending is not a picture format, or if the file cannot be written.
    """
    require("matplotlib", "a picture")
    from tuner.answers.charts import figures

    figure = draw(figures)
    if path is not None:
        save(figure, Path(path))
    return figure


def save(figure: "Figure", path: Path) -> None:
    """Writes the picture in the format of the ``path``'s ending. BadInput for another ending, or an unwritable file."""
    import matplotlib as mpl
    from PIL import Image  # matplotlib needs it, too

    check_ending(path)
    form, drawn = path.suffix.lower(), io.BytesIO()
    with mpl.rc_context({"svg.hashsalt": "nccl-tuner"}):
        figure.savefig(drawn, format=form[1:], dpi=100, metadata=_METADATA[form])
    if form == ".png":
        with Image.open(drawn) as picture:
            drawn = io.BytesIO()
            picture.convert("RGB").quantize().save(drawn, "PNG", optimize=True)  # 256 colours: a third of the size
    content = drawn.getvalue()
    write_bytes(path, printable(content.decode()).encode() if form == ".svg" else content)


def ready_to_save(path: Path) -> None:
    """Checks, before the work starts, that a picture can be drawn. MissingExtra without matplotlib; BadInput for a
    wrong ending.
    """
    require("matplotlib", "a picture")
    check_ending(path)


def check_ending(path: Path) -> None:
    """Raises BadInput if the path's ending is not a picture format."""
    if path.suffix.lower() not in _METADATA:
        raise BadInput(f"the ending of {path} has to name the picture's format; {one_of(_METADATA)}")
