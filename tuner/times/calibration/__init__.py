"""Measured times against models: ``workflow`` fits the constants of NCCL's model, or alpha and beta, to files.

``observations`` are the times that are fitted to, ``constants`` what may change, ``forward`` the model as a function of
it, ``identify`` what the times can tell apart, ``fit`` and ``alphabeta`` the fits. ``sweep``, ``links`` and
``efficiency`` hold a sweep over sizes against the ideal and the links.
"""
