#!/bin/sh
# Slurm's Prolog=, as root on every node of a job: the node has the plugin, and the table of this hash, or it is drained.
# Its exit code is what slurmd goes by: not 0 drains the node and requeues the job.
set -eu
plugin=${NCCL_TUNER_DEPLOY:-/opt/nccl-tuner}/libnccl_tuner_plugin.so
table=${NCCL_TUNER_DEPLOY:-/opt/nccl-tuner}/current.table
sum=$(cut -d' ' -f1 "$table.sha256")
test "${#sum}" -eq 64 || { echo "$table.sha256: no hash" >&2; exit 1; }
echo "$sum  $table" | sha256sum --check --quiet --strict -
grep -q 'nccl-tuner-plugin ' "$plugin" || { echo "$plugin: not there, or no plugin" >&2; exit 1; }
# Below /run, where root alone makes folders: in /dev/shm any user could have put a link under this name.
# shellcheck disable=SC2174 # the mode is for the last folder alone: those above are the node's
mkdir -p -m 1777 "${NCCL_TUNER_LIVE_DIR:-/run/nccl-tuner}"
