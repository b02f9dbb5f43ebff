"""Counts floating-point operations by torch's own formulas, for one step of a running job.

Without the hooks on modules that torch's counter brings along: torch.compile would see them.

Tests: tests/capture/flops/test_counted_step.py.
"""

from __future__ import annotations

import contextlib
import sys
from collections import defaultdict
from types import FrameType
from typing import Any, Final

import torch
from torch.utils import _python_dispatch
from torch.utils.flop_counter import FlopCounterMode

from haiprof.capture.trace.boundaries import in_backward

#: Frames of the counter itself, between an operator and who called it.
_OWN_FILES: Final = (
    "flops/counter.py",
    "utils/_python_dispatch.py",
    "utils/_stats.py",
    "torch/_compile.py",
    "_dynamo/eval_frame.py",
)
#: Where calls of functions with a backward of their own go through, and those of modules.
_FUNCTIONS: Final = "torch/autograd/function.py"
_MODULES: Final = "torch/nn/modules/module.py"
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


class StepFlops(_python_dispatch.TorchDispatchMode):  # type: ignore[misc]  # it is in no stub
    """Counts what is computed between ``enter`` and ``leave`` on one thread and for its backward.

    ``flops`` is of the training: forward and backward pass. ``recomputed`` is the part of it that a
    forward pass within the backward pass is (activation checkpointing), ``by_dtype`` what the
    operands were. ``evaluated`` is not in it: what ran without gradients. ``uncounted`` names
    operators that look as if they computed much and that torch has no formula for; ``failures``
    counts our own.

    The formulas are those of torch's FlopCounterMode, which is never entered: it takes operators
    apart, refuses those of nested tensors and the higher-order ones, and computes both branches of
    a ``torch.cond``. Here each runs as the job called it.
    """

    supports_higher_order_operators = True

    def __init__(self) -> None:
        """Nothing is entered yet."""
        super().__init__()
        self._formulas = FlopCounterMode(display=False)
        # It would attribute to modules.
        self._formulas.mod_tracker = _NoModules()
        self.flops = 0
        self.evaluated = 0
        self.recomputed = 0
        self.by_dtype: dict[str, int] = defaultdict(int)
        self.uncounted: set[str] = set()
        self.failures = 0

    @classmethod
    def is_infra_mode(cls) -> bool:
        """Let torch.compile go on compiling what it meets."""
        return True

    def enter(self) -> None:
        """Count from now on, on this thread."""
        self.__enter__()

    def leave(self) -> bool:
        """Stop counting; False where this thread's state is another's to restore.

        So it is where another mode is over this one, in a backward pass and in inference mode.
        """
        if (
            in_backward()
            or torch.is_inference_mode_enabled()
            or _python_dispatch._get_current_dispatch_mode_stack()[-1:] != [self]
        ):
            return False
        self.__exit__(None, None, None)
        return True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator as it is, and count it."""
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        try:
            # A higher-order operator has no overloads.
            self._count(getattr(func, "_overloadpacket", func), out, args, kwargs)
        except Exception:  # the job's result is there all the same
            self.failures += 1
        return out

    def _count(self, packet: Any, out: Any, args: Any, kwargs: Any) -> None:
        if packet in self._formulas.flop_registry:
            before = self._formulas.get_total_flops()
            self._formulas._count_flops(packet, out, args, kwargs)
            flops = self._formulas.get_total_flops() - before
            if _is_evaluated():
                self.evaluated += flops
            else:
                self._sort_in(packet, flops, args)
        elif _looks_costly(packet) and not _is_evaluated():
            self.uncounted.add(str(packet))

    def _sort_in(self, packet: Any, flops: int, args: Any) -> None:
        self.flops += flops
        if _is_recomputed():
            self.recomputed += flops
        operand = next((each for each in args if isinstance(each, torch.Tensor)), None)
        if operand is not None:
            self.by_dtype[_dtype(operand, "conv" in str(packet))] += flops


def _looks_costly(packet: Any) -> bool:
    name = str(packet)
    return "attention" in name or not name.startswith(("aten", "prim", "profiler", "c10d", "_c10d"))


def _is_evaluated() -> bool:
    """Whether an operator belongs to no training: without gradients, and not in a backward pass.

    An ``autograd.Function`` runs its forward without gradients, too, and with it all that reentrant
    checkpointing does. What is in one is evaluated if the outermost module that is called is.
    """
    if torch.is_grad_enabled() or in_backward():
        return False
    in_function = False
    outermost: Any = None
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        name, file = frame.f_code.co_name, frame.f_code.co_filename
        if name == "apply" and file.endswith(_FUNCTIONS):
            in_function = True
        elif name == "_call_impl" and file.endswith(_MODULES):
            outermost = frame
        frame = frame.f_back
    if not in_function:
        return True
    return outermost is not None and not outermost.f_locals["self"].training


def _is_recomputed() -> bool:
    """Whether an operator is part of a forward pass that the backward pass repeats.

    Operators of backward formulas run without gradients, or (``create_graph``) without Python
    between the engine and them.
    """
    if torch._C._current_graph_task_id() == -1 or not torch.is_grad_enabled():
        return False
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.endswith(_OWN_FILES):
        frame = frame.f_back
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
    """Return why this thread cannot count now; empty if it can. May change at the next step."""
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
