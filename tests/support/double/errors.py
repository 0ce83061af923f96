"""CUDA's errors by number and name, those that the double says or that are planted (driver_types.h of CUDA 12)."""

from tuner.base.errors import BadInput, one_of

ERRORS = {
    "cudaErrorInvalidValue": (1, "invalid argument"),
    "cudaErrorMemoryAllocation": (2, "out of memory"),
    "cudaErrorNoDevice": (100, "no CUDA-capable device is detected"),
    "cudaErrorInvalidDevice": (101, "invalid device ordinal"),
    "cudaErrorECCUncorrectable": (214, "uncorrectable ECC error encountered"),
    "cudaErrorNvlinkUncorrectable": (220, "uncorrectable NVLink error detected during the execution"),
    "cudaErrorInvalidResourceHandle": (400, "invalid resource handle"),
    "cudaErrorNotReady": (600, "device not ready"),
    "cudaErrorIllegalAddress": (700, "an illegal memory access was encountered"),
    "cudaErrorLaunchOutOfResources": (701, "too many resources requested for launch"),
    "cudaErrorLaunchTimeout": (702, "the launch timed out and was terminated"),
    "cudaErrorLaunchFailure": (719, "unspecified launch failure"),
    "cudaErrorStreamCaptureUnsupported": (900, "operation not permitted when stream is capturing"),
    "cudaErrorIllegalState": (401, "the operation cannot be performed in the present state"),
}
_NAMES = {number: name for name, (number, _) in ERRORS.items()}


def number(name: str) -> int:
    """BadInput for a name that is not known."""
    if name not in ERRORS:
        raise BadInput(f"error {name!r}; {one_of(ERRORS)}")
    return ERRORS[name][0]


def text(status: int) -> str:
    """As cupy says it."""
    name = _NAMES.get(status, "cudaErrorUnknown")
    return f"{name}: {ERRORS[name][1] if name in ERRORS else 'unknown error'}"
