"""What is wrong in a log, or worth knowing: checks, each a function that yields findings.

To add a check: a function of :class:`shown.ShownByLog` in a module here that yields
:class:`~tuner.base.findings.Finding`, the words of its codes in ``tables/findings/diagnose.toml``, and its entry in
:data:`every.CHECKS`.
"""
