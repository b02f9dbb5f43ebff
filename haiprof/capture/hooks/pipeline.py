"""Hooks on the schedules of pipelines: what each rank does with each microbatch.

Of torch.distributed.pipelining the stages are asked and what moves between them, of Megatron the
functions that its schedules call, of DeepSpeed the instructions of its engine; each once its module
has been imported. A send or a receive is the time in which it blocks the rank.
"""

from __future__ import annotations

import contextlib
import functools
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from types import ModuleType
from typing import Any, Final
from weakref import WeakKeyDictionary

from haiprof import _core
from haiprof.capture.after_import import AfterImport, imported
from haiprof.capture.hooks.replaced import Around, Replaced

#: ``ring::Category::pipeline``.
_CATEGORY: Final = 12

#: A job: its name, microbatch, stage and chunk.
Job = tuple[str, int | None, int | None, int | None]
#: Returns the jobs of a call: none, one, or several that are done together.
JobsOf = Callable[[tuple[Any, ...], dict[str, Any]], Iterable[Job]]


class PipelineCalls:
    """Jobs of pipelines, each an interval of the host and of the GPU."""

    name = "pipeline"

    def __init__(self, trouble: Callable[[str], None]) -> None:
        """Nothing is touched yet; ``trouble`` is called per schedule that cannot be watched."""
        self._trouble = trouble
        self._waiting: list[AfterImport] = []
        self._replaced: list[Replaced] = []
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
        self, watch: Callable[[ModuleType, list[Replaced]], None], module: ModuleType
    ) -> None:
        replaced: list[Replaced] = []
        try:
            watch(module, replaced)
        except Exception as error:  # an unknown version
            for each in replaced:
                each.restore()
            self._trouble(f"the schedule of {module.__name__} is not seen: {error!r}")
        else:
            self._replaced += replaced
            self._watched.append(module.__name__)

    def state(self) -> str:
        """Return which schedules are watched."""
        if self._watched:
            return f"on: {', '.join(self._watched)}"
        return "waiting: no schedule of a pipeline has been imported"

    def detach(self) -> None:
        """Restore the originals, and wait no longer."""
        while self._waiting:
            self._waiting.pop().cancel()
        while self._replaced:
            self._replaced.pop().restore()
        self._watched.clear()


def _jobs(jobs_of: JobsOf) -> Around:
    def around(args: tuple[Any, ...], keywords: dict[str, Any]) -> AbstractContextManager[Any]:
        spans = [_span(*job) for job in jobs_of(args, keywords)]
        if len(spans) < 2:
            return spans[0] if spans else contextlib.nullcontext()
        together = contextlib.ExitStack()
        for span in spans:
            together.enter_context(span)
        return together

    return around


def _span(name: str, *numbers: int | None) -> _core.Span:
    given = {
        which: number
        for which, number in zip(("microbatch", "stage", "chunk"), numbers, strict=True)
        if type(number) is int and 0 <= number < 0xFFFFFFFF
    }
    text = ", ".join(f'"{which}": {number}' for which, number in given.items())
    return _core.Span(name, _CATEGORY, f"{{{text}}}", device=True, **given)


def _argument(args: tuple[Any, ...], keywords: dict[str, Any], position: int, name: str) -> Any:
    return args[position] if len(args) > position else keywords.get(name)


_SEND, _RECV = "send activations", "recv activations"
_SEND_BACK, _RECV_BACK = "send gradients", "recv gradients"

# -- torch.distributed.pipelining ------------------------------------------------------------------


