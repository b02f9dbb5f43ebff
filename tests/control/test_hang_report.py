"""Two looks at who is to blame: what is certain, and what may only be late."""

from __future__ import annotations

from dataclasses import replace

import pytest

from haiprof.common.wait_graph import Group, Rank, Wait
from haiprof.control.doing import Doing
from haiprof.control.hang import Hang, Looked, verdict
from haiprof.control.hang_report import certain, known

NAPS = Doing(1, 7, "waiting", "sleeps", "nap (t.py:9)", ("nap (t.py:9)", "<module> (t.py:20)"))

RUNS = replace(NAPS, state="running")
SAVES = replace(NAPS, stack=("save (/lib/torch/serialization.py:9)",))
LOOKED = Looked("r", 0, None, 64.0, NAPS, 2)
WAITS = Rank({"0": Group("0", 2, 4, "all_reduce", done=3)}, [Wait("0", 4, "all_reduce", age_s=64)])
UNREADABLE = replace(NAPS, state="", stack=())


def hang(kind: str = "rank_never_arrived", lasts: float = 70.0, *culprits: Doing) -> Hang:
    ranks = tuple(one.rank for one in culprits) or (1,)
    return Hang(kind, "Rank 1 never came", "look", ranks, (0,), lasts, culprits)


def found(*looks: Hang | None) -> Hang | None:
    left = list(looks)
    return certain(lambda: left.pop(0), 60.0, lambda: None)


def test_who_does_nothing_is_to_blame() -> None:
    assert found(hang("rank_never_arrived", 70, NAPS), hang("rank_never_arrived", 80, NAPS))


@pytest.mark.parametrize(
    ("then", "now"),
    [
        (NAPS, RUNS),
        (NAPS, replace(NAPS, stack=("<module> (t.py:20)",))),
        (SAVES, SAVES),
        (UNREADABLE, UNREADABLE),
    ],
    ids=["runs", "moves", "saves", "unreadable"],
)
def test_who_may_do_something_is_late_for_longer(then: Doing, now: Doing) -> None:
    assert found(hang("rank_never_arrived", 70, then), hang("rank_never_arrived", 80, now)) is None
    for kind, lasts in (("rank_never_arrived", 601.0), ("collective_mismatch", 80.0)):
        assert found(hang(kind, 70, then), hang(kind, lasts, now))


def test_who_has_not_joined_is_named_unless_it_only_starts_slowly() -> None:
    missing = hang("rendezvous", 0, NAPS)
    assert found(missing, missing), "whoever asks knows since when"
    imports = replace(NAPS, stack=("_find_spec (<frozen importlib._bootstrap>:9)", *NAPS.stack))
    for starts in (RUNS, imports):
        late = hang("rendezvous", 0, starts)
        assert found(late, late) is None
        assert found(missing, late) is None


def test_nobody_is_blamed_of_whom_nothing_is_known() -> None:
    away = replace(LOOKED, progress=WAITS, world_size=2)
    assert known(verdict([away], 1.0).hang, whole=False) is None
    stalled = hang("stalled_transfer", 601)
    assert known(stalled, whole=False)
    missing = hang("rendezvous", 601)
    assert known(missing, whole=False) is None
    assert known(missing, whole=True)
    assert known(hang("rank_never_arrived", 70), whole=True) is None


def test_what_changes_meanwhile_does_not_hang() -> None:
    one = hang("rank_never_arrived", 70, NAPS)
    assert found(None) is None
    assert found(one, None) is None
    assert found(one, replace(one, ranks=(2,))) is None
    assert found(one, replace(one, kind="stopped")) is None
