"""The host's activity in a span, by the span's name: load data, communicate, step the optimizer.

Tests: tests/views/trace/linking/test_roles.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import polars as pl

from haiprof.views.trace.linking import roles
from haiprof.views.trace.linking.names import numbered, one_of

#: torch's names for the ranges in which the job waits for its next batch.
LOADING = re.compile(r"enumerate\(DataLoader\)#.*\.__next__$|enumerate\(DataPipe\)#")
#: torch's names for the ranges of optimizers.
OPTIMIZING = re.compile(r"Optimizer\.")
#: Ranges around a whole model.
WRAPPERS = frozenset({"DataParallel.forward", "DistributedDataParallel.forward"})

Mask = npt.NDArray[np.bool_]


class HostRoles(NamedTuple):
    """For each span of ``Linked.ops``."""

    #: It waits for data.
    loads: Mask
    #: It is a collective, as the backend reports it.
    communicates: Mask
    #: It does anything else, operators included.
    works: Mask
    #: It is an operator, not a wrapper around the model, an optimizer or a data loader.
    operator: Mask
    #: Its time and its launches are not its caller's own: all of these, and optimizers.
    node: Mask


def host_roles(
    names: pl.Series,
    categories: pl.Series,
    ops: Mask,
    ranges: Mask,
    rules: Sequence[roles.Rule | tuple[str, str | None]] = roles.BACKENDS,
) -> HostRoles:
    """Say what each span is for.

    Args:
        names: of the spans, Categorical.
        categories: of the spans, Categorical.
        ops: which of them are ops.
        ranges: which of them are user ranges.
        rules: which names are a collective of the host.
    """
    number, texts = numbered(names)
    known = texts.cast(pl.String).to_list()
    communicating = roles.communication((name for name in known if name is not None), rules)
    able = ops | ranges

    def those(does: Callable[[str], object]) -> Mask:
        table = np.array([name is not None and bool(does(name)) for name in known], np.bool_)
        mask: Mask = table[number] & able if table.any() else np.zeros(len(able), np.bool_)
        return mask

    loads = those(LOADING.match) | one_of(categories, ("dataloader",))
    communicates = those(communicating.__contains__) & ~loads
    optimizes = those(OPTIMIZING.match)
    operator = ops & ~loads & ~optimizes & ~those(WRAPPERS.__contains__)
    return HostRoles(
        loads=loads,
        communicates=communicates,
        works=able & ~loads & ~communicates,
        operator=operator,
        node=ops | loads | communicates | optimizes,
    )
