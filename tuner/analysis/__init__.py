"""Questions about what NCCL picks: why, where it changes, what another release or machine would do."""
