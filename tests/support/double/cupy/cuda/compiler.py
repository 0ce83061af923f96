"""cupy.cuda.compiler."""


class CompileException(Exception):
    """NVRTC refused a source."""
