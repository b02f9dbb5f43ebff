"""Work on cores that this process does not use yet."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Iterator

import pytest

from haiprof.common import cores
from haiprof.common.cores import Beside, occupied


@pytest.fixture
def two_free(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Semaphore]:
    """A process on three cores; afterwards both others must be free again."""
    free = threading.Semaphore(2)
    monkeypatch.setattr(cores, "_free", free)
    yield free
    assert [free.acquire(timeout=60), free.acquire(timeout=60)] == [True, True]
    assert not free.acquire(blocking=False)


@pytest.mark.usefixtures("two_free")
def test_it_runs_beside_the_caller() -> None:
    together = threading.Barrier(3, timeout=60)
    some = [Beside(together.wait) for _ in range(2)]
    found = [together.wait(), *(each.result() for each in some)]
    assert sorted(found) == [0, 1, 2]


@pytest.mark.usefixtures("two_free")
def test_where_no_core_is_free_the_caller_does_it() -> None:
    go_on = threading.Event()
    others = [Beside(go_on.wait, 60) for _ in range(2)]
    own = Beside(threading.get_ident)
    assert own.result() == threading.get_ident()
    go_on.set()
    assert all(each.result() for each in others)


@pytest.mark.usefixtures("two_free")
@pytest.mark.parametrize(("threads", "beside"), [(1, True), (2, True), (3, False), (9, False)])
def test_threads_that_work_occupy_cores_but_the_caller_s(threads: int, beside: bool) -> None:
    with occupied(threads):
        asked = Beside(threading.get_ident)
        assert (asked.result() != threading.get_ident()) is beside


@pytest.mark.usefixtures("two_free")
@pytest.mark.parametrize("alone", [False, True])
def test_errors_reach_the_caller(alone: bool) -> None:
    def fails() -> None:
        raise ValueError("no such rank")

    with occupied(3 if alone else 1):
        asked = Beside(fails)
        with pytest.raises(ValueError, match="no such rank"):
            asked.result()


@pytest.mark.usefixtures("two_free")
@pytest.mark.parametrize("alone", [False, True])
def test_it_has_the_caller_s_context(alone: bool) -> None:
    asked_for: contextvars.ContextVar[str] = contextvars.ContextVar("asked_for", default="nothing")
    asked_for.set("tables")
    with occupied(3 if alone else 1):
        assert Beside(asked_for.get).result() == "tables"


@pytest.mark.usefixtures("two_free")
def test_a_process_that_may_have_no_more_threads_does_it_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    done = []
    asked = Beside(done.append, threading.get_ident())
    assert done == []
    asked.result()
    assert done == [threading.get_ident()]
