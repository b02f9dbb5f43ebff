"""Hook on the replays of CUDA graphs: each is timed on the GPU, as a whole.

torch replays all its graphs through ``torch.cuda.CUDAGraph.replay``: those of
``make_graphed_callables`` and of torch.compile, too.
"""

from __future__ import annotations

import itertools
import weakref
from typing import Any, Final

from haiprof import _core
from haiprof.capture.hooks.replaced import Replaced

#: The numbers of graphs that are alive, in the order of their first replays in this process.
_numbers: Final[weakref.WeakKeyDictionary[Any, int]] = weakref.WeakKeyDictionary()
_next: Final = itertools.count()


class GraphReplays:
    """``torch.cuda.CUDAGraph.replay``, replaced by a function that times each call."""

    def __init__(self, graph_class: type) -> None:
        """Replace it.

        Raises:
            LookupError, TypeError: this torch has no such function.
        """
        self._replaced = Replaced(graph_class, "replay", around=_timed)

    def restore(self) -> None:
        """Restore the original."""
        self._replaced.restore()


def _timed(args: tuple[Any, ...], keywords: dict[str, Any]) -> _core.Replay:
    return _core.Replay(_number(args[0]))


def _number(graph: Any) -> int:
    number = _numbers.get(graph)
    # Two threads may both find none: then one number is never used.
    return _numbers.setdefault(graph, next(_next)) if number is None else number
