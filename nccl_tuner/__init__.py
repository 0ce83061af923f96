# The package by the name of its distribution: nccl_tuner.x.y is tuner.x.y, the same modules, and so is its docstring.
# A file tuner.py in the folder that Python looks in first hides the package tuner. Importing this one says so.

import importlib
import importlib.util
import os.path
import sys
from importlib.machinery import ModuleSpec

TYPE_CHECKING = False  # as type checkers know it; what only they need takes longer to load than all else here
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.abc import Loader, MetaPathFinder
    from types import ModuleType
    from typing import Any

    from tuner import Communicator as Communicator
    from tuner import Scenario as Scenario
    from tuner import accept as accept
    from tuner import budget as budget
    from tuner import communicator as communicator
    from tuner import decide as decide
    from tuner import diagnose as diagnose
    from tuner import diff as diff
    from tuner import edges as edges
    from tuner import estimate as estimate
    from tuner import fit as fit
    from tuner import machines as machines
    from tuner import measured as measured
    from tuner import memory as memory
    from tuner import releases as releases
    from tuner import verify as verify

    class _Importer(MetaPathFinder, Loader):
        """What finds modules, and what loads them."""
else:
    _Importer = object

OURS = os.path.join(os.path.dirname(os.path.dirname(os.path.realpath(__file__))), "tuner")  # installed into one folder


def _hiding() -> str | None:
    """The file or folder that Python takes for ``tuner`` and that is not ours; looked for without running it."""
    spec = sys.modules["tuner"].__spec__ if "tuner" in sys.modules else importlib.util.find_spec("tuner")
    if spec is None:
        return "no file"
    found = [spec.origin] if spec.origin else list(spec.submodule_search_locations or ())
    return None if os.path.dirname(os.path.realpath(found[0])) == OURS else found[0]


if (_other := _hiding()) is not None:
    _says = (
        f"the module 'tuner' that Python finds is {_other}, which hides nccl-tuner's own in {OURS}; rename it, or "
        "start Python where it is not in sys.path (python -P leaves out the script's folder and the current one)"
    )
    if os.path.splitext(os.path.basename(sys.argv[0]))[0] == "nccl-tuner":  # the command, which says it in one line
        print(f"nccl-tuner: {_says}", file=sys.stderr)
        sys.exit(2)
    raise ImportError(_says, name="tuner", path=_other)

import tuner  # noqa: E402

__doc__ = tuner.__doc__
__all__ = tuner.__all__


class _SameModule(_Importer):
    """``nccl_tuner.x`` is found as ``tuner.x``, and is the same object."""

    def find_spec(
        self, name: str, path: "Sequence[str] | None", target: "ModuleType | None" = None
    ) -> ModuleSpec | None:
        package, _, rest = name.partition(".")
        if package != __name__ or not rest or rest == "__main__":
            return None
        found = importlib.util.find_spec(f"tuner.{rest}")
        if found is None:
            return None
        return ModuleSpec(name, self, origin=found.origin, is_package=found.submodule_search_locations is not None)

    def create_module(self, spec: ModuleSpec) -> "ModuleType":
        module = importlib.import_module(f"tuner.{spec.name.partition('.')[2]}")
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: "ModuleType") -> None:
        """It ran when it was imported; Python has set the alias' spec on it since, which is undone."""
        if module.__spec__ is not None:
            module.__spec__ = module.__spec__.loader_state


sys.meta_path.insert(0, _SameModule())


def __dir__() -> list[str]:
    return [*globals(), *__all__]


def __getattr__(name: str) -> "Any":
    if name in __all__:
        globals()[name] = value = getattr(tuner, name)
        return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}; it has: {', '.join(__all__)}")
