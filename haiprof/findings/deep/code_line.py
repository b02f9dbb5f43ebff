"""The place in the user's code that a span was called from: the line, and the module.

Tests: tests/findings/deep/test_rules.py.
"""

from __future__ import annotations

import re

import numpy as np
import polars as pl

from haiprof.views.trace.linking.linked import CALLS, Linked

#: A Python frame as torch.profiler writes it: ``train.py(45): main``.
_FRAME = re.compile(r"\.py\(\d+\)")
#: Frames of libraries, which the user did not write.
_LIBRARY = re.compile(
    r"(^|/)(torch|torchvision|torchaudio|site-packages|dist-packages|lib/python[\d.]+|"
    r"importlib|threading\.py|contextlib\.py|runpy\.py)(/|\(|$)|^<"
)


def line(linked: Linked, row: int) -> str | None:
    """Return the innermost frame of the user's code around a span; None if none is known.

    Taken from the stack recorded with the op, else from the Python functions of its thread; if all
    frames are a library's, the innermost of those.

    Args:
        linked: the trace.
        row: of ``linked.ops``.
    """
    frames = _recorded(linked, row) or _running(linked, row)
    own = [frame for frame in frames if not _LIBRARY.search(frame)]
    return own[0] if own else frames[0] if frames else None


def module(linked: Linked, row: int) -> str | None:
    """Return the name of the innermost ``nn.Module`` around a span; None if none is known."""
    frames = _frames(linked, row)
    called = frames.filter(pl.col("module").is_not_null())["name"].cast(pl.String)
    return str(called[0]).removeprefix("nn.Module: ") if len(called) else None


def _recorded(linked: Linked, row: int) -> list[str]:
    """Frames of the nearest span that was recorded with a stack, innermost first."""
    stacks = linked.ops["stack"]
    while row >= 0:
        if stacks[row]:
            return [f.strip() for f in str(stacks[row]).split(";") if _FRAME.search(f)]
        row = int(linked.parent[row])
    return []


def _running(linked: Linked, row: int) -> list[str]:
    """Python functions of the thread that ran when a span began, innermost first."""
    names = _frames(linked, row)["name"].cast(pl.String).to_list()
    return [name for name in names if name and _FRAME.search(name)]


def _frames(linked: Linked, row: int) -> pl.DataFrame:
    """Rows of the Python functions of its thread that ran when a span began, innermost first."""
    threads, instant = linked.ops["thread"].to_numpy(), linked.start[row]
    first = int(np.searchsorted(threads, threads[row]))
    last = int(np.searchsorted(threads, threads[row], side="right"))
    last = first + int(np.searchsorted(linked.start[first:last], instant, side="right"))
    python = linked.category[first:last] == len(CALLS)
    rows = first + np.flatnonzero(python & (linked.end[first:last] > instant))[::-1]
    return linked.ops.select("name", "module")[rows]
