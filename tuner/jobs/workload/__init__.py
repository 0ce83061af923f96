"""How long a job's collectives take by NCCL's model: count the calls of a file, price them, sum up."""