def _of_torch(module: ModuleType, replaced: list[Replaced]) -> None:
    stage = module._PipelineStageBase
    for method, name, argument in (
        ("forward_one_chunk", "F", "fwd_chunk_id"),
        ("backward_one_chunk", "B", "bwd_chunk_id"),
        ("backward_weight_one_chunk", "W", "bwd_chunk_id"),
    ):

        def jobs_of(
            args: tuple[Any, ...],
            keywords: dict[str, Any],
            name: str = name,
            argument: str = argument,
        ) -> list[Job]:
            return [(name, _argument(args, keywords, 1, argument), args[0].stage_index, None)]

        if method != "backward_weight_one_chunk" or method in vars(stage):  # since torch 2.5
            replaced.append(Replaced(stage, method, _jobs(jobs_of)))
    if "_batch_p2p" in vars(module) and "_wait_batch_p2p" in vars(module):
        _between_stages(module, stage, replaced)


def _between_stages(module: ModuleType, stage: type, replaced: list[Replaced]) -> None:
    """A stage creates the operations of a microbatch; a schedule starts some and waits for them."""
    operations: WeakKeyDictionary[Any, Job] = WeakKeyDictionary()
    #: By the list of what is to be waited for.
    started: dict[int, list[Job]] = {}
    for method, name, argument in (
        ("get_fwd_recv_ops", _RECV, "fwd_chunk_id"),
        ("get_fwd_send_ops", _SEND, "fwd_chunk_id"),
        ("get_bwd_recv_ops", _RECV_BACK, "bwd_chunk_id"),
        ("get_bwd_send_ops", _SEND_BACK, "bwd_chunk_id"),
    ):

        def remember(
            args: tuple[Any, ...],
            keywords: dict[str, Any],
            found: list[Any],
            name: str = name,
            argument: str = argument,
        ) -> None:
            microbatch = _argument(args, keywords, 1, argument)
            for operation in found:
                operations[operation] = name, microbatch, args[0].stage_index, None

        replaced.append(Replaced(stage, method, note=remember))

    def start(args: tuple[Any, ...], keywords: dict[str, Any], works: list[Any]) -> None:
        jobs = [operations.get(each) for each in _argument(args, keywords, 0, "p2p_ops")]
        if works:
            # Several tensors of a microbatch are one job.
            started[id(works)] = list(dict.fromkeys(each for each in jobs if each is not None))

    def wait(args: tuple[Any, ...], keywords: dict[str, Any]) -> list[Job]:
        return started.pop(id(_argument(args, keywords, 0, "work")), [])

    replaced.append(Replaced(module, "_batch_p2p", note=start))
    replaced.append(Replaced(module, "_wait_batch_p2p", _jobs(wait)))


# -- Megatron --------------------------------------------------------------------------------------


