"""The three lines say what the run shows, with its numbers, and nothing that it does not show."""

from __future__ import annotations

from pathlib import Path

import pytest
import runs

from haiprof import schema
from haiprof.analyzer import Analyzer

SLOW_LOADER = (("dataloader", 5.0), ("forward", 4.0), ("backward", 2.0))


def one_rank(folder: Path, spans: list[runs.Row], **process: object) -> Path:
    run = runs.write_run(folder)
    runs.write_closed(runs.write_process(run, **process), schema.SPANS, spans)
    return run


def test_an_ordinary_run_tells_steps_phases_and_the_machine(tmp_path: Path) -> None:
    phases = (("dataloader", 0.2), ("forward", 4.8), *runs.PHASES[2:])
    run = runs.make_run(tmp_path / "r", steps=400, phases=phases)
    first, second, third = Analyzer(run).headline()
    assert first == (
        "400 steps, median 12 ms (p95 12 ms): "
        "forward 40 %, backward 38 %, optimizer 12 %, dataloader 2 %, other 8 %"
    )
    assert second == "The job's process tree used 1.7 of 2 CPU cores (85 %), 640 MiB RSS at peak"
    assert third == (
        "No bottleneck stands out: the DataLoader kept up, no pressure above 10 % was sampled"
    )


def test_the_finding_that_costs_most_is_the_third_line(tmp_path: Path) -> None:
    run = one_rank(tmp_path / "r", runs.loop(500, SLOW_LOADER))
    assert Analyzer(run).headline()[2] == (
        "The training loop loads its data itself: 42 % of the time, 2.5 s; "
        "to do: load in other processes: DataLoader(num_workers=…, persistent_workers=True)"
    )


def test_a_short_run_has_no_verdict(tmp_path: Path) -> None:
    run = one_rank(tmp_path / "r", runs.loop(50, SLOW_LOADER))
    assert Analyzer(run).headline()[2] == "Too short for a verdict: 50 steps in 600 ms"


def test_a_rank_that_nobody_waits_for_is_not_blamed(tmp_path: Path) -> None:
    run = runs.make_run(tmp_path / "r", steps=400, ranks=4, slow_rank=2)
    assert "rank 2" not in Analyzer(run).headline()[2].lower()


@pytest.mark.parametrize(
    ("state", "why"),
    [("closed", "the job ended before its first one"), ("live", "has not finished its first one")],
)
def test_without_steps_it_says_so_and_why(tmp_path: Path, state: str, why: str) -> None:
    lines = Analyzer(one_rank(tmp_path / "r", [], state=state)).headline()
    assert lines[0].startswith("No step was recorded")
    assert why in lines[0]
    assert "mark steps with haiprof.step()" in lines[0]
    assert "not sampled" in lines[1]
    assert lines[2] == "Without steps nothing can be said about a bottleneck"


def test_a_recording_that_ended_before_training_began_is_no_end_of_the_job(tmp_path: Path) -> None:
    stopped = {"kind": "stopped", "text": "its recording ended", "time_ns": runs.T0}
    lines = Analyzer(one_rank(tmp_path / "r", [], state="closed", ended=stopped)).headline()
    assert lines[0].startswith(
        "No step was recorded: the recording ended before the job's first one, or its loop uses"
    )


def test_a_job_that_never_imports_torch_is_told_so(tmp_path: Path) -> None:
    run = runs.write_run(tmp_path / "r")
    runs.write_node(run)
    assert (
        Analyzer(run)
        .headline()[0]
        .startswith("No step was recorded: no process of the job imported torch and trained, or")
    )


@pytest.mark.parametrize(
    ("loaded", "why"),
    [
        ({"haiprof": True, "torch": False}, "no process of the job imported torch"),
        ({"haiprof": True, "torch": True}, "a process of the job imported torch, but did not"),
        ({"haiprof": False, "torch": False}, "no Python of the job has haiprof, or none ran"),
    ],
)
def test_what_the_pythons_of_the_job_had_loaded_says_why_nobody_trained(
    tmp_path: Path, loaded: dict[str, bool], why: str
) -> None:
    run = runs.write_run(tmp_path / "r")
    runs.write_node(run, loaded=loaded)
    line = Analyzer(run).headline()[0]
    assert line.startswith(f"No step was recorded: {why}")
    assert ("doctor" in line) == (not loaded["haiprof"])
    # Another node of which nothing is known could have trained.
    runs.write_node(run, "n1")
    line = Analyzer(run).headline()[0]
    assert (why in line) == loaded["haiprof"]


def test_a_job_that_was_watched_from_outside_has_no_step_for_that_reason(tmp_path: Path) -> None:
    run = one_rank(tmp_path / "r", [], state="closed", outside="process 7: may not be traced")
    assert Analyzer(run).headline()[0] == (
        "No step was recorded: the job was only watched from outside: process 7: may not be traced"
    )


