"""Rules over the GPUs of a run: errors, clocks, idle devices, and what their work hides."""

from __future__ import annotations

import dataclasses
from typing import Any

import polars as pl
import pytest
from recorded_cases import found, kinds, life, line, pair, process, rank, torch_lines

from haiprof.findings.recorded import device_errors, end_rules
from haiprof.findings.recorded.case import Device, DeviceError, Rank
from haiprof.runs import Ending
from haiprof.views.run.gpu_clocks import BRAKE, HW_THERMAL, THERMAL, UTIL, Clocks
from haiprof.views.run.gpu_use import Use
from haiprof.views.run.overview import Summary
from haiprof.views.run.series import Stat

MHZ = 1e6
SECOND = 10**9


def clocks(hertz: float | None = 1980 * MHZ, free: float | None = None, **more: Any) -> Clocks:
    given = {"readings": 100, "busy": 0.9, "slowed": {}, "capped": 0.0, **more}
    return Clocks(hertz=hertz, free_hertz=free, **given)


def device(number: int = 0, **more: Any) -> Device:
    given: dict[str, Any] = {
        "node": "n0",
        "instance": f"gpu{number}",
        "name": "H100",
        "ranks": (number,),
        "clocks": clocks(),
        "power_limit_w": 700.0,
    }
    return Device(**{**given, **more})


def on_gpu(number: int = 0, use: Use | None = None, util: float | None = None, **more: Any) -> Rank:
    """Return a rank with a GPU: what was recorded of its kernels, and its utilization."""
    summary = Summary(process(number), gpu=use)
    if util is not None:
        summary.gpu_stats = {"gpu0": {UTIL: Stat(util, util, 1, 0, 1, 100)}}
    own = more.pop("own", None) or life()
    return rank(own, more.pop("lines", torch_lines(100)), number, summary=summary, **more)


def use(busy: float, recorded: int = 40, exposed: float = 0.0, **idle: float) -> Use:
    """Return recorded steps with these shares; what is not named is idle in no phase."""
    whole = 1000 * recorded
    rest = 1 - busy - sum(idle.values())
    shares = {**idle, "other": rest} if rest > 1e-9 else idle
    return Use(
        recorded=recorded,
        recorded_ns=whole,
        busy_ns=round(busy * whole),
        exposed_ns=round(exposed * whole),
        idle_ns={name: round(share * whole) for name, share in shares.items()},
    )


# -- errors ----------------------------------------------------------------------------------------


def xid(number: int, at: int = 5 * SECOND) -> DeviceError:
    return DeviceError(at, "xid", f"gpu0: Xid {number}, something", number)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (xid(13), "illegal_access"),
        (xid(31), "illegal_access"),
        (xid(48), "gpu_ecc"),
        (xid(94), "gpu_ecc"),
        (xid(63), "gpu_row_remap"),
        (xid(74), "nvlink"),
        (xid(79), "gpu_lost"),
        (xid(119), "gsp_timeout"),
        (DeviceError(5, "gpu_lost", "gpu0 (H100) has fallen off the bus"), "gpu_lost"),
        (DeviceError(5, "ecc", "gpu0: 1 uncorrected memory errors"), "gpu_ecc"),
    ],
)
def test_an_error_of_a_gpu_is_a_finding_of_its_kind(error: DeviceError, kind: str) -> None:
    (finding,) = found(on_gpu(), devices=[device(errors=[error])])
    assert (finding.kind, finding.ranks) == (kind, (0,))
    assert error.text in finding.problem
    assert finding.advice == device_errors.ADVICE[kind]


@pytest.mark.parametrize(
    "error", [xid(43), xid(45), xid(999), DeviceError(5, "ecc", "corrected", None, True)]
)
def test_what_follows_from_others_or_was_corrected_is_none(error: DeviceError) -> None:
    assert found(on_gpu(), devices=[device(errors=[error])]) == []


