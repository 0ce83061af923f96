#!/usr/bin/env bash
# accelerate 1.15.0: professional cards named RTX 4000 count as GeForce RTX 40, and GeForce RTX 50 as without trouble.
#
# Expected: NCCL's P2P and InfiniBand are switched off on GeForce RTX 40 alone (two or more, with a driver before 550.40.07).
# Seen:     the name is searched for "RTX 40": a Quadro RTX 4000 (Turing) and an RTX 4000 Ada Generation have it too, a
#           GeForce RTX 5090 does not.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m pip download --quiet --no-deps --only-binary=:all: --dest . accelerate==1.15.0
python3 - <<'PYTHON' >seen
import ast, glob, zipfile
module = ast.parse(zipfile.ZipFile(glob.glob("*.whl")[0]).read("accelerate/utils/environment.py"))
name = "check_cuda_p2p_ib_support"
function = next(n for n in module.body if isinstance(n, ast.FunctionDef) and n.name == name)
function.decorator_list = []
numbers = lambda text: tuple(map(int, text.split(".")))
for card in "NVIDIA GeForce RTX 4090", "Quadro RTX 4000", "NVIDIA RTX 4000 Ada Generation", "NVIDIA GeForce RTX 5090":
    space = {"get_gpu_info": lambda: ([card] * 2, 2), "get_driver_version": lambda: "535.183.01", "parse": numbers}
    exec(compile(ast.Module([function], []), name, "exec"), space)
    print(card, "stays on" if space[name]() else "switched off")
PYTHON
diff seen - <<'SEEN' && echo "accelerate 1.15.0: as seen"
NVIDIA GeForce RTX 4090 switched off
Quadro RTX 4000 switched off
NVIDIA RTX 4000 Ada Generation switched off
NVIDIA GeForce RTX 5090 stays on
SEEN
