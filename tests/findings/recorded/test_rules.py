"""Rules over recorded runs: what is found, what is first, and what nothing is said of."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import polars as pl
import pytest
from charged_lives import MS, charged, span
from recorded_cases import (
    LINE,
    PHASES,
    STEPS,
    TORCH,
    found,
    kinds,
    life,
    line,
    node,
    pair,
    process,
    rank,
    stats,
    torch_lines,
)

from haiprof.findings import endings
from haiprof.findings.recorded import end_rules, memory_rules
from haiprof.findings.recorded.case import Rank
from haiprof.runs import Ending, StackSampling
from haiprof.views.run.series import Stat


def test_a_healthy_rank_is_silent() -> None:
    assert kinds(rank(life(), torch_lines(100))) == []


def test_a_few_steps_prove_nothing() -> None:
    own = charged(
        [each for n in range(5) for each in (span(10 + 10 * n, 10, "step", "step", n),
                                             span(10 + 10 * n, 9, "phase", "dataloader", n))],
        80,
    )  # fmt: skip
    assert kinds(rank(own)) == []


def test_the_garbage_collector() -> None:
    seen = [line("collector", 20, f"log (/job/log{n}.py:3)") for n in range(2)]
    pair_of = [rank(life({"gc": 15}), [*torch_lines(100), seen[n]], number=n) for n in range(2)]
    (finding,) = found(*pair_of)
    assert (finding.kind, finding.ranks) == ("garbage_collection", (0, 1))
    assert finding.lost_ns == STEPS * 15 * MS
    assert finding.line in ("log (/job/log0.py:3)", "log (/job/log1.py:3)")


def test_a_seldom_checkpoint_counts_when_it_costs_enough() -> None:
    often = life(seldom={n: {"save": 800.0} for n in (30, 60, 90)})
    assert kinds(rank(often, torch_lines(100))) == ["blocking_checkpoint"]
    assert kinds(rank(life(seldom={50: {"save": 100.0}}), torch_lines(100))) == []


@pytest.mark.parametrize("trains", ["main (/job/train.py:7)", "save (/job/train.py:30)"])
def test_what_a_job_does_around_its_checkpoint_belongs_to_it(trains: str) -> None:
    """Also if one line of the job calls all that is done, as one does that calls a Trainer."""
    save = "save (/job/train.py:30)"
    path = save if trains == save else f"{trains};{save}"
    own = line("other", 12, save, path=path, state="uninterruptible", waits_in="jbd2_log_wait",
               gil=False)  # fmt: skip
    torchs = line("save", 20, save, path=path, **TORCH)
    seldom = {n: {"save": 800.0, "other": 480.0} for n in (30, 60, 90)}
    trained = line("forward", 100, trains, path=trains, gil=False, **TORCH)
    (finding,) = found(rank(life(seldom=seldom), [own, torchs, trained]))
    assert (finding.kind, finding.line) == ("blocking_checkpoint", save)
    assert finding.lost_ns == pytest.approx((3 * (800 + 480) + 97) * MS, rel=0.01)


@pytest.mark.parametrize(
    "sample",
    [
        line("other", 20),
        line("other", 20, state="waiting", waits_in="hrtimer_nanosleep", gil=False),
        line("other", 20, package="numpy", gil=False),
        line("forward", 40),
    ],
)
def test_what_the_thread_does_besides_training_is_named(sample: dict[str, Any]) -> None:
    (finding,) = found(rank(life({"other": 25}), [sample, *torch_lines(80)]))
    assert (finding.kind, finding.line) == ("host_code", LINE)
    took = {"other": 25, "forward": 30}[sample["cause"]]
    of = 1 if sample["cause"] == "other" else 40 / 120
    assert finding.lost_ns == pytest.approx(STEPS * took * of * MS, rel=0.01)


def test_what_the_loop_calls_is_one_thing_whatever_it_calls_in_turn() -> None:
    say = "main (/job/train.py:7);say (/job/log.py:3)"
    calls = [
        line("other", 12, "text (/job/log.py:8)", path=f"{say};text (/job/log.py:8)"),
        line("other", 8, "say (/job/log.py:4)", path="main (/job/train.py:7);say (/job/log.py:4)"),
        # A built-in that gives the GIL back while it writes.
        line("other", 10, "say (/job/log.py:5)", gil=False,
             path="main (/job/train.py:7);say (/job/log.py:5)"),
    ]  # fmt: skip
    (finding,) = found(rank(life({"other": 40}), [*calls, *torch_lines(70)]))
    assert (finding.kind, finding.lost_ns) == ("host_code", STEPS * 40 * MS)
    assert finding.line == "text (/job/log.py:8)"
    assert finding.problem.endswith("in text (/job/log.py:8), called from say (/job/log.py)")


def test_waiting_until_it_is_on_the_disk_is_logging() -> None:
    def waits(samples: int, where: str) -> dict[str, Any]:
        return line("other", samples, "keep (/job/log.py:9)", state="uninterruptible",
                    waits_in=where, gil=False)  # fmt: skip

    own = life({"other": 40})
    few = [waits(25, "folio_wait_bit"), waits(4, "fsync"), *torch_lines(70)]
    (finding,) = found(rank(own, few))
    assert (finding.kind, finding.line) == ("logging", "keep (/job/log.py:9)")
    assert finding.problem.startswith("The training thread writes files between the phases")
    (other,) = found(rank(own, [waits(29, "folio_wait_bit"), *torch_lines(70)]))
    assert other.kind == "host_code"


def test_writing_is_logging() -> None:
    writes = line("other", 20, state="waiting", waits_in="pipe_write", gil=False)
    assert kinds(rank(life({"other": 25}), [writes, *torch_lines(80)])) == ["logging"]
    logs = line("other", 20, file="/usr/lib/python3.11/logging/__init__.py", package="python")
    assert kinds(rank(life({"other": 25}), [logs, *torch_lines(80)])) == ["logging"]


def test_a_thread_that_keeps_the_gil() -> None:
    blocked = line("forward", 30, state="waiting", waits_in="futex_wait_queue", gil=False,
                   blocked_by="spin (/job/watch.py:3)")  # fmt: skip
    (finding,) = found(rank(life(), [blocked, *torch_lines(70)]))
    assert (finding.kind, finding.line) == ("gil", "spin (/job/watch.py:3)")


def test_a_thread_that_keeps_the_gil_from_some_step_on_is_why_steps_are_slower() -> None:
    own = life(seldom={n: {"backward": 90.0} for n in range(60, STEPS)})

    def blocked(samples: int, later: bool) -> dict[str, Any]:
        return line("backward", samples, state="waiting", waits_in="futex_wait_queue", gil=False,
                    blocked_by="spin (/job/watch.py:3)", later=later)  # fmt: skip

    (finding,) = found(rank(own, [blocked(18, True), *torch_lines(90)]))
    assert (finding.kind, finding.since) == ("gil", 60)
    assert finding.problem.endswith("in spin (/job/watch.py:3), from step 60 on")
    # One that had it before, too, does not explain it.
    always = [blocked(10, True), blocked(10, False), *torch_lines(90)]
    assert sorted(kinds(rank(own, always))) == ["gil", "regression"]


def test_compiling_again_is_found_but_not_the_first_time() -> None:
    first = [span(100, 500, "compile", "f")]
    assert kinds(rank(life(spans=first), torch_lines(100))) == []
    again = [span(1000 + 400 * n, 50, "compile", "f") for n in range(20)]
    reason = "tensor 'x' size mismatch at index 0  # in forward"
    once = {"recompiles": 0, "reason": None, "duration_ns": 500 * MS}
    more = {"recompiles": 1, "reason": reason, "duration_ns": 50 * MS}
    facts = {"compile": [once, *[more] * 20]}
    (finding,) = found(rank(life(spans=again), torch_lines(100), facts=facts))
    assert (finding.kind, finding.lost_ns) == ("recompilation", 1000 * MS)
    assert finding.problem.endswith("because of tensor 'x' size mismatch at index 0")


def test_steps_that_are_slower_from_some_step_on() -> None:
    later = {n: {"backward": 90.0} for n in range(60, STEPS)}
    (finding,) = found(rank(life(seldom=later), torch_lines(100)))
    assert (finding.kind, finding.since, finding.phase) == ("regression", 60, "backward")
    assert abs((finding.lost_ns or 0) - 40 * 30 * MS) < MS
    for healthy in (
        {n: {"backward": 60.0 + n % 7 * 4} for n in range(STEPS)},
        {n: {"backward": 75.0} for n in range(20)},
        {n: {"backward": 62.0} for n in range(60, STEPS)},
    ):
        assert kinds(rank(life(seldom=healthy), torch_lines(100))) == []


def test_steps_that_take_longer_and_longer() -> None:
    grows = {n: {"backward": 60.0 + n} for n in range(STEPS)}
    (finding,) = found(rank(life(seldom=grows), torch_lines(100)))
    assert finding.kind == "regression"
    assert finding.problem.startswith("Steps take longer and longer, ")


def test_where_later_steps_take_longer_is_known_from_stacks() -> None:
    def sampled(before: int, after: int, text: str) -> list[dict[str, Any]]:
        both = ((False, before), (True, after))
        return [line("backward", n, text, later=late, gil=False, **TORCH) for late, n in both]

    usual, new = sampled(60, 40, "Net.forward (/job/net.py:2)"), "Net.extra (/job/net.py:9)"
    own = life(seldom={n: {"backward": 90.0} for n in range(60, STEPS)})
    (finding,) = found(rank(own, [*usual, *sampled(0, 20, new)]))
    assert (finding.kind, finding.line) == ("regression", new)
    assert finding.problem.endswith(f"most of it in backward, in {new}")
    (unknown,) = found(rank(own, [*usual, *sampled(0, 4, new)]))
    assert (unknown.kind, unknown.line) == ("regression", None)


def test_what_a_function_does_from_some_step_on_is_one_finding() -> None:
    own = life(seldom={n: {"other": 31.0} for n in range(60, STEPS)})
    sleeps = {"state": "waiting", "waits_in": "hrtimer_nanosleep", "gil": False}
    (finding,) = found(rank(own, [line("other", 40, later=True, **sleeps), *torch_lines(100)]))
    assert (finding.kind, finding.line, finding.since) == ("host_code", LINE, 60)
    assert finding.problem.endswith(f"in {LINE}, from step 60 on")


def test_a_slow_start_is_named_by_its_line() -> None:
    busy = [line("startup", 80), line("startup", 20, outer="importlib torch")]
    (finding,) = found(rank(life(startup=20_000), [*busy, *torch_lines(100)]))
    assert (finding.kind, finding.line) == ("slow_start", LINE)
    assert finding.lost_ns == 16_000 * MS
    assert kinds(rank(life(startup=3_000), [*busy, *torch_lines(100)])) == []
    imports = [line("startup", 100, outer="importlib torch")]
    assert kinds(rank(life(startup=20_000), [*imports, *torch_lines(100)])) == []


def test_a_start_whose_stacks_began_late_costs_what_is_known_of_it() -> None:
    own = rank(life(startup=20_000), [line("startup", 80), *torch_lines(100)])
    sampling = StackSampling(10.0, 0, 0, 0, 0)
    late = dataclasses.replace(own, process=dataclasses.replace(own.process, stacks=sampling))
    (finding,) = found(late)
    assert finding.lost_ns == 8_000 * MS
    known = dataclasses.replace(late, facts={"start": [{"torch_imported_s": 3.0}, {}]})
    (finding,) = found(known)
    assert finding.lost_ns == 11_000 * MS
    assert finding.low_ns is not None
    assert finding.low_ns < 8_000 * MS


def queued(percent: float, **more: Any) -> Any:
    return life(queue=[(100, 0), *((100 + 100 * n, percent) for n in range(1, 101))], **more)


@pytest.mark.parametrize(
    ("kind", "of_rank", "of_node"),
    [
        ("cpu_quota", {"cpu": 90, "throttled": 60, "limit": 1}, 12),
        ("cpu_affinity", {"cpu": 95, "allowed": 1}, 14),
        ("cpu_neighbour", {"cpu": 100}, 90),
        ("too_many_threads", {"cpu": 780, "threads": 64}, 99),
        ("cpu_affinity", {"cpu": 85, "allowed": 1}, 90),
    ],
)
def test_who_takes_the_cpu(kind: str, of_rank: dict[str, float], of_node: float) -> None:
    one = rank(queued(30), torch_lines(100), summary=stats(**of_rank))
    (finding,) = found(one, nodes=[node(of_node)])
    assert finding.kind == kind
    assert 0.25 < (finding.share or 0) < 0.32


def test_ranks_that_are_bound_to_cpus_of_their_own_do_not_share_them() -> None:
    busy = [
        rank(queued(30), torch_lines(100), number=n, summary=stats(cpu=60, allowed=1))
        for n in range(4)
    ]
    assert kinds(*busy, nodes=[node(35)]) == []
    sharing = [dataclasses.replace(each, summary=stats(cpu=25, allowed=1)) for each in busy]
    assert kinds(*sharing, nodes=[node(15)]) == ["cpu_affinity"]


def test_more_threads_than_cpus_explain_it_whoever_else_is_there() -> None:
    facts = {"threads": [{"num_threads": 4, "affinity": 8}, {"num_threads": 24, "affinity": 8}]}
    one = rank(queued(30), torch_lines(100), summary=stats(cpu=500), facts=facts)
    (finding,) = found(one, nodes=[node(99)])
    assert finding.kind == "too_many_threads"
    assert "24 threads on 8 CPUs" in finding.problem


def test_ranks_of_one_thread_each_cannot_use_fewer() -> None:
    facts = {"threads": [{"num_threads": 1, "affinity": 8}], "loader": [{"num_workers": 0}]}
    one = rank(queued(30), torch_lines(100), summary=stats(cpu=780), facts=facts)
    assert kinds(one, nodes=[node(99)]) == []
    more = dataclasses.replace(one, facts={**facts, "loader": [{"num_workers": 8}]})
    assert kinds(more, nodes=[node(99)]) == ["too_many_threads"]


def test_a_queue_that_nobody_explains_is_not_blamed_on_anyone() -> None:
    one = rank(queued(30), torch_lines(100), summary=stats(cpu=100))
    assert kinds(one, nodes=[node(13)]) == []


def test_pressure_alone_is_no_finding() -> None:
    one = rank(queued(3), torch_lines(100), summary=stats(cpu=100))
    assert kinds(one, nodes=[node(100)]) == []


def test_a_late_rank_is_blamed_and_not_who_waits_for_it() -> None:
    (finding,) = found(*pair({"forward": 20.0}))
    assert (finding.kind, finding.ranks, finding.phase) == ("straggler", (1,), "forward")
    assert abs((finding.lost_ns or 0) - STEPS * 20 * MS) < STEPS * MS
    assert finding.since == 0


def test_a_late_rank_that_nobody_waits_for_is_not_blamed() -> None:
    assert kinds(*pair({"forward": 20.0}, culprit=None)) == []


def test_ranks_alike_are_silent() -> None:
    assert kinds(*pair(None)) == []


def test_what_makes_a_rank_late_is_the_finding_where_it_has_a_name() -> None:
    first, _ = pair({"dataloader": 30.0})
    loads = [line("input", 50, "Data.load (/job/data.py:8)"), *torch_lines(100)]
    second = rank(life({"dataloader": 31.0}), loads, number=1)
    (finding,) = found(first, second)
    assert (finding.kind, finding.ranks) == ("slow_loader", (1,))
    assert "the others wait" in finding.problem


def test_of_a_pipeline_the_stage_that_the_others_wait_for_is_named() -> None:
    messages = pl.DataFrame({"op": ["message"], "operations": [9], "bytes": [9], "waited": [5]})
    (finding,) = found(*pair({"forward": 20.0}), operations=messages)
    assert (finding.kind, finding.ranks) == ("pipeline_stage", (1,))


def test_stages_that_wait_in_turns_have_a_bubble() -> None:
    messages = pl.DataFrame({"op": ["message"], "operations": [9], "bytes": [9], "waited": [5]})
    first, _ = pair({"forward": 40.0})
    second, _ = pair({"forward": 40.0}, culprit=0)
    turns = [first, dataclasses.replace(second, process=process(1))]
    (finding,) = found(*turns, operations=messages)
    assert (finding.kind, finding.ranks) == ("pipeline_bubble", (0, 1))


def test_uneven_exchanges_explain_the_late_rank() -> None:
    first, second = pair({"forward": 20.0})
    uneven = [dataclasses.replace(first, exchanged=100), dataclasses.replace(second, exchanged=900)]
    (finding,) = found(*uneven)
    assert (finding.kind, finding.ranks) == ("uneven_exchange", (1,))
    even = [dataclasses.replace(each, exchanged=500) for each in (first, second)]
    assert kinds(*even) == ["straggler"]


def test_ranks_late_in_turns_have_inputs_of_different_lengths() -> None:
    lengths = np.random.default_rng(3).uniform(10, 60, (2, STEPS))
    longest, ranks = lengths.max(0), []
    for number in range(2):
        rows, waits, pending, at = [], [], [], 100.0
        for step in range(STEPS):
            own, most = lengths[number, step], longest[step]
            rows += [
                span(at, 3 * most + 1, "step", "step", step),
                span(at, own, "phase", "forward", step),
                span(at + own, 2 * most + (most - own), "phase", "backward", step),
            ]
            ends = at + 3 * own
            waits.append((ends, at + 3 * most))
            if own < most:
                pending.append((ends - 1, at + 3 * most, at + 3 * most, 1 - number))
            at += 3 * most + 1
        own_life = charged(rows, at, waits=waits, pending=pending)
        ranks.append(rank(own_life, torch_lines(100), number=number))
    (finding,) = found(*ranks)
    assert (finding.kind, finding.ranks) == ("uneven_lengths", (0, 1))


def moving(ms: float) -> list[Rank]:
    waits = [(160 + (100 + ms) * n, 160 + ms + (100 + ms) * n) for n in range(STEPS)]
    pending = [(low, low, high, 1) for low, high in waits]
    own = life({"backward": PHASES["backward"] + ms}, waits=waits, pending=pending)
    return [rank(own, torch_lines(100), number=number) for number in range(2)]


def operations(count: int, size: int) -> pl.DataFrame:
    return pl.DataFrame({"operations": [count * STEPS], "bytes": [size], "op": ["all_reduce"]})


def test_communication_that_nothing_hides() -> None:
    few = found(*moving(40), operations=operations(4, 1 << 20))
    assert [each.kind for each in few] == ["exposed_communication"]
    assert abs((few[0].lost_ns or 0) - STEPS * 40 * MS) < MS
    assert few[0].line is None
    sync = "sync (/job/train.py:8)"
    asks = line("transfer", 40, sync, package="torch", outer="torch", state="waiting", gil=False)
    asked = [dataclasses.replace(one, lines=rank(life(), [asks]).lines) for one in moving(40)]
    (finding,) = found(*asked, operations=operations(4, 1 << 20))
    assert finding.line == sync
    assert finding.problem.endswith(f", and waits for them in {sync}")
    many = found(*moving(15), operations=operations(200, 4096))
    assert [each.kind for each in many] == ["small_collectives"]
    assert kinds(*moving(15), operations=operations(4, 1 << 20)) == []


def test_packets_that_are_lost_are_why_communication_takes_long() -> None:
    lossy, sound = (stats(sent=2000.0, resent=resent) for resent in (60.0, 1.0))
    (finding,) = found(*moving(15), operations=operations(4, 1 << 20), nodes=[sound, lossy])
    assert finding.kind == "packet_loss"
    assert "3 % of what a node sends over TCP" in finding.problem
    late = [sound, stats(sent=2000.0, dropped=45.0)]
    (finding,) = found(*moving(15), operations=operations(4, 1 << 20), nodes=[lossy, *late])
    assert finding.problem.startswith("The CPUs of n0 take packets too late and drop 45 a second")
    assert "netdev_max_backlog" in finding.advice
    assert abs((finding.lost_ns or 0) - STEPS * 15 * MS) < MS
    assert kinds(*moving(15), operations=operations(4, 1 << 20), nodes=[sound]) == []
    # What training does not wait for costs nothing.
    assert kinds(*moving(1), operations=operations(4, 1 << 20), nodes=[lossy]) == []


def test_evaluation_is_a_fault_only_if_it_is_frequent_and_long() -> None:
    def evaluating(every: int, ms: float, steps: int = STEPS) -> list[str]:
        own = life(seldom={n: {"eval": ms} for n in range(0, steps, every)}, steps=steps)
        lines = [*torch_lines(80), line("evaluation", 20, "judge (/job/train.py:70)")]
        return [f"{each.kind} {each.line}" for each in found(rank(own, lines))]

    assert evaluating(5, 100) == ["logging judge (/job/train.py:70)"]
    assert evaluating(50, 3000) == []
    assert evaluating(5, 40) == []
    # After each of its epochs.
    assert evaluating(40, 2000, 400) == ["logging judge (/job/train.py:70)"]
    assert evaluating(40, 500, 400) == []


def test_what_evaluates_is_named_and_not_the_model_that_it_calls() -> None:
    own = life(seldom={n: {"eval": 100.0} for n in range(0, STEPS, 5)})
    main, net = "main (/job/train.py:1)", "Net.forward (/job/net.py:2)"
    judge = "judge (/job/train.py:70)"
    lines = [
        line("forward", 80, net, path=f"{main};{net}", gil=False, **TORCH),
        line("evaluation", 20, net, path=f"{main};{judge};{net}", gil=False, **TORCH),
    ]
    (finding,) = found(rank(own, lines))
    assert (finding.kind, finding.line) == ("logging", judge)
    assert finding.problem.endswith(f", in {judge}")


def test_threads_that_communicate_and_have_no_cpu() -> None:
    def job(
        waited: float, ms: float = 20, count: int = 4, cpus: float = 60, **more: float
    ) -> list[str]:
        queued = [stats(talk=1.0, cpu=100, **more), stats(talk=waited, cpu=100, **more)]
        pairs = zip(moving(ms), queued, strict=True)
        ranks = [dataclasses.replace(each, summary=one) for each, one in pairs]
        size = 1 << 20 if count < 50 else 4096
        return kinds(*ranks, nodes=[node(cpus)], operations=operations(count, size))

    assert job(12.0) == ["starved_communication"]  # of 20 of 120 ms
    assert job(12.0, count=200) == ["small_collectives"]  # which wake these threads
    assert job(5.0) == []  # something else takes the most of it
    assert job(12.0, 5) == []  # it costs next to nothing
    assert job(5.0, 40) == ["exposed_communication"]
    # Nobody but the job itself is on the node's CPUs: its threads wait for each other.
    assert job(12.0, cpus=30) == []
    assert job(24.0, 40, cpus=30) == ["exposed_communication"]
    assert job(12.0, cpus=30, throttled=40, limit=2) == ["cpu_quota"]


def test_transfers_are_delayed_as_long_as_their_threads_had_no_cpu() -> None:
    one = moving(20)[0]
    moved, stepped = int(one.ledger.of("transfer").sum()), one.ledger.stepped
    assert one.delayed_transfers == 0
    for percent, delayed in ((5.0, int(0.05 * stepped)), (90.0, moved)):
        with_wait = dataclasses.replace(one, summary=stats(talk=percent))
        assert with_wait.delayed_transfers == delayed


@pytest.mark.parametrize(
    ("used", "named"),
    [
        ({"make (bob)": 4.0, "python (eve)": 1.5, "sshd (root)": 0.1},
         ", most of them make (bob), 4 and python (eve), 1.5"),
        ({f"job{n} (bob)": 0.3 for n in range(20)}, ""),
        ({}, ""),
    ],
)  # fmt: skip
def test_who_takes_the_cpus_is_named_if_it_is_one_or_a_few(
    used: dict[str, float], named: str
) -> None:
    beside = node(90)
    beside.neighbours = {name: Stat(cores, cores, 1, 0, 1, 9) for name, cores in used.items()}
    one = rank(queued(40.0), torch_lines(100), summary=stats(cpu=100))
    (finding,) = found(one, nodes=[beside])
    assert finding.problem == f"Other programs on the node use 6.2 of its 8 CPU cores{named}"


def test_a_shortage_of_cpus_costs_the_transfers_that_it_delays_too() -> None:
    waits = [(160 + 120 * n, 180 + 120 * n) for n in range(STEPS)]
    pending = [(low, low, high, 1) for low, high in waits]
    queue = [(100, 0), *((100 + 120 * n, 40.0) for n in range(1, STEPS + 1))]
    own = life({"backward": 80}, waits=waits, pending=pending, queue=queue)
    summary = stats(cpu=100, talk=50.0)
    ranks = [rank(own, torch_lines(100), number=n, summary=summary) for n in range(2)]
    (finding,) = found(*ranks, nodes=[node(90)], operations=operations(4, 1 << 20))
    assert finding.kind == "cpu_neighbour"
    both = int(own.of("cpu_queue").sum()) + int(own.of("transfer").sum())
    assert finding.lost_ns == both
    assert "transfers whose threads had no CPU" in [each.metric for each in finding.evidence]


def test_what_the_job_waits_for_itself_is_hidden_by_nothing() -> None:
    asks = line("transfer", 20, state="waiting", waits_in="futex_do_wait", gil=False,
                file="x/torch/distributed/distributed_c10d.py", package="torch")  # fmt: skip
    ranks = [
        dataclasses.replace(each, lines=rank(each.ledger, [asks, *torch_lines(80)]).lines)
        for each in moving(15)
    ]
    assert kinds(*ranks, operations=operations(4, 1 << 20)) == ["exposed_communication"]


def memory(values: Sequence[float]) -> pl.DataFrame:
    times = (np.arange(len(values)) * 100 + 150) * MS
    return pl.DataFrame({"time": times, "value": [v * 2**20 for v in values]})


LONG = 200


def growing(values: Sequence[float], name: str = "memory", steps: int = LONG) -> Rank:
    return rank(life(steps=steps), torch_lines(100), **{name: memory(values)})


def test_memory_that_grows_all_the_time() -> None:
    (finding,) = found(growing([500 + 5 * n for n in range(LONG)]))
    assert finding.kind == "memory_leak"
    assert finding.lost_ns is None
    for flat in ([500.0] * LONG, [500 + 300 * min(n / 60, 1) for n in range(LONG)],
                 [500 + 200 * (n % 40) / 40 for n in range(LONG)]):  # fmt: skip
        assert kinds(growing(flat)) == []


def test_memory_that_grows_for_some_seconds_may_be_what_allocators_keep() -> None:
    assert kinds(growing([500 + 5 * n for n in range(100)], steps=100)) == []


def test_tensors_that_stay_on_the_gpu_are_a_leak_and_those_that_come_and_go_are_none() -> None:
    def tensors(grow: float) -> Rank:
        values = [2000 + grow * n + (6000 if n % 3 else 0) for n in range(LONG)]
        return growing(values, "device_memory")

    (finding,) = found(tensors(10))
    assert finding.kind == "memory_leak"
    assert finding.problem.startswith("The GPU memory of rank 0's tensors grows all the time, by ")
    assert kinds(tensors(0)) == []


def test_pressure_on_memory() -> None:
    one = rank(life(), torch_lines(100), summary=stats(own_memory=30))
    assert kinds(one) == ["memory_pressure"]
    assert memory_rules.MEMORY == "proc.rss.bytes"


def test_pressure_of_the_node_counts_only_with_what_the_kernel_did_about_it() -> None:
    one = rank(life(), torch_lines(100), summary=stats(threads=4))
    assert kinds(one, nodes=[node(50.0, memory=30)]) == []
    signs = {"reclaim": 20.0, "swapped": 500.0}
    (finding,) = found(one, nodes=[node(50.0, memory=30, **signs)])
    assert finding.kind == "memory_pressure"
    assert finding.problem == (
        "Processes waited for memory 30 % of the time: 500 pages a second came back from swap, "
        "tasks had to free memory themselves 20 times a second"
    )
    read_back = rank(life(), torch_lines(100), summary=stats(read_back=300.0))
    assert kinds(read_back, nodes=[node(50.0, memory=30)]) == ["memory_pressure"]
    assert kinds(read_back, nodes=[node(50.0, memory=2, **signs)]) == []
    # The rank's own group did not wait.
    spared = rank(life(), torch_lines(100), summary=stats(own_memory=0.5))
    assert kinds(spared, nodes=[node(50.0, memory=30, **signs)]) == []


def test_a_stopped_process() -> None:
    stopped = line("forward", 30, state="stopped", gil=False)
    one = rank(life(), [stopped, *torch_lines(70)])
    sampled = dataclasses.replace(one.process, stacks=StackSampling(10.0))
    (finding,) = found(dataclasses.replace(one, process=sampled))
    assert (finding.kind, finding.lost_ns) == ("stopped", 3_000 * MS)


def ending(kind: str, **more: Any) -> Ending:
    given = {"exit_code": None, "signal": "", "reason": "", "text": "", "time_ns": 5,
             "failed_ns": 5}  # fmt: skip
    return Ending(kind=kind, **{**given, **more})


@pytest.mark.parametrize(
    ("kind", "end"),
    [
        ("exception", ending("failed", reason="exception", exit_code=1, text="ValueError: x")),
        ("gpu_out_of_memory", ending("failed", reason="exception", text="CUDA out of memory. T")),
        ("disk_full", ending("failed", reason="exception", text="No space left on device")),
        ("loader_worker_died",
         ending("failed", reason="exception", text="DataLoader worker (pid 7) exited")),
        ("disk_full",
         ending("failed", reason="exception", text="RuntimeError: x, after OSError: No space left "
                "on device")),
        ("out_of_memory", ending("failed", reason="exception", text="E: can't allocate memory")),
        ("out_of_memory", ending("killed", signal="SIGKILL", reason="out of memory")),
        ("crash", ending("killed", signal="SIGSEGV")),
        ("crash", ending("failed", exit_code=3)),
        ("preempted", ending("interrupted", signal="SIGTERM")),
    ],
)  # fmt: skip
def test_how_a_job_ended(kind: str, end: Ending) -> None:
    processes = [process(0, state="died", ending=end), process(1, state="closed")]
    first = endings.first_failed(processes)
    (finding,) = end_rules.endings_of(processes, "it failed", first)
    assert (finding.kind, finding.ended) == (kind, True)


def test_who_ends_in_order_before_the_others_is_found() -> None:
    lost = ending("failed", reason="exception", text="RuntimeError: Connection closed by peer [x]")
    early = process(0, state="closed", ending=ending("finished", exit_code=0, text="exit code 0"))
    processes = [early, process(1, state="died", ending=lost)]
    first = endings.first_failed(processes)
    (finding,) = end_rules.endings_of(processes, "it left", first)
    assert (finding.kind, finding.ranks) == ("left_early", (0,))


def test_advice_fits_how_it_ended() -> None:
    def advice(end: Ending) -> str:
        one = process(0, state="died", ending=end)
        return end_rules.endings_of([one], "it failed", one)[0].advice

    assert "core dump" in advice(ending("killed", signal="SIGSEGV"))
    assert "sys.exit" in advice(ending("failed", exit_code=3))
    lost = ending("failed", reason="exception", text="RuntimeError: Connection closed by peer [x]")
    assert "lost" in advice(lost)


def test_an_exception_is_shown_with_its_line_and_the_last_lines() -> None:
    frames = '  File "t.py", line 7, in f\n    g(\n    ^^^^\n'
    known = {"file": "/job/t.py", "line": 7, "function": "f", "traceback": f"{frames}ValueError: x"}
    end = ending("failed", reason="exception", text="ValueError: x")
    one = process(0, state="died", ending=end)
    of_thread = json.dumps({**known, "thread": "Thread-1", "line": 9})
    reported = end_rules.raised([json.dumps({**known, "line": 3}), json.dumps(known), of_thread])
    (finding,) = end_rules.endings_of([one], "it failed", one, reported)
    assert finding.line == "f (/job/t.py:7)"
    lines = finding.evidence[1].value
    assert lines == '  File "t.py", line 7, in f\n    g(\nValueError: x'


@pytest.mark.parametrize("given", [None, "no", "[]", "[" * 9999, 7])
def test_what_a_damaged_file_says_of_an_exception_is_left_out(given: object) -> None:
    assert end_rules.raised([given]) is None
    odd = end_rules.raised([json.dumps({"file": 1, "line": "x", "traceback": [], "function": {}})])
    assert odd == (None, "")


def test_a_restart_is_found_with_its_cost() -> None:
    row = {"attempt": 1, "time": 5, "rank": 2, "reason": "Rank 2 failed", "down_ns": 10**9,
           "lost_ns": 2 * 10**9, "startup_ns": 0}  # fmt: skip
    (finding,) = end_rules.restarts_of([row])
    assert (finding.kind, finding.ranks, finding.lost_ns) == ("restarted", (2,), 3 * 10**9)
    assert finding.problem == (
        "The job was started again (attempt 1), which cost 3 s: Rank 2 failed"
    )
    assert not finding.ended


def test_who_was_asked_to_end_leaves_the_others_alone() -> None:
    peer = "RuntimeError: [gloo] Connection closed by peer [127.0.0.1]:1"
    processes = [
        process(0, state="died", ending=ending("interrupted", signal="SIGTERM", failed_ns=5)),
        process(1, state="died", ending=ending("failed", reason="exception", text=peer)),
    ]
    sentence = endings.failure(processes)
    assert sentence is not None
    (finding,) = end_rules.endings_of(processes, sentence, endings.first_failed(processes))
    assert finding.kind == "preempted"
    assert sentence.startswith("The job was interrupted")


def test_an_end_that_the_user_asked_for_is_no_finding() -> None:
    processes = [process(0, state="closed", ending=ending("interrupted", signal="SIGINT"))]
    assert end_rules.endings_of(processes, "interrupted", None) == []
    assert end_rules.endings_of([process(0)], None, None) == []


def test_what_costs_most_comes_first() -> None:
    lines = [line("other", 30), *torch_lines(70)]
    assert kinds(rank(life({"other": 40, "gc": 12}), lines)) == ["host_code", "garbage_collection"]
    assert kinds(rank(life({"other": 15, "gc": 25}), [line("other", 12), *torch_lines(88)])) == [
        "garbage_collection",
        "host_code",
    ]


def test_what_many_ranks_have_is_one_finding() -> None:
    ranks = [rank(life({"gc": 15}), torch_lines(100), number=n) for n in range(8)]
    (finding,) = found(*ranks)
    assert finding.ranks == tuple(range(8))


def skips(*counts: tuple[int, int]) -> dict[str, Any]:
    """Return the facts of a rank whose GradScaler skipped, each with the updates before it."""
    return {"skipped_update": [{"skipped": n, "updates": done} for n, done in counts]}


def test_updates_that_a_scaler_skips_are_time_without_effect() -> None:
    every_fourth = [(n, 3 * n) for n in range(1, 26)]
    first = found(rank(life(), facts=skips(*every_fourth)))[0]
    assert first.kind == "skipped_steps"
    # The first five are within the first twenty, in which it finds its scale.
    assert first.problem.startswith("20 of 100 steps (20 %) had no effect: their gradients were")
    without_optimizer = life().stepped - int(life().of("optimizer").sum())
    assert first.lost_ns == int(0.2 * without_optimizer)


@pytest.mark.parametrize(
    "counts", [[(n, 0) for n in range(1, 17)], [(1, 2000), (2, 4000), (3, 6000)], []]
)
def test_a_scaler_that_finds_its_scale_is_healthy(counts: list[tuple[int, int]]) -> None:
    assert kinds(rank(life(), facts=skips(*counts))) == []


def test_a_damaged_event_of_a_scaler_is_left_out() -> None:
    facts = {"skipped_update": [{}, {"skipped": "x", "updates": 1}, {"skipped": 90}]}
    assert kinds(rank(life(), facts=facts)) == []
