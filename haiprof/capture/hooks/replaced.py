"""A foreign function, replaced by one that does the same and reports its calls.

Tests: tests/capture/hooks/test_install.py.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Final

#: Returns what is to be entered around a call with these arguments.
Around = Callable[[tuple[Any, ...], dict[str, Any]], AbstractContextManager[Any]]
#: Called with the result of such a call.
Note = Callable[[tuple[Any, ...], dict[str, Any], Any], None]

_NOTHING: Final = contextlib.nullcontext()


class Replaced:
    """A function that is a value of a class, a module or a dictionary, with ours around it."""

    def __init__(
        self, owner: Any, name: Any, around: Around | None = None, note: Note | None = None
    ) -> None:
        """Replace it. Exceptions of ``around`` and ``note`` do not reach the caller.

        Raises:
            LookupError, TypeError: it is not there, or no function.
        """
        self._owner, self._name = owner, name
        original = (owner if isinstance(owner, dict) else vars(owner))[name]
        if not callable(original):
            raise TypeError(f"{name} is a {type(original).__name__}, and no function")
        self._original: Callable[..., Any] = original

        # Not this object: it would form a cycle, which only the job's garbage collector frees.
        on = [True]
        # Nor globals of this module: a destructor may call this when they have been cleared.
        suppress, nothing, entered = contextlib.suppress, _NOTHING, _entered

        @functools.wraps(original)
        def wrapped(*args: Any, **keywords: Any) -> Any:
            if not on:
                return original(*args, **keywords)
            with nothing if around is None else entered(around, args, keywords):
                result = original(*args, **keywords)
            if note is not None:
                with suppress(Exception):
                    note(args, keywords, result)
            return result

        self._on = on
        self._wrapped = wrapped
        self._put(wrapped)

    def restore(self) -> None:
        """Restore the original. Inside somebody else's wrapper ours stays and does nothing."""
        self._on.clear()
        there = self._owner if isinstance(self._owner, dict) else vars(self._owner)
        if there.get(self._name) is self._wrapped:
            self._put(self._original)

    def _put(self, function: Callable[..., Any]) -> None:
        if isinstance(self._owner, dict):
            self._owner[self._name] = function
        else:
            setattr(self._owner, self._name, function)


def _entered(
    around: Around, args: tuple[Any, ...], keywords: dict[str, Any]
) -> AbstractContextManager[Any]:
    try:
        return around(args, keywords)
    except Exception:
        return _NOTHING
