#!/usr/bin/env bash
# DeepSpeed 0.19.8: its launcher takes NCCL_ variables to the other nodes, and leaves PyTorch's and the plugins' behind.
#
# Expected: NCCL_DEBUG and PyTorch's TORCH_NCCL_BLOCKING_WAIT reach every node.
# Seen:     names that begin with NCCL, PYTHON, UCX, MV2 or MLFLOW do; TORCH_NCCL_, OFI_NCCL_ and FI_ do not,
#           so that node 0 runs with other settings than the rest unless .deepspeed_env names them.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m pip download --quiet --no-deps --dest . deepspeed==0.19.8
python3 - <<'PYTHON' >seen
import ast, glob, tarfile
source = tarfile.open(glob.glob("*.tar.gz")[0])
read = lambda name: ast.parse(source.extractfile(f"deepspeed-0.19.8/{name}").read())
prefixes = next(ast.literal_eval(n.value) for n in read("deepspeed/launcher/runner.py").body
                if isinstance(n, ast.Assign) and n.targets[0].id == "EXPORT_ENVS")
accelerator = next(n for n in read("accelerator/cuda_accelerator.py").body if isinstance(n, ast.ClassDef))
method = next(n for n in accelerator.body if isinstance(n, ast.FunctionDef) and n.name == "export_envs")
prefixes += ast.literal_eval(method.body[0].value)
print(*sorted(prefixes))
for name in "NCCL_DEBUG", "TORCH_NCCL_BLOCKING_WAIT", "OFI_NCCL_PROTOCOL", "FI_PROVIDER", "UCX_TLS":
    print(name, "taken" if name.startswith(tuple(prefixes)) else "left behind")
PYTHON
diff seen - <<'SEEN' && echo "DeepSpeed 0.19.8: as seen"
MLFLOW MV2 NCCL PYTHON UCX
NCCL_DEBUG taken
TORCH_NCCL_BLOCKING_WAIT left behind
OFI_NCCL_PROTOCOL left behind
FI_PROVIDER left behind
UCX_TLS taken
SEEN
