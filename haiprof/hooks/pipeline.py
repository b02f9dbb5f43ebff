"""Hooks on the schedules of pipelines: what each rank does with each microbatch.

Of torch.distributed.pipelining the stages are asked, of Megatron the functions that its schedules
call, of DeepSpeed the instructions of its engine; each once its module has been imported.
"""

from __future__ import annotations

import contextlib
import functools
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import ModuleType
from typing import Any, Final
from weakref import WeakKeyDictionary

from haiprof import _core
from haiprof.hooks.imports import AfterImport, imported

#: ``ring::Category::pipeline``.
_CATEGORY: Final = 12
_NOTHING: Final = contextlib.nullcontext()

#: Says of a call what the job is called, and its numbers; None where it is no job.
Told = tuple[str, int | None, int | None, int | None]
Tell = Callable[[tuple[Any, ...], dict[str, Any]], "Told | None"]


class PipelineCalls:
    """Jobs of pipelines, each an interval of the host and of the GPU."""

    name = "pipeline"

    def __init__(self, trouble: Callable[[str], None]) -> None:
        """Nothing is touched yet; ``trouble`` is told which schedules cannot be watched."""
        self._trouble = trouble
        self._waiting: list[AfterImport] = []
        self._replaced: list[_Replaced] = []
        self._watched: list[str] = []

    def attach(self) -> str:
        """Watch the schedules that are imported, and wait for the others; return how."""
        for name, watch in _SCHEDULES.items():
            module = imported(name)
            if module is not None:
                self._watch(watch, module)
            else:
                self._waiting.append(AfterImport(name, functools.partial(self._watch, watch)))
        return self.state()

    def _watch(
        self, watch: Callable[[ModuleType, list[_Replaced]], None], module: ModuleType
    ) -> None:
        made: list[_Replaced] = []
        try:
            watch(module, made)
        except Exception as error:  # a version that is another than those we know
            for each in made:
                each.restore()
            self._trouble(f"the schedule of {module.__name__} is not seen: {error!r}")
        else:
            self._replaced += made
            self._watched.append(module.__name__)

    def state(self) -> str:
        """Return which schedules are watched."""
        if self._watched:
            return f"on: {', '.join(self._watched)}"
        return "waiting: no schedule of a pipeline has been imported"

    def detach(self) -> None:
        """Put back what was there, and wait no longer."""
        while self._waiting:
            self._waiting.pop().cancel()
        while self._replaced:
            self._replaced.pop().restore()
        self._watched.clear()


class _Replaced:
    """A function that is a value of a class, a module or a dictionary, with a range around it."""

    def __init__(self, owner: Any, name: Any, tell: Tell) -> None:
        """Replace it.

        Raises:
            LookupError, TypeError: it is not there, or no function.
        """
        self._owner, self._name = owner, name
        original = (owner if isinstance(owner, dict) else vars(owner))[name]
        if not callable(original):
            raise TypeError(f"{name} is a {type(original).__name__}, and no function")
        self._original: Callable[..., Any] = original

        @functools.wraps(original)
        def wrapped(*args: Any, **keywords: Any) -> Any:
            with _range(tell, args, keywords) if self._on else _NOTHING:
                return original(*args, **keywords)

        self._on = True
        self._wrapped = wrapped
        self._put(wrapped)

    def restore(self) -> None:
        """Put the original back. Under somebody else's wrapper ours stays and does nothing."""
        self._on = False
        there = self._owner if isinstance(self._owner, dict) else vars(self._owner)
        if there.get(self._name) is self._wrapped:
            self._put(self._original)

    def _put(self, function: Callable[..., Any]) -> None:
        if isinstance(self._owner, dict):
            self._owner[self._name] = function
        else:
            setattr(self._owner, self._name, function)


def _range(
    tell: Tell, args: tuple[Any, ...], keywords: dict[str, Any]
) -> AbstractContextManager[Any]:
    try:
        told = tell(args, keywords)
        if told is None:
            return _NOTHING
        name, *numbers = told
        given = {
            which: number
            for which, number in zip(("microbatch", "stage", "chunk"), numbers, strict=True)
            if type(number) is int and 0 <= number < 0xFFFFFFFF
        }
        text = ", ".join(f'"{which}": {number}' for which, number in given.items())
        return _core.Span(name, _CATEGORY, f"{{{text}}}", device=True, **given)
    except Exception:  # the job must not notice
        return _NOTHING


