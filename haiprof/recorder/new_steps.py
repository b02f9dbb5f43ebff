"""The steps of one process, read from its spans as they are written."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Final

from haiprof import _core

if TYPE_CHECKING:
    import pyarrow as pa

_STEP: Final = _core.CATEGORIES.index("step")
#: Steps that wait for whoever wants them; he comes many times a second.
_MOST: Final = 1 << 16


class NewSteps:
    """Steps that nobody has taken yet."""

    def __init__(self) -> None:
        """There are none."""
        self._steps: deque[tuple[int, int]] = deque(maxlen=_MOST)

    def read(self, spans: pa.RecordBatch) -> None:
        """Keep the steps among spans."""
        import pyarrow.compute as pc

        are_steps = pc.equal(spans.column("category").indices, _STEP)
        columns = (pc.filter(spans.column(name), are_steps) for name in ("start", "duration"))
        self._steps.extend(zip(*map(_numbers, columns), strict=True))

    def take(self) -> list[tuple[int, int]]:
        """Return when each began, ns UTC, and how long it took, ns, in their order."""
        taken = sorted(self._steps)
        self._steps.clear()
        return taken


def _numbers(column: pa.Array) -> list[int]:
    """Return int64 without null, ten times as fast as Arrow does."""
    values = memoryview(column.buffers()[1]).cast("q")
    return values[column.offset : column.offset + len(column)].tolist()
