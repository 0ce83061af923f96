"""Ground that everything stands on: NCCL's names and numbers, errors, C's arithmetic, files, frames."""
