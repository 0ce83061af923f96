"""Before a job starts: whether all ranks would choose the same, from what each rank wrote down about itself.

``collect`` is one file that needs Python's standard library alone; ``workflow`` judges what it wrote.
"""
