"""The tuner plugin of aws-ofi-nccl, which AWS's images load with their network plugin: its releases and their
differences."""
