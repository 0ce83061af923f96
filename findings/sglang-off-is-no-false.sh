#!/usr/bin/env bash
# SGLang 0.5.23: a switch that is set to "off" stays on.
#
# Expected: SGLANG_OPT_USE_CUSTOM_ALL_REDUCE_V2=off turns the second custom AllReduce off, or the engine refuses the word.
# Seen:     words that count as false are false, 0, no and n. Any other word is a Python warning, and the default stays,
#           which is on.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m pip download --quiet --no-deps --only-binary=:all: --python-version 3.11 --dest . sglang==0.5.23
python3 - <<'PYTHON' >seen
import ast, glob, os, warnings, zipfile
from contextlib import contextmanager
from typing import Any
name = "SGLANG_OPT_USE_CUSTOM_ALL_REDUCE_V2"
module = ast.parse(zipfile.ZipFile(glob.glob("*.whl")[0]).read("sglang/srt/environ.py"))
envs = next(n for n in module.body if isinstance(n, ast.ClassDef) and n.name == "Envs")
envs.body = [n for n in envs.body if isinstance(n, ast.Assign) and n.targets[0].id == name]
kept = [n for n in module.body if isinstance(n, ast.ClassDef) and n.name in ("EnvField", "EnvBool")] + [envs]
space = {"os": os, "warnings": warnings, "Any": Any, "contextmanager": contextmanager}
exec(compile(ast.Module(kept, []), "environ", "exec"), space)
for word in ("0", "no", "off", "False", "disable"):
    os.environ[name] = word
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        print(word, space["Envs"].__dict__[name].get(), f"{len(said)} warning(s)")
PYTHON
diff seen - <<'SEEN' && echo "sglang 0.5.23: as seen"
0 False 0 warning(s)
no False 0 warning(s)
off True 1 warning(s)
False False 0 warning(s)
disable True 1 warning(s)
SEEN