def test_a_dead_rank_comes_before_everything_else(tmp_path: Path) -> None:
    run = one_rank(tmp_path / "r", runs.loop(50, SLOW_LOADER), state="died")
    assert Analyzer(run).headline()[2].startswith("rank 0 died without closing the profile")


def test_lost_records_are_counted(tmp_path: Path) -> None:
    run = one_rank(tmp_path / "r", runs.loop(20), lost={"records": 1234, "overwritten": 1234})
    assert Analyzer(run).headline()[2].startswith("1234 records were lost")


def test_a_suspended_disk_is_reported_in_the_recorders_words(tmp_path: Path) -> None:
    run = runs.make_run(tmp_path / "r")
    runs.write_closed(run / "n0", schema.EVENTS, [runs.event(1, "disk", "no space on /logs")])
    assert Analyzer(run).headline()[2] == (
        "Disk problems interrupted the recording: no space on /logs"
    )


def test_pressure_alone_is_not_blamed_and_not_denied(tmp_path: Path) -> None:
    phases = (("dataloader", 0.2), ("forward", 4.8), *runs.PHASES[2:])
    run = runs.make_run(tmp_path / "r", steps=400, phases=phases)
    runs.write_closed(run / "n0", schema.SAMPLES, runs.node_samples(10, pressure=0.4))
    assert Analyzer(run).headline()[2] == "No bottleneck stands out: the DataLoader kept up"


def test_ranks_without_steps_are_not_hidden_by_those_with_steps(tmp_path: Path) -> None:
    run = one_rank(tmp_path / "r", runs.loop(20))
    runs.write_process(run, 1)
    assert Analyzer(run).headline()[0].endswith("; 1 of 2 ranks recorded no step")


def runs_one_after_another(run: Path, count: int = 3, slow: int | None = None) -> Path:
    """Make a sweep: processes of rank 0, ten seconds each, none of them at the same time."""
    runs.write_run(run)
    for number in range(count):
        pid = 50 + number
        began = runs.T0 + number * 20 * runs.SECOND
        folder = runs.write_process(run, 0, pid=pid, started_ns=began)
        folder = folder.rename(run / f"n0#0.{pid}")
        shift = began - runs.T0
        phases = [(name, ms * (2 if number == slow else 1)) for name, ms in runs.PHASES]
        spans = [{**row, "start": row["start"] + shift} for row in runs.loop(20, phases)]
        samples = [{**row, "time": row["time"] + shift} for row in runs.host_samples(10)]
        runs.write_closed(folder, schema.SPANS, spans)
        runs.write_closed(folder, schema.SAMPLES, samples)
    runs.write_closed(runs.write_node(run), schema.SAMPLES, runs.node_samples(10))
    return run


def test_processes_that_ran_one_after_another_are_one_rank(tmp_path: Path) -> None:
    first, second, _ = Analyzer(runs_one_after_another(tmp_path / "r")).headline()
    assert first.startswith("60 steps in 3 processes, median 12 ms")
    assert second.startswith("The job's 3 process trees used 1.7 of 2 CPU cores (85 %); the")


def test_a_rank_is_not_compared_with_its_own_earlier_processes(tmp_path: Path) -> None:
    third = Analyzer(runs_one_after_another(tmp_path / "r", slow=2)).headline()[2]
    assert "slower" not in third
    assert "no rank lags" not in third


def test_ranks_that_run_together_use_their_cores_together(tmp_path: Path) -> None:
    second = Analyzer(runs.make_run(tmp_path / "r", ranks=2)).headline()[1]
    assert second.startswith("The job's 2 process trees used 1.7 of 2 CPU cores (85 %)")


def test_a_host_where_only_the_launcher_ran_tells_nothing_of_the_job(tmp_path: Path) -> None:
    run = one_rank(tmp_path / "r", runs.loop(50, SLOW_LOADER), node="n1")
    runs.write_node(run, "n1")
    runs.write_closed(run / "n1", schema.SAMPLES, [runs.sample(1, "cpu.util.percent", 70.0)])
    login = runs.write_node(run, "login")
    runs.write_closed(login, schema.SAMPLES, runs.host_samples(10, cpu=0.0))
    assert "The node's CPUs were 70 % busy" in Analyzer(run).headline()[1]


def test_the_limit_of_a_container_counts_as_its_cores(tmp_path: Path) -> None:
    run = runs.make_run(tmp_path / "r")
    limit = [runs.sample(s, "cgroup.cpu_limit.cores", 1.8) for s in range(1, 5)]
    runs.write_closed(run / "n0#0", schema.SAMPLES, runs.host_samples(10) + limit)
    assert "used 1.7 of 1.8 CPU cores (94 %)" in Analyzer(run).headline()[1]


