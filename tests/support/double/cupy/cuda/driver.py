"""cupy.cuda.driver."""

_ERRORS = {
    400: "CUDA_ERROR_INVALID_HANDLE: invalid resource handle",
    500: "CUDA_ERROR_NOT_FOUND: named symbol not found",
}


class CUDADriverError(RuntimeError):
    """An error of the driver."""

    def __init__(self, status: int) -> None:
        self.status = status
        super().__init__(_ERRORS[status])
