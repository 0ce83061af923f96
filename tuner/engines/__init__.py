"""Serving engines: which of an engine's AllReduce implementations carries a message of a given size, and when NCCL
does.

``tables/engines/ENGINE/RELEASE.toml`` has an engine's implementations in the order in which it tries them, each with
its conditions. :mod:`tuner.engines.releases` reads a table and its parents, :mod:`tuner.engines.switches` what the user
set for the engine, :mod:`tuner.engines.rules` has one small rule for each kind of condition, and
:mod:`tuner.engines.carriers` applies these rules to a :class:`~tuner.engines.situation.Situation`.

To add a release of an engine, write a file that names the parent release and what changed, with the source on each
line. To add an engine, make a folder with one such file. To add a kind of condition, write a function in
:mod:`tuner.engines.rules`, and the condition's sentence in ``tables/findings/engines.toml``.
"""