def shifted(rows: list[runs.Row], every_ms: float) -> list[runs.Row]:
    """Make room for ``every_ms`` before each step."""
    return [
        {**row, "start": row["start"] + round((row["step"] + 1) * every_ms * runs.MS)}
        for row in rows
    ]


def gpu_run(folder: Path, wait_ms: float = 0.0) -> Path:
    """Make a run in which each step fetches its batch for ``wait_ms`` longer."""
    run = runs.write_run(folder)
    rank = runs.write_process(run)
    step = 12 + wait_ms
    phases = [("dataloader", 1 + wait_ms), *runs.PHASES[1:]]
    runs.write_closed(rank, schema.SPANS, runs.loop(400, phases))
    runs.write_closed(rank, schema.DEVICE_SPANS, shifted(runs.device_loop(400), wait_ms))
    busy = [{**row, "step": n // 7 + 2} for n, row in enumerate(runs.kernel_loop(2, 21))]
    runs.write_closed(rank, schema.KERNELS, shifted(busy, wait_ms))
    events = [runs.recording_begins(2 * step), runs.recording_ends(22 * step)]
    runs.write_closed(rank, schema.EVENTS, events)
    return run


def test_a_loader_that_the_gpu_waits_for_costs_as_long_as_it_is_idle(tmp_path: Path) -> None:
    _, second, third = Analyzer(gpu_run(tmp_path / "r", wait_ms=8)).headline()
    assert second.endswith("; its GPU was busy 45 % of the 20 steps recorded")
    assert third.startswith("The training loop loads its data itself: 45 % of the time")


def test_a_gpu_that_waits_for_the_host_within_a_phase_says_so(tmp_path: Path) -> None:
    third = Analyzer(gpu_run(tmp_path / "r")).headline()[2]
    assert third.startswith(
        "The GPU of rank 0 is busy 75 % of a step, and waits for the host 16 % of it, mostly "
        "while that is in forward: 16 % of the time"
    )


def test_a_busy_gpu_is_no_remark(tmp_path: Path) -> None:
    run = gpu_run(tmp_path / "r", wait_ms=8)
    rows = [runs.activity(40, 400)]
    runs.write_closed(run / "n0#0", schema.KERNELS, rows)
    _, second, third = Analyzer(run).headline()
    assert second.endswith("; its GPU was busy 100 % of the 20 steps recorded")
    assert third.startswith("No bottleneck stands out")  # what the host waits for is hidden


def test_a_hot_gpu_is_reported_and_one_at_its_power_limit_is_not(tmp_path: Path) -> None:
    run = runs.make_gpu_run(tmp_path / "r", ranks=2, windows=False)
    limit = [runs.sample(s, "gpu.throttle_power.percent", 99, "gpu0") for s in range(1, 16)]
    samples = runs.node_samples(15, gpus=2) + limit
    runs.write_closed(run / "n0", schema.SAMPLES, samples)
    assert "gpu" not in Analyzer(run).headline()[2].lower()
    hot = [runs.sample(s, "gpu.throttle_thermal.percent", 34, "gpu1") for s in range(1, 16)]
    runs.write_closed(run / "n0", schema.SAMPLES, samples + hot)
    assert (
        Analyzer(run)
        .headline()[2]
        .startswith(
            "gpu1 of n0 ran at lower clocks 34 % of the time, because it or its memory was hot; "
        )
    )


def test_a_gpu_that_was_hot_for_the_last_quarter_was_so_for_a_quarter_of_the_time(
    tmp_path: Path,
) -> None:
    run = runs.make_gpu_run(tmp_path / "r", ranks=2, windows=False)
    hot = [runs.sample(s, "gpu.throttle_thermal.percent", 80, "gpu1") for s in range(76, 101)]
    samples = runs.node_samples(100, gpus=2)
    runs.write_closed(run / "n0", schema.SAMPLES, samples + hot)
    assert "gpu1 of n0 ran at lower clocks 20 % of the time" in Analyzer(run).headline()[2]
    runs.write_closed(run / "n0", schema.SAMPLES, samples + hot[-9:])
    assert "lower clocks" not in Analyzer(run).headline()[2]


def test_without_recorded_kernels_nothing_is_said_of_how_busy_a_gpu_was(tmp_path: Path) -> None:
    run = gpu_run(tmp_path / "r", wait_ms=8)
    (run / "n0#0" / "events-0.arrow").unlink()
    lines = Analyzer(run).headline()
    assert not [line for line in lines if "GPU" in line]
    assert lines[2].startswith("The training loop loads its data itself")