def _argument(args: tuple[Any, ...], keywords: dict[str, Any], position: int, name: str) -> Any:
    return args[position] if len(args) > position else keywords.get(name)


# -- torch.distributed.pipelining ------------------------------------------------------------------


def _of_torch(module: ModuleType, made: list[_Replaced]) -> None:
    stage = module._PipelineStageBase
    for method, name, argument in (
        ("forward_one_chunk", "F", "fwd_chunk_id"),
        ("backward_one_chunk", "B", "bwd_chunk_id"),
        ("backward_weight_one_chunk", "W", "bwd_chunk_id"),
    ):

        def tell(
            args: tuple[Any, ...],
            keywords: dict[str, Any],
            name: str = name,
            argument: str = argument,
        ) -> Told:
            return name, _argument(args, keywords, 1, argument), args[0].stage_index, None

        if method != "backward_weight_one_chunk" or method in vars(stage):  # since torch 2.5
            made.append(_Replaced(stage, method, tell))


# -- Megatron --------------------------------------------------------------------------------------


def _of_megatron(module: ModuleType, made: list[_Replaced]) -> None:
    #: Forwards and backwards of each chunk since the schedule began.
    count: Counter[tuple[str, int | None]] = Counter()

    def place(name: str) -> int | None:
        ask = getattr(module.parallel_state, f"get_{name}_model_parallel_rank", None)
        return None if ask is None else ask()

    def forward(args: tuple[Any, ...], keywords: dict[str, Any]) -> Told:
        chunk = keywords.get("vp_stage")
        chunk = place("virtual_pipeline") if chunk is None else chunk
        microbatch = keywords.get("current_microbatch")
        if microbatch == 0 and not chunk:
            count.clear()
        if microbatch is None:  # a version that does not tell
            microbatch = count["F", chunk]
        count["F", chunk] += 1
        return "F", microbatch, place("pipeline"), chunk

    def backward(args: tuple[Any, ...], keywords: dict[str, Any]) -> Told | None:
        # It is told none: of a chunk, they come in the order of the forwards.
        chunk = place("virtual_pipeline")
        if chunk is None and count["F", None] == 0:
            return None  # of which of several chunks is not known, and so not of which microbatch
        count["B", chunk] += 1
        return "B", count["B", chunk] - 1, place("pipeline"), chunk

    made.append(_Replaced(module, "forward_step", forward))
    made.append(_Replaced(module, "backward_step", backward))


# -- DeepSpeed -------------------------------------------------------------------------------------

_INSTRUCTIONS: Final = {
    "ForwardPass": "F",
    "BackwardPass": "B",
    "SendActivation": "send activations",
    "RecvActivation": "recv activations",
    "SendGrad": "send gradients",
    "RecvGrad": "recv gradients",
}


def _of_deepspeed(module: ModuleType, made: list[_Replaced]) -> None:
    #: Of each engine how often it has carried out an instruction: each comes once a microbatch.
    counts: WeakKeyDictionary[Any, Counter[str]] = WeakKeyDictionary()
    instructions = module.PipelineEngine._INSTRUCTION_MAP
    for instruction in list(instructions):
        name = _INSTRUCTIONS.get(getattr(instruction, "__name__", ""))
        if name is None:
            continue

        def tell(args: tuple[Any, ...], keywords: dict[str, Any], name: str = name) -> Told:
            engine = args[0]
            count = counts.setdefault(engine, Counter())
            number = count[name] % engine.micro_batches
            count[name] += 1
            return name, number, engine.stage_id, None

        made.append(_Replaced(instructions, instruction, tell))


_SCHEDULES: Final[dict[str, Callable[[ModuleType, list[_Replaced]], None]]] = {
    "torch.distributed.pipelining.stage": _of_torch,
    "megatron.core.pipeline_parallel.schedules": _of_megatron,
    "deepspeed.runtime.pipe.engine": _of_deepspeed,
}
