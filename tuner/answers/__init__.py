"""Questions of users: what NCCL picks and why, where that changes, what it costs, what another machine would do."""
