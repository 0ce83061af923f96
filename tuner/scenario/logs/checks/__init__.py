"""Checks of a log, each a function that yields findings: what is wrong, or worth knowing.

To add a check, write a function in a module here that takes a :class:`~tuner.scenario.logs.imported.ShownByLog` and
yields :class:`~tuner.base.findings.Finding`; write the sentences of its codes in ``tables/findings/diagnose.toml``, and
add the function to :data:`every.CHECKS`.
"""
