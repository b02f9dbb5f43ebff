"""Why traces lack something, by the tool that wrote them, with the fix.

A tool whose import gives its own reasons (``Imported.lacks``) is not here. Keys are those of
:mod:`haiprof.views.trace.requirements`.

Tests: tests/sources/nsys/test_find.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from haiprof.sources.found import KINETO

#: Stands for the tool of what haiprof recorded without a deep trace.
RECORDED: Final = ""

_GPU: Final = "nothing ran on a GPU, or it was recorded without ProfilerActivity.CUDA"
_DEEP: Final = "haiprof records it in deep traces only: haiprof trace"

_REASONS: Final[Mapping[str, Mapping[str, str]]] = {
    KINETO: {
        "kernels": _GPU,
        "kernels.blocks_per_sm": "the profiler of this GPU or version does not record it",
        "kernels.occupancy": "the profiler of this GPU or version does not record it",
        "kernels.bytes": "the profiler of this version does not record it",
        "spans[runtime]": _GPU,
        "spans[op]": "recorded without ProfilerActivity.CPU",
        "spans[step]": "no steps are marked: call step() of the profiler after each",
        "spans[python]": "recorded without with_stack=True",
        "spans[counters]": "recorded without CUPTI's counters: give torch.profiler.profile "
        "experimental_config=_ExperimentalConfig(profiler_metrics=[...])",
        "spans.shapes": "recorded without record_shapes=True",
        "spans.types": "recorded without record_shapes=True",
        "spans.inputs": "recorded before torch 2.1, or without record_shapes=True",
        "spans.stack": "recorded without with_stack=True, or by a torch that writes Python's "
        "functions instead",
        "spans.module": "recorded without with_stack=True, or nothing called an nn.Module",
        "allocations": "recorded without profile_memory=True",
        "collectives.bytes": "recorded without record_shapes=True, or before torch 2.1",
        "collectives.group": "recorded before torch 2.1, which does not record it",
    },
    RECORDED: {
        "kernels": "no kernels were recorded: haiprof doctor says why",
        **dict.fromkeys(("spans[op]", "spans[runtime]", "spans[python]", "spans[counters]"), _DEEP),
        **dict.fromkeys(("spans.shapes", "spans.stack", "spans.module", "allocations"), _DEEP),
        **dict.fromkeys(("kernels.blocks_per_sm", "kernels.occupancy", "collectives"), _DEEP),
    },
}
#: For every tool.
_OTHERWISE: Final = {"communication": "nothing communicated while it was recorded"}


def why(tool: str, lacks: Mapping[str, str], key: str) -> str:
    """Return why a trace lacks ``key``.

    Args:
        tool: the one that wrote it, or :data:`RECORDED`.
        lacks: the import's own reasons, by the same keys; that of a table covers its columns.
        key: what is missing.
    """
    table = key.partition("[")[0].partition(".")[0]
    known = _REASONS.get(tool, {})
    found = (lacks.get(key), known.get(key), lacks.get(table), known.get(table))
    return next((reason for reason in found if reason), _OTHERWISE.get(key, "the trace has none"))
