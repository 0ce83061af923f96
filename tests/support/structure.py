"""Rules of form that tests/unit/test_structure.py holds, and what of ``tuner`` does not keep them yet."""

import ast
import re
import tomllib
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]
EXCEPTIONS = ROOT / "tests" / "unit" / "structure_exceptions.toml"
Found = dict[str, dict[str, list[str]]]  # of each rule, of each name of a class or of a room, the places

RULES = {
    "classes": "a class of this name exists already: say of what it is",
    "options": "only tuner/cli knows options; below it, name the parameter or the thing",
}
OF_THE_COMMAND_LINE = ("tuner/cli/", "tuner/__main__.py")
# Options of pip and of nvidia-smi, which this project starts; of nccl-tests, torchrun, lstopo and nsys, which it names.
OF_OTHERS = {
    "--build", "--dest", "--disable-pip-version-check", "--force-reinstall", "--no-cache-dir", "--no-deps",
    "--only-binary", "--query-gpu", "--quiet",
    "--ngpus", "--nproc-per-node", "--nthreads", "--of", "--trace",
}  # fmt: skip
OPTION = re.compile(r"(?<![\w-])--[a-z][\w-]*")
Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def sources() -> dict[str, str]:
    return {str(file.relative_to(ROOT)): file.read_text("utf-8") for file in sorted((ROOT / "tuner").rglob("*.py"))}


def _arguments(node: ast.AST) -> list[ast.expr]:
    """Texts that are options of a program, as it declares them or as it is started with them."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add_argument":
        return node.args
    return node.elts if isinstance(node, ast.List) else []


def found_in(files: Mapping[str, str]) -> Found:
    """Exceptions to each rule in sources by their path; a class is one where another has its name."""
    found: Found = {rule: defaultdict(list) for rule in RULES}
    for path, source in files.items():
        room = "/".join(Path(path).parts[:2])
        of_documentation = set[ast.AST]()
        for node in ast.walk(tree := ast.parse(source)):
            if isinstance(node, ast.ClassDef):
                found["classes"][node.name].append(f"{path}:{node.lineno}")
            if isinstance(node, Documented) and ast.get_docstring(node) is not None:
                of_documentation.add(node.body[0].value)  # type: ignore[attr-defined]
        if not path.startswith(OF_THE_COMMAND_LINE):
            of_programs = {part for node in ast.walk(tree) for part in _arguments(node)}
            for node in ast.walk(tree):
                if isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in of_documentation:
                    named = [] if node in of_programs else OPTION.findall(node.value)
                    found["options"][room] += [
                        f"{path}:{node.lineno}: {each}" for each in named if each not in OF_OTHERS
                    ]
    # A name with an underscore is a module's own.
    found["classes"] = {k: places for k, places in found["classes"].items() if len(places) > 1 and k[0] != "_"}
    return {rule: {name: places for name, places in each.items() if places} for rule, each in found.items()}


def found() -> Found:
    return found_in(sources())


def listed() -> dict[str, dict[str, int]]:
    return tomllib.loads(EXCEPTIONS.read_text("utf-8"))


def write(exceptions: Mapping[str, Mapping[str, int]]) -> None:
    lines = ["# How often a rule of tests/support/structure.py is not kept yet. Numbers fall only:", "#"]
    lines[1] += " python -m tests.scripts.lower_structure_exceptions"
    for rule, allowed in exceptions.items():
        lines += ["", f"[{rule}]", *(f'"{name}" = {count}' for name, count in sorted(allowed.items()))]
    EXCEPTIONS.write_text("\n".join(lines) + "\n", "utf-8")
