"""Answers questions of users: what NCCL picks and why, where the pick changes, what it costs, what another machine
would do.
"""
