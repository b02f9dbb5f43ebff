"""What each activity of a device is for, by its kind and name.

Tests: tests/views/trace/linking/test_roles.py.
"""

from __future__ import annotations

from collections.abc import Sequence

import polars as pl

from haiprof.views.trace.linking import roles
from haiprof.views.trace.linking.names import texts
from haiprof.views.trace.linking.tensor_cores import on_tensor_cores


def kernel_roles(
    kernels: pl.DataFrame, rules: Sequence[roles.Rule | tuple[str, str | None]] = roles.KERNELS
) -> tuple[pl.Series, pl.Series]:
    """Return ``role`` and ``tensor_core`` of each activity, as :class:`Linked` has them.

    Args:
        kernels: with ``kind`` and ``name``, both Categorical.
        rules: which kernels communicate.
    """
    kind, name = kernels["kind"], kernels["name"]
    known = texts(name).cast(pl.String).to_list()
    communicating, computing = roles.communication(known, rules), on_tensor_cores(known)
    is_kernel = (kind == "kernel").fill_null(False)
    role, tensor_core = kind, pl.repeat(False, len(kind), eager=True)
    if communicating:
        communicates = is_kernel & pl.Series(roles.by_name(name, communicating))
        role = kernels.select(
            pl.when(communicates).then(pl.lit("communication", kind.dtype)).otherwise("kind")
        ).to_series()
    if computing:
        tensor_core = is_kernel & pl.Series(roles.by_name(name, computing))
    return role.alias("role"), tensor_core.alias("tensor_core")