def test_one_kind_on_several_gpus_is_one_finding_with_the_first_of_them() -> None:
    several = [device(0, errors=[xid(74, 9)]), device(1, errors=[xid(74, 3)]), device(2)]
    (finding,) = found(*(on_gpu(n) for n in range(3)), devices=several)
    assert finding.ranks == (0, 1)
    assert "(2 reports, and gpu0 of n0)" in finding.problem
    assert finding.evidence[0].metric.endswith("gpu1 of n0")


def ended(text: str, signal: str | None = None, at: int = 6 * SECOND, errors: Any = ()) -> Any:
    end = Ending(
        kind="killed" if signal else "failed", exit_code=None, signal=signal or "",
        reason="" if signal else "exception", text=text, time_ns=at, failed_ns=at,
    )  # fmt: skip
    failed = process(0, state="died", ending=end)
    one = device(errors=errors)
    (finding,) = end_rules.endings_of([failed], "It failed", failed, None, [one])
    return finding


def test_a_cuda_error_is_the_symptom_of_what_the_driver_reported() -> None:
    finding = ended("RuntimeError: CUDA error: unknown error", errors=[xid(45, 1), xid(79)])
    assert (finding.kind, finding.ended) == ("gpu_lost", True)
    assert finding.problem == "It failed. Its GPU's driver reported gpu0: Xid 79, something"
    assert "reboot" in finding.advice


def test_a_crash_after_an_error_of_its_gpu_follows_from_it() -> None:
    assert ended("killed by SIGABRT", "SIGABRT", errors=[xid(48)]).kind == "gpu_ecc"


@pytest.mark.parametrize(
    ("text", "signal", "errors", "kind"),
    [
        ("ValueError: no such file", None, [xid(48)], "exception"),
        ("CUDA error: unknown error", None, [xid(48, at=6 * SECOND - 601 * SECOND)], "exception"),
        ("CUDA error: unknown error", None, [xid(45)], "exception"),
        ("killed by SIGKILL", "SIGKILL", [xid(48)], "crash"),
        ("CUDA error: an illegal memory access was encountered", None, [], "illegal_access"),
        ("CUDA error: uncorrectable ECC error encountered", None, [], "gpu_ecc"),
        ("CUDA error: device-side assert triggered", None, [], "exception"),
    ],
)
def test_other_ends_are_what_they_are(
    text: str, signal: str | None, errors: list[DeviceError], kind: str
) -> None:
    assert ended(text, signal, errors=errors).kind == kind


# -- clocks ----------------------------------------------------------------------------------------


def test_a_hot_gpu_costs_what_its_own_clock_was_before() -> None:
    hot = clocks(1485 * MHZ, free=1980 * MHZ, slowed={THERMAL: 0.5})
    (finding,) = found(on_gpu(), devices=[device(clocks=hot)])
    assert finding.kind == "gpu_thermal"
    assert finding.problem == (
        "gpu0 of n0 ran at lower clocks 50 % of the time, because it or its memory was hot"
    )
    assert finding.share == pytest.approx(0.25 * 0.9)


@pytest.mark.parametrize(
    ("reason", "kind"),
    [(HW_THERMAL, "gpu_thermal"), (BRAKE, "gpu_power"), (THERMAL, "gpu_thermal")],
)
def test_without_a_clock_to_compare_it_has_no_cost(reason: str, kind: str) -> None:
    (finding,) = found(on_gpu(), devices=[device(clocks=clocks(slowed={reason: 0.3}))])
    assert (finding.kind, finding.lost_ns, finding.share) == (kind, None, None)


@pytest.mark.parametrize(
    "own",
    [
        clocks(slowed={THERMAL: 0.05}),
        clocks(1400 * MHZ, capped=1.0),  # as a GPU at full work
        clocks(1400 * MHZ, free=1980 * MHZ),
        clocks(1400 * MHZ, slowed={THERMAL: 0.5}, readings=5),
        None,
    ],
)
def test_a_gpu_alone_without_a_fault_is_not_blamed(own: Clocks | None) -> None:
    assert found(on_gpu(), devices=[device(clocks=own)]) == []


