"""torch's own counter of floating-point operations, for one step of a running job.

Without the hooks on modules that it otherwise brings along: torch.compile would see them.
"""

from __future__ import annotations

import contextlib
import sys
from collections import defaultdict
from typing import Any, Final

import torch
from torch.utils import _python_dispatch
from torch.utils.flop_counter import FlopCounterMode

from haiprof.deep.boundaries import in_backward

#: Frames of the counter itself, between an operator and who called it.
_OWN_FILES: Final = (
    "flops/counter.py",
    "utils/flop_counter.py",
    "utils/_python_dispatch.py",
    "utils/_stats.py",
    "torch/_compile.py",
    "_dynamo/eval_frame.py",
)
#: A GPU of this compute capability or later multiplies fp32 as tf32 where torch allows it.
_TF32_SINCE: Final = (8, 0)
_NAMES: Final = {
    torch.float64: "fp64",
    torch.float32: "fp32",
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
}


class _NoModules:
    parents: Final = ("Global",)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *arguments: object) -> None:
        pass


class StepFlops(FlopCounterMode):  # type: ignore[misc]  # it is in no stub
    """Counts what is computed between ``enter`` and ``leave`` on one thread and for its backward.

    ``recomputed`` is the part of it that a forward pass within the backward pass is (activation
    checkpointing), ``by_dtype`` what the operands were. ``uncounted`` names operators that look as
    if they computed much and that torch has no formula for; ``failures`` counts our own.
    """

    def __init__(self) -> None:
        """Nothing is entered yet."""
        super().__init__(display=False)
        # FlopCounterMode would attribute to modules.
        self.mod_tracker: Any = _NoModules()
        self.recomputed = 0
        self.by_dtype: dict[str, int] = defaultdict(int)
        self.uncounted: set[str] = set()
        self.failures = 0

    def enter(self) -> None:
        """Count from now on, on this thread."""
        self.__enter__()

    def leave(self) -> bool:
        """Count no longer; False where another mode is still over this one, or in a backward."""
        if in_backward() or _python_dispatch._get_current_dispatch_mode_stack()[-1:] != [self.mode]:
            return False
        self.__exit__(None, None, None)
        return True

    def _count_flops(self, func_packet: Any, out: Any, args: Any, kwargs: Any) -> Any:
        try:
            if func_packet in self.flop_registry:
                before = self.get_total_flops()
                super()._count_flops(func_packet, out, args, kwargs)
                self._sort_in(func_packet, self.get_total_flops() - before, args)
            elif _looks_costly(func_packet):
                self.uncounted.add(str(func_packet))
        except Exception:  # the job's result is there all the same
            self.failures += 1
        return out

    def _sort_in(self, packet: Any, flops: int, args: Any) -> None:
        if _is_recomputed():
            self.recomputed += flops
        operand = next((each for each in args if isinstance(each, torch.Tensor)), None)
        if operand is not None:
            self.by_dtype[_dtype(operand, "conv" in str(packet))] += flops


def _looks_costly(packet: Any) -> bool:
    name = str(packet)
    return "attention" in name or not name.startswith(("aten", "prim", "profiler", "c10d", "_c10d"))


def _is_recomputed() -> bool:
    """Whether an operator is part of a forward pass that the backward pass repeats.

    Operators of backward formulas run without gradients, or (``create_graph``) without Python
    between the engine and them.
    """
    if torch._C._current_graph_task_id() == -1 or not torch.is_grad_enabled():
        return False
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.endswith(_OWN_FILES):
        frame = frame.f_back  # type: ignore[assignment]
    return frame is not None and frame.f_code.co_name != "_engine_run_backward"


def _dtype(operand: torch.Tensor, convolution: bool) -> str:
    name = _NAMES.get(operand.dtype) or str(operand.dtype).removeprefix("torch.")
    if name.startswith("float8"):
        return "fp8"
    if name == "fp32" and operand.is_cuda:
        with contextlib.suppress(Exception):
            if convolution:
                allowed = torch.backends.cudnn.allow_tf32
            else:
                allowed = torch.get_float32_matmul_precision() != "highest"
            if allowed and torch.cuda.get_device_capability(operand.device) >= _TF32_SINCE:
                return "tf32"
    return name


def in_the_way() -> str:
    """Return why this thread cannot count now; empty if it can. May be another at the next step."""
    if in_backward():
        return "the optimizer steps within the backward pass"
    if _python_dispatch._get_current_dispatch_mode_stack():
        return "another TorchDispatchMode is in use"
    if torch.is_inference_mode_enabled():
        return "inference mode is on"
    if torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing():
        return "a CUDA graph is being captured"
    return ""


def compiled() -> bool:
    """Whether torch.compile is used: its kernels are not counted, and it skips what it sees here.

    A function that is first called under a dispatch mode would stay uncompiled for good.
    """
    frames = sys.modules.get("torch._dynamo.eval_frame")
    backends = getattr(frames, "cached_backends", None) or {}
    return any(backend is not None for backend in backends.values())
