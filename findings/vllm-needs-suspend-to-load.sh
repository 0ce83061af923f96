#!/usr/bin/env bash
# vLLM 0.33.0: a libnccl older than 2.29.7 is refused when it is opened, whatever of it would be used.
#
# Expected: VLLM_NCCL_SO_PATH to NCCL 2.21.5 works: functions of symmetric memory are optional, with a warning.
# Seen:     the list of functions ends with an error at ncclCommSuspend, which stands in libnccl from 2.29.7 on. Without
#           that one, symmetric memory's own would end it as well: on NVIDIA the missing function is raised again.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
get() { python3 -m pip download --quiet --no-deps --only-binary=:all: --dest . "$@"; }
get --python-version 3.11 vllm==0.33.0
get --platform manylinux2014_x86_64 nvidia-nccl-cu12==2.21.5
python3 - <<'PYTHON' >seen
import ast, ctypes, glob, os, platform, types, zipfile
zipfile.ZipFile(glob.glob("nvidia_nccl*.whl")[0]).extract("nvidia/nccl/lib/libnccl.so.2")
module = ast.parse(zipfile.ZipFile(glob.glob("vllm*.whl")[0]).read("vllm/distributed/device_communicators/pynccl_wrapper.py"))
kept = [n for n in module.body if not isinstance(n, (ast.Import, ast.ImportFrom))]
class Anything:
    def __getattr__(self, name): return Anything()
    def __call__(self, *a, **k): return Anything()
import dataclasses, functools
from typing import Any
from dataclasses import dataclass
space = {"ctypes": ctypes, "functools": functools, "platform": platform, "torch": Anything(), "ReduceOp": Anything(), "Any": Any,
         "dataclass": dataclass, "init_logger": lambda name: Anything(), "find_nccl_library": None, "__name__": "wrapper",
         "envs": types.SimpleNamespace(VLLM_USE_NCCL_SYMM_MEM=False),
         "current_platform": types.SimpleNamespace(is_rocm=lambda: False)}
future = ast.ImportFrom("__future__", [ast.alias("annotations")], 0)
import sys
sys.modules["wrapper"] = types.ModuleType("wrapper")
exec(compile(ast.fix_missing_locations(ast.Module([future, *kept], [])), "wrapper", "exec"), space)
library = space["NCCLLibrary"]
def opened(without):
    library.path_to_dict_mapping.clear()
    library.exported_functions = [each for each in library.exported_functions if each.name not in without]
    try:
        library(os.path.abspath("nvidia/nccl/lib/libnccl.so.2"))
        return "opened"
    except AttributeError as error:
        return "refused: " + str(error).split()[-1]
print("as it is", opened(()))
print("without suspend and resume", opened(("ncclCommSuspend", "ncclCommResume")))
print("without windows too", opened(("ncclCommWindowRegister", "ncclCommWindowDeregister")))
PYTHON
diff seen - <<'SEEN' && echo "vllm 0.33.0: as seen"
as it is refused: ncclCommSuspend
without suspend and resume refused: ncclCommWindowRegister
without windows too opened
SEEN
