"""The figures of torch's CUDA allocator, recorded after steps."""

from __future__ import annotations

from haiprof import _core


class AllocatorFigures:
    """The numbers of ``torch.cuda.memory_stats()``, and each out-of-memory event."""

    name = "allocator"

    def attach(self) -> str:
        """Make the core query torch after steps; return how. Does not initialise CUDA."""
        import torch

        _core.watch_allocator(torch._C, torch.cuda)
        return _core.allocator_state()

    def state(self) -> str:
        """Return whether CUDA is in use, or why nothing is recorded any more."""
        return _core.allocator_state()

    def detach(self) -> None:
        """Query once more, then stop."""
        _core.leave_allocator()
