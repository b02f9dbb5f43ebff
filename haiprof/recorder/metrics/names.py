"""Values of labels, which come from the job: few, short, and harmless."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

from haiprof.common.printable import printable

OTHER: Final = "other"
#: Characters of a value.
_LONGEST: Final = 64
#: Beyond so many that have no series of their own it is not counted how many.
MOST_COUNTED: Final = 4096
#: Kinds of groups, and words in what a group is for that say so.
_WORDS: Final = {
    "dp": {"dp", "ddp", "fsdp", "data", "shard", "replicate"},
    "tp": {"tp", "tensor"},
    "pp": {"pp", "pipeline", "pipe"},
    "ep": {"ep", "expert"},
}


def label_value(text: str) -> str:
    """Return a text as the value of a label."""
    return printable(text[:_LONGEST])


class Names:
    """The values of one label: known ones, and the first of all others, up to a number."""

    def __init__(self, known: Iterable[str], most: int) -> None:
        """Begin.

        Args:
            known: values that always have a series.
            most: how many others may have one.
        """
        self._own = set(known)
        self._most = len(self._own) + most
        self._cut: set[str] = set()

    def __call__(self, text: str) -> str:
        """Return the value for a text: its own, or ``other``."""
        value = label_value(text)
        if value in self._own:
            return value
        if len(self._own) < self._most:
            self._own.add(value)
            return value
        if len(self._cut) < MOST_COUNTED:
            self._cut.add(value)
        return OTHER

    @property
    def cut_off(self) -> int:
        """How many values have no series."""
        return len(self._cut)


def group_kind(purpose: str) -> str:
    """Return of which kind of parallelism a process group is: dp, tp, pp, ep, other.

    Args:
        purpose: what the framework says that it is for, as ``TENSOR_MODEL_PARALLEL_GROUP`` or
            ``mesh_dp_shard``.
    """
    words = set(re.findall(r"[a-z]+", purpose.lower()))
    found = [kind for kind, ones in _WORDS.items() if words & ones]
    if found == ["dp", "ep"] and "and" not in words:  # replicas of the same experts
        return "dp"
    return found[0] if len(found) == 1 else OTHER
