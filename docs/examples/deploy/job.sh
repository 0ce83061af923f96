#!/bin/sh
# A job script for sbatch, or what a container's entry point runs where `srun` is another launcher:
#     RECORDS=/shared/$SLURM_JOB_ID TABLE=/etc/nccl/pod.table NCCL=2.28.9 MACHINE=dgx-h100 job.sh python train.py
# Which table, its hash and when the job began are settled here, once; all ranks share these variables.
set -eu
tuner=${NCCL_TUNER:-nccl-tuner}
# Not eval "$(...)": where the command fails, that goes on with nothing.
variables=$($tuner plugin env --nccl "$NCCL" --table "$TABLE" --strict ${SWITCH:+--switch "$SWITCH"} ${LIVE:+--live "$LIVE"})
eval "$variables"

# Every rank writes down what it would choose by, in its container; the job starts only where all choose the same.
# A folder of each start: a job that is queued again keeps its number, and other nodes leave records of other names.
records=$RECORDS/$(date +%s)
srun $tuner preflight collect ${LIBRARY:+--library "$LIBRARY"} "$records"
$tuner preflight check "$records" ${COLLECTIVES:-} --machine "$MACHINE"

# A rank that fails at its start leaves the others waiting for it in ncclCommInitRank: the launcher has to end them.
exec srun --kill-on-bad-exit=1 "$@"
