"""Results that are computed once for an object, also if several threads ask at the same time.

Until Python 3.11 functools.cached_property makes all objects of a class wait for each other, so
that threads that work on a rank each take turns. From 3.12 on it computes a result as often as
threads ask for it before it is there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar, overload

Owner = TypeVar("Owner")
Made = TypeVar("Made")


def once(kept: dict[Any, Any], key: Hashable, make: Callable[[], Made]) -> Made:
    """Return ``kept[key]``, which is ``make()`` if nobody has asked before.

    A result that is not there yet keeps nobody waiting but those who ask for it.

    Raises:
        Exception: what ``make`` raises; whoever asks next makes another attempt.
    """
    if key not in kept:
        lock_key = (once, key)
        with kept.setdefault(lock_key, threading.RLock()):
            if key not in kept:
                kept[key] = make()
        # Locks cannot be pickled. Who waits for this one still finds the result.
        kept.pop(lock_key, None)
    result: Made = kept[key]
    return result


class once_property(Generic[Owner, Made]):
    """A property that is computed when it is first asked for, and kept in the object."""

    def __init__(self, make: Callable[[Owner], Made]) -> None:
        """Decorate the method that computes it."""
        self._make = make
        self.__doc__ = make.__doc__

    def __set_name__(self, owner: type[Owner], name: str) -> None:
        """Learn the name under which it is kept."""
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type[Owner]) -> once_property[Owner, Made]: ...
    @overload
    def __get__(self, instance: Owner, owner: type[Owner]) -> Made: ...
    def __get__(self, instance: Any, owner: type[Owner]) -> Any:
        """Return it; only called as long as the object does not have it."""
        if instance is None:
            return self
        return once(instance.__dict__, self._name, lambda: self._make(instance))
