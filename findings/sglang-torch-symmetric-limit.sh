#!/usr/bin/env bash
# SGLang 0.5.23: torch symmetric memory takes AllReduces far above the table of its limits, for any model.
#
# Expected: below 128 MiB on 8 GPUs of compute capability 9, as TORCH_SYMM_MEM_ALL_REDUCE_MAX_SIZES says.
# Seen:     up to 512 MiB. Two variables made for the kernels of one model, SGLANG_OPT_USE_INKLING_CUSTOM_AR and
#           SGLANG_OPT_USE_INKLING_FUSED_AR_SCONV, are on by default and raise the limit of every model's group; with both
#           at 0 it is the table's.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m pip download --quiet --no-deps --only-binary=:all: --python-version 3.11 --dest . sglang==0.5.23
python3 - <<'PYTHON' >seen
import ast, os, types, warnings, zipfile, glob
wheel = zipfile.ZipFile(glob.glob("*.whl")[0])
read = lambda name: ast.parse(wheel.read(f"sglang/srt/{name}"))
variables = read("environ.py")
wanted = ("EnvField", "EnvBool", "EnvInt")
envs = next(n for n in variables.body if isinstance(n, ast.ClassDef) and n.name == "Envs")
envs.body = [n for n in envs.body if isinstance(n, ast.Assign) and "INKLING" in n.targets[0].id and isinstance(n.value, ast.Call)
             and n.value.func.id in wanted]
kept = [n for n in variables.body if isinstance(n, ast.ClassDef) and n.name in wanted] + [envs]
from contextlib import contextmanager
from typing import Any, Optional, Union
space = {"os": os, "warnings": warnings, "Any": Any, "contextmanager": contextmanager}
exec(compile(ast.Module(kept, []), "environ", "exec"), space)
limits = {}
exec(compile(read("distributed/device_communicators/all_reduce_utils.py"), "limits", "exec"), limits)
class Anything:
    itemsize, multicast_ptr, group_name, index = 2, 1, "", 0
    def __getattr__(self, name): return Anything()
    def __call__(self, *a, **k): return Anything()
class Device: index = 0
torch = types.SimpleNamespace(bfloat16=Anything(), device=Device, Tensor=object,
                              cuda=types.SimpleNamespace(set_device=lambda d: None, get_device_capability=lambda d: (9, 0)))
module = read("distributed/device_communicators/torch_symm_mem.py")
name = "TorchSymmMemCommunicator"
space = {"torch": torch, "dist": types.SimpleNamespace(get_world_size=lambda g: 8), "ProcessGroup": object, "Union": Union,
         "Optional": Optional, "torch_symm_mem": Anything(), "torch_symm_mem_available": True, "envs": space["Envs"](),
         "get_exec": lambda: types.SimpleNamespace(comm=types.SimpleNamespace(enable_scattered_sconv=False)),
         "logger": Anything(), **limits}
exec(compile(ast.Module([n for n in module.body if isinstance(n, ast.ClassDef) and n.name == name], []), name, "exec"), space)
print("table", limits["TORCH_SYMM_MEM_ALL_REDUCE_MAX_SIZES"][9][8] >> 20, "MiB")
print("by default", space[name](Anything(), Device()).max_size >> 20, "MiB")
os.environ["SGLANG_OPT_USE_INKLING_FUSED_AR_SCONV"] = "0"
print("without the second", space[name](Anything(), Device()).max_size >> 20, "MiB")
os.environ["SGLANG_OPT_USE_INKLING_CUSTOM_AR"] = "0"
print("without both", space[name](Anything(), Device()).max_size >> 20, "MiB")
PYTHON
diff seen - <<'SEEN' && echo "sglang 0.5.23: as seen"
table 128 MiB
by default 512 MiB
without the second 256 MiB
without both 128 MiB
SEEN
