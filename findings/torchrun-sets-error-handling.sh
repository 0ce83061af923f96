#!/usr/bin/env bash
# PyTorch 2.13.0: torchrun sets a variable of NCCL's process group for its workers, other launchers do not.
#
# Expected: torchrun sets the ranks' variables and none that has to do with NCCL.
# Seen:     TORCH_NCCL_ASYNC_ERROR_HANDLING=1, unless it is set: the same program behaves otherwise after an error under
#           torchrun than under mpirun or srun.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv environment
environment/bin/pip install --quiet torch==2.13.0+cpu numpy==2.4.6
echo 'import os; print(*sorted(f"{name}={value}" for name, value in os.environ.items() if "NCCL" in name))' >program.py
unset "${!NCCL_@}" "${!TORCH_NCCL_@}"
{
  environment/bin/python program.py
  environment/bin/torchrun --nproc-per-node 1 program.py
  TORCH_NCCL_ASYNC_ERROR_HANDLING=3 environment/bin/torchrun --nproc-per-node 1 program.py
} >seen 2>log
diff seen - <<'SEEN' && echo "torch 2.13.0: as seen"

TORCH_NCCL_ASYNC_ERROR_HANDLING=1
TORCH_NCCL_ASYNC_ERROR_HANDLING=3
SEEN
