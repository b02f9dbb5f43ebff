"""``haiprof.trace()``: a deep trace that the job asks for itself.

Tests: tests/capture/trace/test_trace.py.
"""

from __future__ import annotations

from haiprof.capture import session
from haiprof.capture.trace import DeepTrace, begin_here
from haiprof.capture.trace.plan import Plan, plan_for_call
from haiprof.capture.trace.recording import Recording
from haiprof.common.launcher import placement

__all__ = ["DeepTrace", "trace"]


def trace(
    steps: int | None = None,
    *,
    seconds: float | None = None,
    warmup: float = 0.0,
    mib: int | None = None,
    shapes: bool | None = None,
    stacks: bool | None = None,
    memory: bool | None = None,
    modules: bool | None = None,
    callstacks: bool | None = None,
) -> DeepTrace:
    """Make a deep trace of this process with torch.profiler, as one file in the run's folder.

    It covers the thread that calls this and the backward passes that it starts. Called alone it
    runs until its length is reached; a ``with`` block ends it at the latest. While one is being
    made a second call returns a handle for the same one. While the job's own torch.profiler
    records, there is none, nor in ranks that the option ``trace_ranks`` leaves out.

    Args:
        steps: how long, in cycles of the first optimizer (or calls of :func:`haiprof.step`). The
            file has one more, for tools that leave out the last. Default 3 unless ``seconds``.
        seconds: how long at most, in time.
        warmup: whole steps to skip first; seconds where only ``seconds`` is given.
        mib: memory that the events may take while they are recorded, MiB; the trace ends early
            if they would take more. Default 128, about half a million events.
        shapes: with the dimensions of each operator's inputs; default true, as for the next.
        stacks: with the calls of Python functions and of ``nn.Module``.
        memory: with each allocation.
        modules: with the modules that operators of TorchScript belong to.
        callstacks: with the call stack of each operator as text, for tools that do not read the
            calls; default false, because it doubles the file.

    Returns:
        A handle. Its ``state`` is "off" and ``why`` says the reason when there can be none.
    """
    contents = {
        "shapes": shapes,
        "stacks": stacks,
        "memory": memory,
        "modules": modules,
        "callstacks": callstacks,
    }
    try:
        active = session.active() or session.start()
        rank = placement().rank
        if not active.options.traces_rank(rank):
            declined = Recording(Plan())
            declined.decline(f"no deep trace: rank {rank} is not in trace_ranks")
            return DeepTrace(declined, began_here=False)
        plan = plan_for_call(
            active.options,
            steps=steps,
            seconds=seconds,
            warmup=warmup,
            mib=mib,
            chosen_contents=contents,
        )
        return begin_here(plan)
    except Exception as error:
        refused = Recording(Plan())
        refused.refuse(f"no deep trace: {error!r}")
        return DeepTrace(refused, began_here=False)
