"""The series of a node."""

from __future__ import annotations

from exported import Process, busy_node, gpu, parts, statement, step_spans, values

from haiprof.recorder.metrics import families as f
from haiprof.recorder.metrics.node import Node


def node() -> Node:
    return Node({"run": "r", "node": "n"})


def test_a_rank_that_is_started_anew_goes_on() -> None:
    of = node()
    first = Process(rank=3, local_rank=1, lost=5, ending="killed")
    rank = of.begin(first)
    assert rank is not None
    rank.read(step_spans(0.3, 0.3))
    assert values(of.snapshot([]), f.LOST) == {("3", "1"): 5}
    again = of.begin(Process(rank=3, local_rank=1, lost=2))
    assert again is not None
    again.read(step_spans(0.3))
    assert values(of.snapshot([]), f.STEPS) == {("3", "1"): 3}
    assert values(of.snapshot([]), f.LOST) == {("3", "1"): 7}


def test_a_rank_lags_behind_the_fastest_by_its_own_time() -> None:
    of = node()
    waits = (0.7, 0.0)
    for number, waited in enumerate(waits):
        rank = of.begin(Process(number, number))
        assert rank is not None
        for step in range(number, 5):  # they have not made all steps both
            rank.read(parts(("step", "step", 1.0), ("wait", "all_reduce", waited), step=step))
    lags = values(of.snapshot([]), f.LAG)
    assert {key: round(lag, 6) for key, lag in lags.items()} == {("0", "0"): 0, ("1", "1"): 0.7}


def test_a_single_rank_has_no_lag() -> None:
    of = node()
    rank = of.begin(Process())
    assert rank is not None
    rank.read(parts(("step", "step", 1.0)))
    assert values(of.snapshot([]), f.LAG) == {}


def states(of: Node) -> dict[str, str]:
    found = values(of.snapshot([]), f.STATE)
    return {rank: state for (rank, _, state), value in found.items() if value}


def test_the_state_of_a_rank() -> None:
    of = node()
    processes = [Process(number, number) for number in range(3)]
    ranks = [of.begin(process) for process in processes]
    assert set(states(of).values()) == {"starting"}
    for rank in ranks:
        assert rank is not None
        rank.read(step_spans(0.3))
    hang = {"kind": "rank_missing", "ranks": (1,), "waiting": (0,), "over": False}
    of.note("hang", hang)
    assert states(of) == {"0": "waiting", "1": "hung", "2": "running"}
    assert values(of.snapshot([]), f.FINDING) == {("rank_missing",): 1}
    of.note("hang", {"s": 3.0, "over": True})
    processes[1].ending, processes[2].ending = "failed", "finished"
    assert states(of) == {"0": "running", "1": "failed", "2": "finished"}
    assert values(of.snapshot([]), f.FINDING) == {}


def test_a_finding_is_there_while_it_holds() -> None:
    of = node()
    for ranks in ([0], [1]):
        of.note("finding", {"kind": "gil", "ranks": ranks, "over": False})
    of.note("finding", {"kind": "gil", "ranks": [0], "over": True})
    assert values(of.snapshot([]), f.FINDING) == {("gil",): 1}
    of.note("finding", {"kind": "gil", "ranks": [1], "over": True})
    assert values(of.snapshot([]), f.FINDING) == {}


def test_what_is_too_many_is_counted() -> None:
    of = node()
    for number in range(70):
        of.begin(Process(number, number))
    for number in range(85):
        of.note("finding", {"kind": f"kind{number}", "ranks": [0], "over": False})
    snapshot = of.snapshot([])
    assert len(values(snapshot, f.STEPS)) == 64
    assert len(values(snapshot, f.FINDING)) == 80
    assert values(snapshot, f.CUT_OFF) == {(): 6 + 5}


def peaks(of: Node, gpus: tuple[dict[str, object], ...], **stated: object) -> list[float]:
    rank = of.begin(Process(gpus=gpus))
    assert rank is not None
    rank.read(statement(1, **stated))
    rank.read(step_spans(1.0))
    return [*values(of.snapshot([]), f.PEAK).values()]


def test_a_peak_is_of_all_gpus_of_a_rank_for_the_type_that_its_job_states() -> None:
    two = (gpu(0), gpu(1))
    assert peaks(node(), two, flops_per_step=1e12, dtype="torch.bfloat16") == [2 * 989.4e12]
    assert peaks(Node({}, peak_flops=3e12), two, flops_per_step=1e12) == [6e12]
    assert peaks(Node({}, peak_flops=3e12), (), flops_per_step=1e12) == [3e12], "without a GPU"


def test_where_operations_or_their_peak_are_not_known_there_is_none() -> None:
    assert peaks(node(), (gpu(0),), tokens_per_step=1, dtype="bf16") == []
    assert peaks(node(), (gpu(0),), flops_per_step=1) == [], "of which type?"
    assert peaks(node(), (), flops_per_step=1, dtype="bf16") == []
    unknown = (
        {"uuid": "GPU-1", "name": "NVIDIA Tomorrow", "memory_bytes": 1},
        {"uuid": "GPU-1", "name": 7, "memory_bytes": "x"},
        {"uuid": "GPU-1"},
    )
    for one in unknown:
        assert peaks(node(), (gpu(0), one), flops_per_step=1, dtype="bf16") == []


def test_another_process_of_a_rank_states_its_type_anew() -> None:
    of = node()
    assert peaks(of, (gpu(0),), flops_per_step=1, dtype="bf16") == [989.4e12]
    assert peaks(of, (gpu(0),), flops_per_step=1) == []


def test_a_gpu_that_a_rank_uses_is_named_once() -> None:
    of = node()
    of.begin(Process(2, 0, tuple({"uuid": uuid} for uuid in ("GPU-1", "GPU-1", "GPU-\n", ""))))
    used = values(of.snapshot([]), f.RANK_GPU)
    assert used == {("2", "0", "GPU-1"): 1, ("2", "0", "GPU-\N{REPLACEMENT CHARACTER}"): 1}


def test_sources_are_up_or_not() -> None:
    snapshot = node().snapshot([{"name": "cpu", "state": "ok"}, {"name": "ib", "state": "absent"}])
    assert values(snapshot, f.SOURCE) == {("cpu",): 1, ("ib",): 0}


def test_a_node_with_eight_ranks_has_some_360_series() -> None:
    snapshot = busy_node().snapshot([])
    series = sum(14 if one.family is f.STEP_DURATION else 1 for one in snapshot.series)
    assert 280 <= series <= 370
    assert len({(one.family, one.labels) for one in snapshot.series}) == len(snapshot.series)