@pytest.mark.parametrize(
    ("own", "limit", "kind", "why"),
    [
        (clocks(1485 * MHZ), 700.0, "gpu_clock", ", and no reason for that is reported"),
        (clocks(1485 * MHZ, capped=0.9), 500.0, "gpu_power", ": it may draw 500 W, they 700 W"),
    ],
)
def test_a_gpu_slower_than_its_like_is_named_with_the_reason(
    own: Clocks, limit: float, kind: str, why: str
) -> None:
    several = [device(n) for n in range(3)] + [device(3, clocks=own, power_limit_w=limit)]
    (finding,) = found(*(on_gpu(n) for n in range(4)), devices=several)
    assert (finding.kind, finding.ranks) == (kind, (3,))
    assert finding.problem == f"gpu3 of n0 runs at 75 % of the other GPUs' clock{why}"
    assert finding.share == pytest.approx(0.25 * 0.9)


def test_a_gpu_that_draws_as_much_as_the_others_may_has_other_work() -> None:
    several = [device(n, clocks=clocks(capped=1.0)) for n in range(3)]
    several.append(device(3, clocks=clocks(1485 * MHZ, capped=1.0)))
    assert found(*(on_gpu(n) for n in range(4)), devices=several) == []


@pytest.mark.parametrize("name", ["H100", "A100"])
def test_of_two_gpus_or_of_two_models_neither_is_slow(name: str) -> None:
    several = [device(0), device(1, clocks=clocks(1400 * MHZ), name=name)]
    several += [device(2, name="A100"), device(3, name="L4")]
    assert found(*(on_gpu(n) for n in range(4)), devices=several) == []


def test_a_fault_of_its_gpu_is_why_a_rank_is_late() -> None:
    hot = device(1, clocks=clocks(slowed={THERMAL: 0.5}))
    (finding,) = found(*pair({"forward": 20.0}), devices=[device(0), hot])
    assert (finding.kind, finding.ranks, finding.phase) == ("gpu_thermal", (1,), "forward")
    assert finding.problem.endswith(
        "the others wait for it. gpu1 of n0 ran at lower clocks 50 % of the time, because it or "
        "its memory was hot"
    )
    assert finding.lost_ns


def test_a_rank_whose_gpu_computes_longer_is_late_if_the_others_gpus_wait_as_long() -> None:
    others = [on_gpu(n, use=use(0.98, exposed=0.35)) for n in range(3)]
    (finding,) = found(*others, on_gpu(3, use=use(0.98, exposed=0.05)))
    assert (finding.kind, finding.ranks) == ("straggler", (3,))
    assert finding.share == pytest.approx(0.30)
    # It computes as long as they do, and nobody waits for it.
    assert found(*others, on_gpu(3, use=use(0.70, exposed=0.07, dataloader=0.3))) == []


# -- idle GPUs, and what they hide -----------------------------------------------------------------


def test_a_gpu_that_waits_for_its_host_is_named_with_the_phase() -> None:
    (finding,) = found(on_gpu(use=use(0.55, forward=0.30, backward=0.15)))
    assert (finding.kind, finding.phase) == ("host_bound", "forward")
    assert finding.problem == (
        "The GPU of rank 0 is busy 55 % of a step, and waits for the host 45 % of it, mostly "
        "while that is in forward"
    )
    assert finding.share == pytest.approx(0.45)


def test_in_no_phase_it_says_so() -> None:
    (finding,) = found(on_gpu(use=use(0.5)))
    assert finding.problem.endswith("mostly while that is in no phase")


