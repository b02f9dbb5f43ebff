"""Errors of GPUs: the kind of finding that each is, and which one ended a process.

The numbers are those of NVIDIA's "Xid Errors" in its GPU deployment documentation.

Tests: tests/findings/recorded/test_device_rules.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from haiprof.findings.recorded.case import DeviceError

#: Kind of finding for each Xid that has one. 43 and 45 follow from others, or from a kill.
_OF_XID: Final = {
    13: "illegal_access",
    31: "illegal_access",
    48: "gpu_ecc",
    63: "gpu_row_remap",
    64: "gpu_row_remap",
    74: "nvlink",
    79: "gpu_lost",
    92: "gpu_ecc",
    94: "gpu_ecc",
    95: "gpu_ecc",
    119: "gsp_timeout",
    120: "gsp_timeout",
}
#: Kind of finding by what CUDA says of an error, as it stands in an exception.
OF_CUDA: Final = {
    "illegal memory access": "illegal_access",
    "misaligned address": "illegal_access",
    "unspecified launch failure": "illegal_access",
    "illegal instruction": "illegal_access",
    "uncorrectable ECC error": "gpu_ecc",
    "uncorrectable NVLink error": "nvlink",
    "GPU is lost": "gpu_lost",
}
#: Words of errors that may follow from an error of a GPU.
_OF_GPUS: Final = ("CUDA", "cuda", "NCCL", "nccl", "cuBLAS", "CUBLAS", "CUDNN", "cuDNN")
#: A crash after an error of a GPU: torch's watchdog ends the process by one of them.
_SIGNALS: Final = frozenset(("SIGABRT", "SIGSEGV", "SIGBUS"))
#: The driver's report comes before the process fails, and is read some time later, ns.
_BEFORE: Final = 600 * 10**9
_AFTER: Final = 60 * 10**9

ADVICE: Final = {
    "illegal_access": "find the kernel: run with CUDA_LAUNCH_BLOCKING=1, or under "
    "compute-sanitizer; if other code fails on that GPU too, it is broken",
    "gpu_ecc": "take the GPU out of service until it was reset, and replace it if that comes "
    "again (nvidia-smi -q -d ECC)",
    "gpu_row_remap": "reset the GPU when the job has ended, so that the spare row is used; "
    "replace it if none is left (nvidia-smi -q -d ROW_REMAPPER)",
    "gpu_lost": "take the node out of service: it needs a reboot, maybe another slot or GPU",
    "nvlink": "look for the link with errors (nvidia-smi nvlink -e), and take the node out of "
    "service if they come again",
    "gsp_timeout": "reboot the node; if that comes again, update the driver",
}


def kind(error: DeviceError) -> str:
    """Return the kind of finding that an error of :func:`causes` is."""
    if error.kind == "gpu_lost":
        return "gpu_lost"
    return "gpu_ecc" if error.kind == "ecc" else _OF_XID[error.xid or 0]


def causes(errors: Sequence[DeviceError]) -> list[DeviceError]:
    """Return the errors that are worth a finding, in their order."""
    return [
        each for each in errors
        if each.kind == "gpu_lost"
        or (each.kind == "ecc" and not each.corrected)
        or (each.kind == "xid" and each.xid in _OF_XID)
    ]  # fmt: skip


def of_exception(text: str) -> str | None:
    """Return the kind of finding of an exception that is CUDA's report of an error, if it is."""
    return next((kind for words, kind in OF_CUDA.items() if words in text), None)


def behind(text: str, signal: str | None, failed_ns: int, errors: Sequence[DeviceError]) -> (
    DeviceError | None
):  # fmt: skip
    """Return the error of its GPUs from which the end of a process follows, if one does.

    Args:
        text: how it ended.
        signal: that ended it; None: none did.
        failed_ns: when it failed, ns UTC of its node.
        errors: of the GPUs that it used.
    """
    if signal not in _SIGNALS and not any(words in text for words in _OF_GPUS):
        return None
    near = [each for each in errors if failed_ns - _BEFORE <= each.time <= failed_ns + _AFTER]
    return min(causes(near), key=lambda each: each.time, default=None)
