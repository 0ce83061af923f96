"""From measurements to few rows of a decision table, and the A/B run through the plugin that they have to pass.

``rows`` has what there is to choose at each size and the rows that follow, ``assign`` the choice of few of them,
``gate`` the A/B run.
"""
