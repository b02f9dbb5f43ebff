"""What user code records by hand: ranges, marks, values and steps.

All of it may be called at any time, recording or not, and never raises.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable
from typing import Any, Final

from haiprof import _core

_NO_NUMBER: Final = 0xFFFFFFFF

_listeners: list[Callable[[], None]] = []


def step() -> None:
    """Say that a training step ends here and the next begins; from now on only this counts."""
    _core.step_mark()
    for listener in tuple(_listeners):
        listener()


def listen(listener: Callable[[], None]) -> None:
    """Call ``listener`` at each :func:`step` from now on; it must not raise."""
    _listeners.append(listener)


def listen_no_more(listener: Callable[[], None]) -> None:
    """Do not call ``listener`` any more, if it was to be called."""
    with contextlib.suppress(ValueError):
        _listeners.remove(listener)


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


def _microbatch(given: Any) -> int:
    """Return a microbatch's number as the core takes it."""
    number = _number(given)
    if given is None or number != _NO_NUMBER:
        return number
    with contextlib.suppress(Exception):
        from haiprof.session import tell

        tell(
            f"range(): microbatch must be a whole number from 0 to {_NO_NUMBER - 1}, and is "
            f"{given!r}; it is left out"
        )
    return _NO_NUMBER


def _number(given: Any) -> int:
    """Return a number as the core takes it; what is none, or too large, is as none given."""
    with contextlib.suppress(Exception):
        number = operator.index(given)
        if 0 <= number < _NO_NUMBER and not isinstance(given, bool):
            return number
    return _NO_NUMBER


class range(_core.Span):
    """A named interval: ``with haiprof.range("load"): …`` or ``@haiprof.range("load")``.

    Free of cost worth naming while nothing is recorded. As a decorator it also takes coroutine
    functions; each call is an interval of its own.

    Args:
        name: what the interval is called.
        device: time it on the GPU, too: from one CUDA event to another on the stream that is
            current when it begins, as a row of ``device_spans``. Without a GPU in use it is the
            host's interval only, and so it is when it ends on another stream.
        microbatch: of a pipeline, 0 to 4294967294: an attribute, and of the row in
            ``device_spans``.
        attributes: anything JSON can say about it, kept with the span. ``stage`` of the pipeline
            and ``chunk`` of the model, whole numbers, are kept in ``device_spans``, too.
    """

    __slots__ = ()

    def __init__(
        self, name: str, *, device: bool = False, microbatch: int | None = None, **attributes: Any
    ) -> None:
        """Name the interval."""
        if device:
            number = _microbatch(microbatch)
            # With the host's interval, too: where no GPU is in use there is no other.
            told = attributes if number == _NO_NUMBER else {**attributes, "microbatch": number}
            super().__init__(
                str(name),
                attributes=_json(told),
                device=True,
                microbatch=number,
                stage=_number(attributes.get("stage")),
                chunk=_number(attributes.get("chunk")),
            )
        elif attributes or microbatch is not None:
            if microbatch is not None:
                attributes["microbatch"] = microbatch
            super().__init__(str(name), attributes=_json(attributes))
        else:
            super().__init__(str(name))

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return ``function`` with every call recorded."""
        import functools
        import inspect

        name = self.name
        given: dict[str, Any] = {"attributes": self.attributes}
        if self.device:
            numbers = {each: getattr(self, each) for each in ("microbatch", "stage", "chunk")}
            given |= {"device": True}
            given |= {each: number for each, number in numbers.items() if number is not None}

        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def recorded_coroutine(*args: Any, **keywords: Any) -> Any:
                with _core.Span(name, **given):
                    return await function(*args, **keywords)

            return recorded_coroutine

        @functools.wraps(function)
        def recorded(*args: Any, **keywords: Any) -> Any:
            with _core.Span(name, **given):
                return function(*args, **keywords)

        return recorded
