"""Hook on DistributedDataParallel: the settings and the buckets of each model.

They are read when the buckets have been arranged in the order in which gradients become ready,
between two backward passes, so that nobody holds the reducer.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Mapping
from typing import Any, Final

from haiprof.capture.hooks.facts import record
from haiprof.capture.hooks.passes import Passes
from haiprof.capture.hooks.replaced import Replaced

#: The kind of the event.
KIND: Final = "ddp"

_MODULE: Final = "torch.nn.parallel.distributed"
#: Before which pass after the model was made to look whether its buckets have been rebuilt, as they
#: are after its third. With accumulation, or where other models train too, that takes more passes;
#: after the last of these what there is then is recorded.
_PASSES: Final = (5, 20, 80)
#: How many buckets are listed at most.
_MOST_BUCKETS: Final = 64

_FLAGS: Final = {
    "find_unused_parameters": "find_unused_parameters",
    "gradient_as_bucket_view": "gradient_as_bucket_view",
    "broadcast_buffers": "broadcast_buffers",
    "sync_batch_norm": "has_sync_bn",
}


class ReducerSettings:
    """Each DistributedDataParallel created from now on."""

    name = "ddp"

    def __init__(self, passes: Passes) -> None:
        """``passes`` says when to look; it is left by its owner."""
        self._passes = passes
        self._replaced: Replaced | None = None

    def attach(self) -> str:
        """Watch models being wrapped; return how."""
        if not self._passes.watched:
            raise RuntimeError("backward passes are not seen")
        module = sys.modules.get(_MODULE)
        if module is None:
            return "waiting: this torch has no DistributedDataParallel"
        self._replaced = Replaced(module.DistributedDataParallel, "__init__", note=self._made)
        return "on: DistributedDataParallel"

    def detach(self) -> None:
        """Restore the class."""
        if self._replaced is not None:
            self._replaced.restore()
            self._replaced = None

    def _made(self, args: tuple[Any, ...], keywords: dict[str, Any], result: None) -> None:
        self._wait(weakref.ref(args[0]), 0, _PASSES)

    def _wait(self, model: weakref.ref[Any], passed: int, left: tuple[int, ...]) -> None:
        look = functools.partial(self._look, model, left)
        self._passes.before(left[0] - passed, look)

    def _look(self, reference: weakref.ref[Any], left: tuple[int, ...]) -> None:
        model, (now, *later) = reference(), left
        if model is None or self._replaced is None:
            return
        said = model._get_ddp_logging_data()
        if not said:  # no reducer, as of a model that torch.compile synchronises
            return
        static = bool(getattr(model, "static_graph", False))
        never_rebuilt = bool(said.get("find_unused_parameters")) and not static
        if later and not (said.get("has_rebuilt_buckets") or never_rebuilt):
            self._wait(reference, now, tuple(later))
            return
        facts = _facts(said) | {"static_graph": static}
        record(
            KIND,
            f"gradients of {facts['module']} are reduced in {facts['buckets']} buckets",
            facts,
        )


def _facts(said: Mapping[str, Any]) -> dict[str, Any]:
    rebuilt = bool(said.get("has_rebuilt_buckets"))
    sizes = str(said.get("rebuilt_bucket_sizes" if rebuilt else "bucket_sizes", ""))
    buckets = [int(size) for size in sizes.split(",") if size.strip()]
    return {
        "module": said.get("module_name"),
        "world_size": said.get("world_size"),
        "backend": said.get("backend_name"),
        "parameter_tensors": said.get("num_parameter_tensors"),
        "parameter_bytes": said.get("total_parameter_size_bytes"),
        "dtypes": said.get("dtypes"),
        "bucket_cap_bytes": said.get("bucket_cap_bytes"),
        "rebuilt": rebuilt,
        "buckets": len(buckets) or None,
        "bucket_bytes": buckets[:_MOST_BUCKETS],
        "comm_hook": said.get("comm_hook"),
        **{name: bool(said[key]) if key in said else None for name, key in _FLAGS.items()},
    }
