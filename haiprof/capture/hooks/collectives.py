"""Hooks on torch.distributed: every collective and every message, whoever asks for it.

The calls themselves are recorded by the core (``src/collectives``), which stands in the tables of
c10d's backends. What it lacks are names: here each process group is named when it is made, and
those that there are already when haiprof comes.
"""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, Final

from haiprof import _core
from haiprof.capture.after_import import AfterImport, imported
from haiprof.capture.hooks.replaced import Replaced

_MODULE: Final = "torch.distributed.distributed_c10d"
#: The kind of the event that says who is in a group.
KIND: Final = "group"


class Collectives:
    """The communication of the job's process groups."""

    name = "collectives"

    def __init__(self, trouble: Callable[[str], None]) -> None:
        """Nothing is touched yet; ``trouble`` is called when groups cannot be named."""
        self._trouble = trouble
        self._waiting: AfterImport | None = None
        self._replaced: Replaced | None = None
        self._watched: list[str] = []
        #: How often a group of that name was made: names return after the last group has gone.
        self._made: Counter[str] = Counter()

    def attach(self) -> str:
        """Watch the backends, now or when torch.distributed is imported; return how."""
        module = imported(_MODULE)
        if module is None:
            self._waiting = AfterImport(_MODULE, self._imported)
            return self.state()
        try:
            self._watch(module)
        except BaseException:
            self.detach()
            raise
        return self.state()

    def _imported(self, module: ModuleType) -> None:
        try:
            self._watch(module)
        except Exception as error:  # an unknown version
            self.detach()
            self._trouble(f"torch.distributed is not seen: {error!r}")

    def _watch(self, module: ModuleType) -> None:
        if not hasattr(module, "_new_process_group_helper"):  # built without it
            return
        self._watched = _core.watch_collectives()
        self._replaced = Replaced(module, "_new_process_group_helper", note=self._note)
        world = module._world
        for group, ranks in list(world.pg_group_ranks.items()):
            self._name(group, sorted(ranks, key=ranks.__getitem__))

    def state(self) -> str:
        """Return which backends are watched."""
        if self._watched:
            return f"on: {', '.join(self._watched)}"
        if self._replaced is not None:
            return "off: no backend of torch.distributed that is known here"
        return "waiting: torch.distributed is not imported"

    def detach(self) -> None:
        """Restore the backends, and wait no longer."""
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None
        if self._replaced is not None:
            self._replaced.restore()
            self._replaced = None
        self._watched = []
        _core.leave_collectives()

    def _note(self, args: tuple[Any, ...], keywords: dict[str, Any], result: Any) -> None:
        group = result[0] if isinstance(result, tuple) else result
        if not hasattr(group, "_get_backend"):  # this rank is not in it
            return
        size = args[0] if args else keywords["group_size"]
        ranks = args[2] if len(args) > 2 else keywords["global_ranks_in_group"]
        # Before torch.cuda is used its backend may be missing; of CPUs alone, NCCL's.
        self._watched = _core.watch_collectives()
        self._name(group, list(ranks) or list(range(size)), keywords.get("group_desc"))

    def _name(self, group: Any, ranks: Sequence[int], description: object = None) -> None:
        import torch

        name = str(group.group_name)
        self._made[name] += 1
        if self._made[name] > 1:
            name = f"{name}#{self._made[name]}"
        backends = {}
        for device in ("cpu", "cuda"):
            with contextlib.suppress(RuntimeError):  # it has none for that
                backend = group._get_backend(torch.device(device))
                backends[str(backend.name())] = backend
        for kind, backend in backends.items():
            # Each counts for itself.
            named = name if len(backends) == 1 else f"{name}/{kind}"
            if not _core.name_group(named, len(ranks), backend._get_sequence_number_for_group):
                continue
            attributes = {"ranks": list(ranks), "backend": kind}
            purpose = description or getattr(group, "group_desc", None)
            if purpose:
                attributes["purpose"] = str(purpose)
            _core.event(KIND, named, json.dumps(attributes))
