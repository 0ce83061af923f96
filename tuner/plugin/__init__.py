"""The tuner plugin: where it is, its decision tables, and asking it without NCCL."""

from pathlib import Path

from tuner.errors import TunerError

_SHARED_OBJECT = Path(__file__).resolve().parent.parent / "_native" / "libnccl_tuner_plugin.so"


class PluginUnavailable(TunerError):
    """The plugin's shared object is not there."""


def path() -> Path:
    """The shared object for ``NCCL_TUNER_PLUGIN``."""
    if not _SHARED_OBJECT.is_file():
        raise PluginUnavailable(
            f"no tuner plugin at {_SHARED_OBJECT}: it is compiled when the package is installed, on Linux only"
        )
    return _SHARED_OBJECT
