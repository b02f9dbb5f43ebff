"""What user code records by hand: ranges, marks, values and steps.

All of it may be called at any time, recording or not, and never raises.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from haiprof import _core


def step() -> None:
    """Say that a training step ends here and the next begins; from now on only this counts."""
    _core.step_mark()


def mark(name: str, value: float | None = None, **attributes: Any) -> None:
    """Record that something happened, or the value that something has, now.

    Args:
        name: what; with a value, the metric's name in ``samples``, else a row in ``events``.
        value: the metric's value.
        attributes: anything JSON can say about an event.
    """
    with contextlib.suppress(Exception):
        if value is None:
            _core.event("mark", str(name), _json(attributes))
        elif _core.ready():
            metric = _core.intern(str(name))
            if metric is not None:
                _core.push(metric, float(value))


def _json(attributes: dict[str, Any]) -> str | None:
    if not attributes:
        return None
    import json

    try:
        return json.dumps(attributes, default=str)
    except (TypeError, ValueError, RecursionError):  # what JSON cannot say is left out
        return None


class range(_core.Span):
    """A named interval: ``with haiprof.range("load"): …`` or ``@haiprof.range("load")``.

    Free of cost worth naming while nothing is recorded. As a decorator it also takes coroutine
    functions; each call is an interval of its own.

    Args:
        name: what the interval is called.
        attributes: anything JSON can say about it, kept with the span.
    """

    __slots__ = ()

    def __init__(self, name: str, **attributes: Any) -> None:
        """Name the interval."""
        super().__init__(str(name), attributes=_json(attributes))

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return ``function`` with every call recorded."""
        import functools
        import inspect

        name, attributes = self.name, self.attributes

        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def recorded_coroutine(*args: Any, **keywords: Any) -> Any:
                with _core.Span(name, attributes=attributes):
                    return await function(*args, **keywords)

            return recorded_coroutine

        @functools.wraps(function)
        def recorded(*args: Any, **keywords: Any) -> Any:
            with _core.Span(name, attributes=attributes):
                return function(*args, **keywords)

        return recorded
