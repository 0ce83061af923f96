#!/usr/bin/env bash
# MPICH 5.0.2: on one host -genvlist and -genvnone hide nothing from the program.
#
# Expected: mpiexec -genvlist NCCL_DEBUG hands on that variable alone, and -genvnone none.
# Seen:     the program has NCCL_ALGO of the shell in both cases: what it inherits from the launcher stays. -env, which
#           sets a variable, counts (the last of two).
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv environment
environment/bin/pip install --quiet mpich==5.0.2
printf '#!/bin/sh\necho "NCCL_ALGO=$NCCL_ALGO"\n' >program
chmod +x program
export NCCL_ALGO=Ring NCCL_DEBUG=WARN
{
  environment/bin/mpiexec -n 1 -genvlist NCCL_DEBUG ./program
  environment/bin/mpiexec -n 1 -genvnone ./program
  environment/bin/mpiexec -n 1 -env NCCL_ALGO Tree -env NCCL_ALGO NVLS ./program
} >seen 2>&1
diff seen - <<'SEEN' && echo "mpich 5.0.2: as seen"
NCCL_ALGO=Ring
NCCL_ALGO=Ring
NCCL_ALGO=NVLS
SEEN
