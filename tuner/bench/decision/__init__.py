"""Makes few rows of a decision table from measurements, and runs the A/B run through the plugin that they have to pass.

``rows`` finds the options at each size and chooses few rows; ``gate`` is the A/B run.
"""