def _of_megatron(module: ModuleType, replaced: list[Replaced]) -> None:
    #: Forwards and backwards since the schedule began.
    count: Counter[str] = Counter()
    #: By what a forward or a backward returned, since then: its microbatch and chunk.
    returned: dict[int, tuple[int | None, int | None]] = {}

    def place(name: str) -> int | None:
        ask = getattr(module.parallel_state, f"get_{name}_model_parallel_rank", None)
        try:
            return None if ask is None else ask()
        except Exception:  # a job that keeps its process groups elsewhere
            return None

    def begin(args: tuple[Any, ...], keywords: dict[str, Any]) -> list[Job]:
        count.clear()
        returned.clear()
        return []

    def numbers(keywords: dict[str, Any]) -> tuple[int | None, int | None]:
        chunk = keywords.get("vp_stage")
        chunk = place("virtual_pipeline") if chunk is None else chunk
        return keywords.get("current_microbatch"), chunk

    def forward(args: tuple[Any, ...], keywords: dict[str, Any]) -> list[Job]:
        count["F"] += 1
        microbatch, chunk = numbers(keywords)
        return [("F", microbatch, place("pipeline"), chunk)]

    def after_forward(args: tuple[Any, ...], keywords: dict[str, Any], result: Any) -> None:
        for tensor in _each(result[0] if isinstance(result, tuple) else result):
            returned[id(tensor)] = numbers(keywords)

    def microbatch_of(tensors: Any) -> tuple[int | None, int | None]:
        known = (returned[id(each)] for each in _each(tensors) if id(each) in returned)
        return next(known, (None, None))

    def backward(args: tuple[Any, ...], keywords: dict[str, Any]) -> list[Job]:
        count["B"] += 1
        # It gets no number, but what the forward of its microbatch returned.
        microbatch, chunk = microbatch_of(_argument(args, keywords, 1, "output_tensor"))
        return [("B", microbatch, place("pipeline"), chunk)]

    def after_backward(args: tuple[Any, ...], keywords: dict[str, Any], result: Any) -> None:
        which = microbatch_of(_argument(args, keywords, 1, "output_tensor"))
        for tensor in _each(result):
            returned[id(tensor)] = which

    def communicate(args: tuple[Any, ...], keywords: dict[str, Any]) -> list[Job]:
        jobs: list[Job] = []
        for name, argument in ((_SEND, "tensor_send_next"), (_SEND_BACK, "tensor_send_prev")):
            tensor = keywords.get(argument)
            if tensor is not None:
                microbatch, chunk = microbatch_of(tensor)
                jobs.append((name, microbatch, place("pipeline"), chunk))
        # Of several chunks, it is known later only for which a tensor is.
        one = getattr(args[0], "virtual_pipeline_model_parallel_size", None) is None
        for name, argument, done in ((_RECV, "recv_prev", "F"), (_RECV_BACK, "recv_next", "B")):
            if keywords.get(argument):
                jobs.append((name, count[done] if one else None, place("pipeline"), None))
        return jobs

    replaced.append(Replaced(module, "forward_step", _jobs(forward), after_forward))
    replaced.append(Replaced(module, "backward_step", _jobs(backward), after_backward))
    for name in [each for each in vars(module) if each.startswith("forward_backward_")]:
        replaced.append(Replaced(module, name, _jobs(begin)))
    communicator = vars(module).get("P2PCommunicator")  # since Megatron Core 0.14
    if communicator is not None:
        replaced.append(Replaced(communicator, "_communicate", _jobs(communicate)))


def _each(tensors: Any) -> list[Any]:
    several = tensors if isinstance(tensors, list) else [tensors]
    return [each for each in several if each is not None]


# -- DeepSpeed -------------------------------------------------------------------------------------

_INSTRUCTIONS: Final = {
    "ForwardPass": "F",
    "BackwardPass": "B",
    "SendActivation": _SEND,
    "RecvActivation": _RECV,
    "SendGrad": _SEND_BACK,
    "RecvGrad": _RECV_BACK,
}


def _of_deepspeed(module: ModuleType, replaced: list[Replaced]) -> None:
    #: Of each engine how often its schedule had an instruction: each comes once a microbatch.
    counts: WeakKeyDictionary[Any, Counter[str]] = WeakKeyDictionary()

    def begin(args: tuple[Any, ...], keywords: dict[str, Any]) -> list[Job]:
        counts[args[0]] = Counter()
        return []

    replaced.append(Replaced(module.PipelineEngine, "_exec_schedule", _jobs(begin)))
    instructions = module.PipelineEngine._INSTRUCTION_MAP
    for instruction in list(instructions):
        name = _INSTRUCTIONS.get(getattr(instruction, "__name__", ""))
        if name is None:
            continue

        def jobs_of(args: tuple[Any, ...], keywords: dict[str, Any], name: str = name) -> list[Job]:
            engine = args[0]
            count = counts.setdefault(engine, Counter())
            count[name] += 1
            return [(name, count[name] - 1, engine.stage_id, None)]

        replaced.append(Replaced(instructions, instruction, _jobs(jobs_of)))


_SCHEDULES: Final[dict[str, Callable[[ModuleType, list[Replaced]], None]]] = {
    "torch.distributed.pipelining.schedules": _of_torch,
    "megatron.core.pipeline_parallel.schedules": _of_megatron,
    "deepspeed.runtime.pipe.engine": _of_deepspeed,
}