@pytest.mark.parametrize("of", [use(0.90, forward=0.10), use(0.5, recorded=9), None])
def test_a_busy_gpu_or_too_few_steps_are_no_finding(of: Use | None) -> None:
    assert found(on_gpu(use=of)) == []


LOADS = life({"dataloader": 50})


def test_a_loader_that_the_gpu_waits_for_costs_as_long_as_the_gpu_is_idle() -> None:
    (alone,) = found(rank(LOADS, torch_lines(100)))
    (finding,) = found(on_gpu(own=LOADS, use=use(0.80, dataloader=0.18, forward=0.02)))
    assert alone.kind == finding.kind == "slow_loader"
    assert alone.share is not None
    assert alone.lost_ns is not None
    assert finding.share == pytest.approx(0.18)
    assert finding.lost_ns == pytest.approx(alone.lost_ns * 0.18 / alone.share, rel=1e-3)
    assert finding.evidence[-1].source == "kernels"


def test_what_a_busy_gpu_hides_costs_nothing() -> None:
    assert found(on_gpu(own=LOADS, use=use(0.98, dataloader=0.02))) == []
    assert found(on_gpu(own=LOADS, util=99.0)) == []


def test_utilization_bounds_what_can_be_lost() -> None:
    (finding,) = found(on_gpu(own=LOADS, util=85.0))
    assert finding.share == pytest.approx(0.15)
    assert finding.evidence[-1].source == "samples"
    (finding,) = found(on_gpu(own=LOADS, util=10.0))
    assert finding.share == pytest.approx(found(rank(LOADS, torch_lines(100)))[0].share)


def test_code_that_explains_the_idle_gpu_is_the_finding() -> None:
    slow = life({"other": 60})
    python = [line("other", 40), *torch_lines(60)]
    assert kinds(on_gpu(own=slow, lines=python, use=use(0.5, other=0.5))) == ["host_code"]


def test_of_communication_alone_the_rank_that_waits_least_says_what_it_costs() -> None:
    several = [on_gpu(n, use=use(0.95, exposed=0.4 + 0.02 * n)) for n in range(3)]
    (finding,) = found(*several)
    assert (finding.kind, finding.ranks) == ("exposed_communication", (0, 1, 2))
    assert finding.share == pytest.approx(0.4)
    # One rank computes all the time: that the others wait for it is no transfer.
    late = found(*several, on_gpu(3, use=use(0.95, exposed=0.02)))
    assert "exposed_communication" not in [each.kind for each in late]


# -- memory of the allocator -----------------------------------------------------------------------


@pytest.mark.parametrize(("times", "expected"), [(30.0, ["allocator"]), (1.0, []), (0.0, [])])
def test_retries_of_the_allocator(times: float, expected: list[str]) -> None:
    one = on_gpu()
    assert one.summary is not None
    one.summary.stats["torch.alloc_retries.count"] = Stat(times, times, 1, 0, 1, 100)
    assert kinds(one) == expected


@pytest.mark.parametrize(
    ("a_second", "at_first", "retries", "expected"),
    [
        (20, 0, 0, ["allocator"]),  # steps of 100 ms: twice in each
        (0, 500, 0, []),
        (1, 0, 0, []),
        (20, 0, 300, ["allocator"]),
    ],
)
def test_memory_that_is_given_back_in_each_step(
    a_second: int, at_first: int, retries: int, expected: list[str]
) -> None:
    rows = [(n * 10**9, float(at_first * min(n, 3) + a_second * n)) for n in range(11)]
    frees = pl.DataFrame(rows, {"time": pl.Int64(), "value": pl.Float64()}, orient="row")
    one = dataclasses.replace(on_gpu(), device_frees=frees)
    if retries:
        assert one.summary is not None
        one.summary.stats["torch.alloc_retries.count"] = Stat(retries, retries, 1, 0, 1, 100)
    every = found(one)
    assert [each.kind for each in every] == expected
    assert all(("back to the driver 2 times" in each.problem) != bool(retries) for each in every)
