"""Hook on DistributedDataParallel: how long a backward pass waits for the gradients of other ranks.

Its reducer starts the all-reduces during the backward pass and waits for them in a callback that
the autograd engine runs when its own work is done. A hook on one parameter, which fires before the
last all-reduce is started, puts a callback of ours in front of that one; ours puts another one
behind it. What lies between the two is the phase ``gradient_sync``.
"""

from __future__ import annotations

import contextlib
import sys
import weakref
from collections.abc import Callable
from typing import Any, Final

from haiprof import _core
from haiprof.capture.hooks.replaced import Replaced

#: ``ring::Category::phase``.
_CATEGORY: Final = 2
_MODULE: Final = "torch.nn.parallel.distributed"


class GradientSync:
    """The waiting of each DistributedDataParallel created from now on."""

    name = "gradient_sync"

    def __init__(self) -> None:
        """Nothing is touched yet."""
        self._replaced: Replaced | None = None
        self._hooks: list[Any] = []
        #: The backward pass that was last seen: of several models in one, the first begins.
        self._seen = -1

    def attach(self) -> str:
        """Watch models being wrapped; return how."""
        module = sys.modules.get(_MODULE)
        if module is None:  # a torch without torch.distributed
            return "waiting: this torch has no DistributedDataParallel"
        owner = module.DistributedDataParallel
        self._replaced = Replaced(owner, "__init__", note=self._made)
        return "on: DistributedDataParallel"

    def detach(self) -> None:
        """Restore models and the class."""
        if self._replaced is not None:
            self._replaced.restore()
            self._replaced = None
        while self._hooks:
            self._hooks.pop().remove()

    def _made(self, args: tuple[Any, ...], keywords: dict[str, Any], result: None) -> None:
        model = args[0]
        parameter = next(each for each in model._module_parameters if each.requires_grad)
        watch = self._watch(weakref.ref(model))
        self._hooks.append(parameter.register_post_accumulate_grad_hook(watch))

    def _watch(self, model_reference: weakref.ref[Any]) -> Callable[[Any], None]:
        import torch

        engine = torch.autograd.Variable._execution_engine
        compiling, task_id = torch.compiler.is_compiling, torch._C._current_graph_task_id

        def begin() -> None:
            with contextlib.suppress(Exception):  # the job must not notice
                span = _core.Span("gradient_sync", _CATEGORY, device=True)
                engine.queue_callback(lambda: span.__exit__(None, None, None))
                span.__enter__()

        def accumulated(parameter: Any) -> None:
            if compiling():  # first, so that nothing else here is compiled
                return
            with contextlib.suppress(Exception):
                model = model_reference()
                if model is None or not model.require_backward_grad_sync:
                    return
                task = task_id()
                if task != self._seen:  # with checkpoints a parameter's gradient comes often
                    self._seen = task
                    engine.queue_callback(begin)

        return accumulated
