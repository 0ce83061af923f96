#!/usr/bin/env bash
# JAX 0.10.2: the coordinator under Slurm is a host that does not exist where names go on behind the brackets.
#
# Expected: of SLURM_STEP_NODELIST=rack[1-2]n[3-4], which Slurm writes for hosts of racks, the coordinator is rack1n3, as
#           scontrol show hostnames has it.
# Seen:     rack1: what follows the first brackets is left out, of a-[1-2]-ib as well. Lists that end with brackets work.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv environment
environment/bin/pip install --quiet jax==0.10.2 jaxlib==0.10.2
cat >program.py <<'PYTHON'
import os
os.environ.update(SLURM_JOB_ID="4242", SLURM_STEP_NUM_TASKS="2", SLURM_PROCID="0", SLURM_LOCALID="0")
from jax._src.clusters.slurm_cluster import SlurmCluster
for hosts in ("gpu[003,001]", "n1,n2", "rack[1-2]n[3-4]", "a-[1-2]-ib"):
    os.environ["SLURM_STEP_NODELIST"] = hosts
    print(hosts, SlurmCluster.get_coordinator_address(30, None).rpartition(":")[0])
PYTHON
environment/bin/python program.py >seen
diff seen - <<'SEEN' && echo "jax 0.10.2: as seen"
gpu[003,001] gpu003
n1,n2 n1
rack[1-2]n[3-4] rack1
a-[1-2]-ib a-1
SEEN
