"""Results that are computed once for an object."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from haiprof.common.once import once_property


class Counted:
    def __init__(self, compute: Callable[[], int]) -> None:
        self.compute = compute
        self.computed = 0

    @once_property
    def result(self) -> int:
        """What it computes."""
        self.computed += 1
        return self.compute()

    @once_property
    def twice(self) -> int:
        return 2 * self.result


def test_it_is_computed_when_it_is_first_asked_for_and_never_again() -> None:
    each = Counted(lambda: 7)
    assert each.computed == 0
    assert (each.result, each.twice, each.result, each.computed) == (7, 14, 7, 1)
    assert Counted.result.__doc__ == "What it computes."


def test_threads_that_ask_at_the_same_time_share_one_computation() -> None:
    begun, go_on = threading.Event(), threading.Event()

    def slow() -> int:
        begun.set()
        assert go_on.wait(60)
        return 7

    each = Counted(slow)
    with ThreadPoolExecutor(4) as pool:
        asked = [pool.submit(lambda: each.result) for _ in range(4)]
        assert begun.wait(60)
        go_on.set()
        assert [future.result() for future in asked] == [7] * 4
    assert each.computed == 1


def test_objects_and_results_do_not_wait_for_each_other() -> None:
    # Passed by computations that run at the same time only.
    together = threading.Barrier(3, timeout=60)

    class Other(Counted):
        @once_property
        def other(self) -> int:
            return together.wait()

    one, two = Other(together.wait), Other(together.wait)
    with ThreadPoolExecutor(3) as pool:
        asked = [
            pool.submit(lambda: one.result),
            pool.submit(lambda: one.other),
            pool.submit(lambda: two.result),
        ]
        assert sorted(future.result() for future in asked) == [0, 1, 2]


def test_an_error_is_not_kept() -> None:
    answers = iter([ValueError("not yet"), 7])

    def answer() -> int:
        found = next(answers)
        if isinstance(found, ValueError):
            raise found
        return found

    each = Counted(answer)
    with pytest.raises(ValueError, match="not yet"):
        each.result  # noqa: B018
    assert each.result == 7


def seven() -> int:
    return 7


def test_an_object_that_has_its_results_can_be_pickled() -> None:
    each = Counted(seven)
    assert each.twice == 14
    copy = pickle.loads(pickle.dumps(each))
    assert (copy.twice, copy.computed) == (14, 1)
