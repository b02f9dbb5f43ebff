"""Ranges, marks and steps that user code records by hand: what it may put them around."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncGenerator, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from phases import read_spans
from recording import run_python

import haiprof
from haiprof import _core


@pytest.fixture
def ring(shm: Path) -> Iterator[Path]:
    """An open ring."""
    path = shm / "test.ring"
    _core.open_ring(str(path))
    yield path
    _core.close_ring()


class Mute:
    """What has no text."""

    def __repr__(self) -> str:
        raise RuntimeError("no text")


def test_what_has_no_text_is_named_by_its_type(ring: Path) -> None:
    with haiprof.range(Mute(), of=Mute()):  # type: ignore[arg-type]
        haiprof.mark(Mute(), of=Mute())  # type: ignore[arg-type]
    assert [span.name for span in read_spans(ring)] == ["<Mute>"]


def test_each_stretch_of_a_generator_is_an_interval(ring: Path) -> None:
    seen: list[Any] = []

    @haiprof.range("generator")
    def generator(first: int) -> Generator[int, Any, str]:
        try:
            seen.append((yield first))
            seen.append((yield first + 1))
        except KeyError as error:
            seen.append(error.args)
        yield first + 2
        return "end"

    assert inspect.isgeneratorfunction(generator)
    running = generator(1)
    assert next(running) == 1
    assert running.send("sent") == 2
    with haiprof.range("between"):
        assert running.throw(KeyError("thrown")) == 3
    with pytest.raises(StopIteration) as ended:
        next(running)
    assert ended.value.value == "end"
    assert seen == ["sent", ("thrown",)]
    names = [span.name for span in sorted(read_spans(ring), key=lambda span: span.start)]
    assert names == ["generator", "generator", "between", "generator", "generator"]


def test_a_generator_that_is_closed_cleans_up_within_an_interval(ring: Path) -> None:
    @haiprof.range("generator")
    def generator() -> Generator[int, None, None]:
        try:
            yield 1
        finally:
            with haiprof.range("clean up"):
                pass

    running = generator()
    next(running)
    running.close()
    inner, outer = (
        next(span for span in reversed(read_spans(ring)) if span.name == name)
        for name in ("clean up", "generator")
    )
    assert outer.start <= inner.start
    assert inner.start + inner.duration <= outer.start + outer.duration


def test_each_stretch_of_an_async_generator_is_an_interval(ring: Path) -> None:
    @haiprof.range("generator")
    async def generator() -> AsyncGenerator[Any, Any]:
        sent = yield 1
        try:
            yield sent
        except KeyError as error:
            yield error.args

    async def run() -> list[Any]:
        running = generator()
        got = [await anext(running), await running.asend("sent")]
        got.append(await running.athrow(KeyError("thrown")))
        return got + [each async for each in running]

    assert inspect.isasyncgenfunction(generator)
    assert asyncio.run(run()) == [1, "sent", ("thrown",)]
    assert [span.name for span in read_spans(ring)] == ["generator"] * 4


@pytest.mark.parametrize("first", ["torch", "haiprof"])
def test_in_a_compiled_function_nothing_is_recorded_and_nothing_recompiled(
    first: str, tmp_path: Path
) -> None:
    other = {"torch": "haiprof", "haiprof": "torch"}[first]
    program = f"""
        import sys
        import {first}
        if "{first}" == "haiprof": haiprof.range  # before torch is there
        import {other}
        from haiprof import _core
        _core.open_ring(sys.argv[1])

        @haiprof.range("decorated")
        def decorated(x):
            return x + 1

        @haiprof.range("generator")
        def generator(x):
            yield x
            yield x * 2

        def model(x):
            with haiprof.range("block", size=3):
                x = decorated(x)
            haiprof.mark("loss", 1.0)
            haiprof.mark("note", of="it")
            haiprof.step()
            for each in generator(x):
                x = x + each
            return haiprof.range("inner")(lambda y: y * 2)(x)

        graphs = []
        def backend(graph, inputs):
            graphs.append(graph)
            return graph.forward
        compiled = torch.compile(model, backend=backend, fullgraph=True)
        x = torch.ones(3)
        assert all(torch.equal(compiled(x), model(x)) for _ in range(3))
        assert len(graphs) == 1, graphs
    """
    assert run_python(program, str(tmp_path / "test.ring")) == ""
    # Three calls without the compiler recorded all of it, those with it nothing.
    names = [span.name for span in read_spans(tmp_path / "test.ring") if span.name != "step"]
    assert sorted(names) == sorted(["block", "decorated", "inner", *["generator"] * 3] * 3)
