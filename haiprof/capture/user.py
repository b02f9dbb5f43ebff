"""What user code records explicitly: ranges, marks, values and steps.

All of it may be called at any time, recording or not, and never raises. In a function that
torch.compile traces it does nothing: to record there would cost the compilation.
"""

from __future__ import annotations

import contextlib
import functools
import operator
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager
from types import ModuleType
from typing import Any, Final

from haiprof import _core
from haiprof.capture.after_import import AfterImport, imported

_UNSET: Final = 0xFFFFFFFF

_listeners: list[Callable[[], None]] = []


def _never() -> bool:
    return False


#: Whether torch.compile traces the caller: torch's own function, which the compiler knows.
_tracing: Callable[[], bool] = _never


def _ask_torch(torch: ModuleType) -> None:
    global _tracing
    with contextlib.suppress(AttributeError):  # an older torch has no such function
        _tracing = torch.compiler.is_dynamo_compiling


def step() -> None:
    """Mark the boundary of two training steps; from now on only such marks count."""
    if _tracing():
        return
    _core.step_mark()
    for listener in tuple(_listeners):
        listener()


def listen(listener: Callable[[], None]) -> None:
    """Call ``listener`` at each :func:`step` from now on; it must not raise."""
    _listeners.append(listener)


def stop_listening(listener: Callable[[], None]) -> None:
    """Stop calling ``listener``."""
    with contextlib.suppress(ValueError):
        _listeners.remove(listener)


def mark(name: str, value: float | None = None, **attributes: Any) -> None:
    """Record that something happened, or the value that something has, now.

    Args:
        name: what; with a value, the metric's name in ``samples``, else a row in ``events``.
        value: the metric's value.
        attributes: anything JSON can say about an event.
    """
    if _tracing():
        return
    with contextlib.suppress(Exception):
        if value is None and _core.ready():
            _core.event("mark", _text(name), _json(attributes))
        elif value is not None:
            _core.value(_text(name), float(value))


def _text(what: object) -> str:
    try:
        return str(what)
    except Exception:
        return f"<{type(what).__name__}>"


def _json(attributes: dict[str, Any]) -> str | None:
    if not attributes:
        return None
    import json

    try:
        return json.dumps(attributes, default=_text)
    except Exception:  # what JSON cannot express is left out
        return None


def _microbatch(given: Any) -> int:
    """Return a microbatch's number as the core takes it."""
    number = _number(given)
    if given is None or number != _UNSET:
        return number
    with contextlib.suppress(Exception):
        from haiprof.capture.stderr import say_once

        say_once(
            f"range(): microbatch must be a whole number from 0 to {_UNSET - 1}, and is "
            f"{given!r}; it is left out"
        )
    return _UNSET


def _number(given: Any) -> int:
    """Return a number as the core takes it; anything invalid or too large counts as not given."""
    with contextlib.suppress(Exception):
        number = operator.index(given)
        if 0 <= number < _UNSET and not isinstance(given, bool):
            return number
    return _UNSET


class _Nothing(contextlib.nullcontext[None]):
    """A range under torch.compile."""

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return function


class Range(_core.Span):
    """A named interval, made by :func:`range`; a decorator, too."""

    __slots__ = ()

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return ``function`` with every call recorded."""
        import inspect

        name = self.name
        span_options: dict[str, Any] = {"attributes": self.attributes}
        if self.device:
            numbers = {each: getattr(self, each) for each in ("microbatch", "stage", "chunk")}
            span_options |= {"device": True}
            span_options |= {each: number for each, number in numbers.items() if number is not None}

        def interval() -> AbstractContextManager[object]:
            return contextlib.nullcontext() if _tracing() else _core.Span(name, **span_options)

        if inspect.iscoroutinefunction(function):

            @functools.wraps(function)
            async def recorded_coroutine(*args: Any, **keywords: Any) -> Any:
                with interval():
                    return await function(*args, **keywords)

            return recorded_coroutine

        if inspect.isgeneratorfunction(function):

            @functools.wraps(function)
            def recorded_generator(*args: Any, **keywords: Any) -> Any:
                generator = function(*args, **keywords)
                return (yield from generator if _tracing() else _in_stretches(generator, interval))

            return recorded_generator

        if inspect.isasyncgenfunction(function):

            @functools.wraps(function)
            async def recorded_async_generator(*args: Any, **keywords: Any) -> Any:
                generator = function(*args, **keywords)
                resume = functools.partial(generator.asend, None)
                while True:
                    try:
                        with interval():
                            value = await resume()
                    except StopAsyncIteration:
                        return
                    try:
                        sent = yield value
                    except GeneratorExit:
                        with interval():
                            await generator.aclose()
                        raise
                    except BaseException as error:
                        resume = functools.partial(generator.athrow, error)
                    else:
                        resume = functools.partial(generator.asend, sent)

            return recorded_async_generator

        @functools.wraps(function)
        def recorded(*args: Any, **keywords: Any) -> Any:
            with interval():
                return function(*args, **keywords)

        return recorded


def _in_stretches(
    generator: Generator[Any, Any, Any], interval: Callable[[], AbstractContextManager[object]]
) -> Generator[Any, Any, Any]:
    """Run a generator as it is; each stretch up to where it yields is an interval."""
    resume = functools.partial(generator.send, None)
    while True:
        try:
            with interval():
                value = resume()
        except StopIteration as end:
            return end.value
        try:
            sent = yield value
        except GeneratorExit:
            with interval():
                generator.close()
            raise
        except BaseException as error:
            resume = functools.partial(generator.throw, error)
        else:
            resume = functools.partial(generator.send, sent)


def range(
    name: str, *, device: bool = False, microbatch: int | None = None, **attributes: Any
) -> Range:
    """Return a named interval: ``with haiprof.range("load"): …`` or ``@haiprof.range("load")``.

    Costs almost nothing while nothing is recorded. As a decorator it also takes coroutine
    functions, and each call is an interval of its own; of generator functions, of both kinds, each
    stretch up to where they yield is one.

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
    if _tracing():
        return _Nothing()  # type: ignore[return-value]
    if not device:
        if microbatch is not None:
            attributes["microbatch"] = microbatch
        return Range(_text(name), attributes=_json(attributes))
    number = _microbatch(microbatch)
    # Also for the host's interval: without a GPU in use there is no other.
    with_microbatch = attributes if number == _UNSET else {**attributes, "microbatch": number}
    return Range(
        _text(name),
        attributes=_json(with_microbatch),
        device=True,
        microbatch=number,
        stage=_number(attributes.get("stage")),
        chunk=_number(attributes.get("chunk")),
    )


if _torch := imported("torch"):
    _ask_torch(_torch)
else:
    AfterImport("torch", _ask_torch)
