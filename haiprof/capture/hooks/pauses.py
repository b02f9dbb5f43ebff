"""Pauses of Python's cyclic garbage collector."""

from __future__ import annotations

import contextlib
import gc

from haiprof import _core


class CollectorPauses:
    """Pauses reported by ``gc.callbacks``; torch is not needed for them."""

    name = "gc"

    def attach(self) -> str:
        """Add ours to the callbacks; return how."""
        gc.callbacks.append(_core.collection)
        _core.watch_collections(True)
        return "on: gc.callbacks"

    def state(self) -> str | None:
        """Return what has changed since attach(), if anything."""
        if any(callback is _core.collection for callback in gc.callbacks):
            return None
        return "off: the job has removed it from gc.callbacks"

    def detach(self) -> None:
        """Remove ours. A reference that somebody has kept, and may restore, does nothing."""
        _core.watch_collections(False)
        with contextlib.suppress(ValueError):
            gc.callbacks.remove(_core.collection)
