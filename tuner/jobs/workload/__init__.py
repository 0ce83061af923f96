"""Time of a job's collectives by NCCL's model: count the calls of a file, price them, sum up."""
