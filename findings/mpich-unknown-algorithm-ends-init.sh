#!/usr/bin/env bash
# MPICH 5.0.2: a mistyped algorithm of a collective ends MPI_Init, where a mistyped variable is not noticed.
#
# Expected: MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM=rings is a warning, and the automatic choice is used.
# Seen:     MPI_Init reports an error, and the program ends; a variable whose name is mistyped is not noticed.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv environment
environment/bin/pip install --quiet mpich==5.0.2 mpi4py==4.1.2
printf 'from mpi4py import MPI\nprint("runs")\n' >program.py
run() { if env "$@" environment/bin/mpiexec -n 1 environment/bin/python program.py >said 2>&1; then cat said; else echo "ends"; fi; }
{
  run MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM=ring
  run MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHM=rings
  run MPIR_CVAR_ALLREDUCE_INTRA_ALGORITHMS=rings
} >seen
diff seen - <<'SEEN' && echo "mpich 5.0.2: as seen"
runs
ends
runs
SEEN
