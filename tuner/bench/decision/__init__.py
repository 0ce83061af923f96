"""From measurements to few rows of a decision table, and the A/B run through the plugin that they have to pass.

``rows`` has the options at each size and the resulting rows, ``assign`` chooses few of them, ``gate`` is the A/B run.
"""
