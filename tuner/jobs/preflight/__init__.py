"""Checks before a job starts whether all ranks would choose the same, from what each rank recorded about itself.

``collect`` is one file that needs only Python's standard library; ``workflow`` judges the records that it wrote.
"""
