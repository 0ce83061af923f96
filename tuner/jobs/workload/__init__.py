"""Computes the time of a job's collectives by NCCL's model: counts the calls of a file, prices them, and adds up."""
