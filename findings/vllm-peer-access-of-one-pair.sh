#!/usr/bin/env bash
# vLLM 0.33.0: by default only the first other GPU is asked for peer access before the custom AllReduce is switched on.
#
# Expected: with VLLM_SKIP_P2P_CHECK at its default of 1 the driver's word is taken for every pair of the rank.
# Seen:     the loop returns the driver's word for its first pair: of four GPUs of which GPU 0 cannot reach GPU 3, rank 0
#           answers that peer access is there. With VLLM_SKIP_P2P_CHECK=0 every pair is tried, and it is not.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m pip download --quiet --no-deps --only-binary=:all: --python-version 3.11 --dest . vllm==0.33.0
python3 - <<'PYTHON' >seen
import ast, glob, types, zipfile
wheel = zipfile.ZipFile(glob.glob("*.whl")[0])
module = ast.parse(wheel.read("vllm/distributed/device_communicators/custom_all_reduce.py"))
function = next(n for n in module.body if isinstance(n, ast.FunctionDef) and n.name == "_can_p2p")
asked = []
def reaches(one, other):
    asked.append((one, other))
    return (one, other) != (0, 3)
space = {
    "envs": types.SimpleNamespace(VLLM_SKIP_P2P_CHECK=True),
    "logger": types.SimpleNamespace(debug=lambda *a: None),
    "torch": types.SimpleNamespace(cuda=types.SimpleNamespace(can_device_access_peer=reaches)),
    "current_platform": types.SimpleNamespace(logical_device_id_to_visible_device_id=lambda i: i),
    "gpu_p2p_access_check": reaches,
}
exec(compile(ast.Module([function], []), "custom_all_reduce", "exec"), space)
print("default:", space["_can_p2p"](0, 4), "asked", asked)
asked.clear()
space["envs"].VLLM_SKIP_P2P_CHECK = False
print("VLLM_SKIP_P2P_CHECK=0:", space["_can_p2p"](0, 4), "asked", asked)
PYTHON
diff seen - <<'SEEN' && echo "vllm 0.33.0: as seen"
default: True asked [(0, 1)]
VLLM_SKIP_P2P_CHECK=0: False asked [(0, 1), (0, 2), (0, 3)]
SEEN
