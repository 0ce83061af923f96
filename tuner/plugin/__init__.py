"""The tuner plugin: where it is, its decision tables, and how to ask it without NCCL."""

from pathlib import Path

from tuner.base.extras import FOLDER, NotBuilt

_SHARED_OBJECT = FOLDER / "libnccl_tuner_plugin.so"
_FORCING = _SHARED_OBJECT.with_name("libnccl_tuner_force.so")


class PluginUnavailable(NotBuilt):
    """The plugin's shared object has not been built."""


def path() -> Path:
    """The path of the plugin's shared object, which is the value for ``NCCL_TUNER_PLUGIN``."""
    return _built(_SHARED_OBJECT)


def forcing_path() -> Path:
    """Path of the forcing plugin, the shared object whose table the measuring process sets
    (:mod:`tuner.plugin.forcing`)."""
    return _built(_FORCING)


def _built(file: Path) -> Path:
    if not file.is_file():
        raise PluginUnavailable(
            f"no tuner plugin at {file}: it is compiled when the package is installed, on Linux only"
        )
    return file
