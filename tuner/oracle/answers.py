"""The bytes the child answers with: struct sim_answer of csrc/sim/world.c, as numpy reads it."""

import numpy as np

MAX_CELLS = 64
KERNEL = np.dtype(
    [("function", "u8"), ("grid_x", "u4"), ("block_x", "u4"), ("device", "i4")],
    align=True,
)
QUESTION = np.dtype(
    [
        ("bytes", "u8"),
        ("collective", "i4"),
        ("pipe_ops", "i4"),
        ("algorithms", "i4"),
        ("protocols", "i4"),
        ("registered", "i4"),
        ("channels", "i4"),
        ("before_us", "f4", (MAX_CELLS,)),
        ("after_us", "f4", (MAX_CELLS,)),
    ],
    align=True,
)
OPERATION = np.dtype(
    [("number", "u8"), ("channels", "u8"), ("pattern", "i4"), ("protocol", "i4"), ("type", "i4")], align=True
)
RECORD = np.dtype(
    [
        ("kernels", "i4"),
        ("questions", "i4"),
        ("operations", "i4"),
        ("operation", OPERATION),
        ("kernel", KERNEL),
        ("question", QUESTION),
    ],
    align=True,
)
ANSWER = np.dtype(
    [("result", "i4"), ("simulated_us", "f4"), ("log_bytes", "u8"), ("record", RECORD)],
    align=True,
)
