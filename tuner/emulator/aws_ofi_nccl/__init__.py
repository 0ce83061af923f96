"""aws-ofi-nccl's tuner, which AWS's images load with their network plugin: its releases and their differences."""
