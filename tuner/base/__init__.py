"""The foundation of all other packages: NCCL's names and numbers, errors, C's arithmetic, files, data frames."""
