"""Figures of records, by matplotlib. MissingExtra where it is not installed, on import of this package."""

from collections.abc import Mapping
from pathlib import Path

from tuner.base import extras
from tuner.base.errors import BadInput, one_of

extras.require("matplotlib", "a picture")
import matplotlib as mpl  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402
from PIL import Image  # noqa: E402  # matplotlib needs it, too

# What a file ends with, and what matplotlib puts into it: no dates, so that equal pictures are equal files.
_METADATA: Mapping[str, dict[str, None]] = {".png": {}, ".svg": {"Date": None}, ".pdf": {"CreationDate": None}}


def save(figure: Figure, path: Path) -> None:
    """By the ending of ``path``. BadInput for another one, or where the file cannot be written."""
    check_ending(path)
    try:
        with mpl.rc_context({"svg.hashsalt": "nccl-tuner"}):
            figure.savefig(path, dpi=100, metadata=_METADATA[path.suffix.lower()])
        if path.suffix.lower() == ".png":
            with Image.open(path) as picture:
                picture.convert("RGB").quantize().save(path, optimize=True)  # 256 colours: a third of the size
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}") from error


def check_ending(path: Path) -> None:
    """BadInput for a path whose ending is no format of a picture."""
    if path.suffix.lower() not in _METADATA:
        raise BadInput(f"{path}: the ending says the format of a picture; {one_of(_METADATA)}")
