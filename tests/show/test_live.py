"""What is shown of a running job: numbers as the views have them, frames that fit."""

from __future__ import annotations

import io
import re
import time
from pathlib import Path

import pyarrow as pa
import pytest
from rich.cells import cell_len
from rich.console import Console
from runs import (
    FRAMES,
    MS,
    SECOND,
    T0,
    event,
    host_samples,
    loop,
    make_gpu_run,
    make_run,
    node_samples,
    sample,
    span,
    stack,
    steady,
    with_sockets,
    write_live,
    write_node,
    write_process,
    write_run,
)

from haiprof import schema
from haiprof.analyzer import Analyzer
from haiprof.show.live import frame
from haiprof.show.live.history import MEAN_SECONDS, TREND_SECONDS
from haiprof.show.live.job import Job
from haiprof.show.live.terminal import render
from haiprof.views.run.overview import PHASE_ORDER


def job(run: Path, recorder_lives: bool | None = None) -> Job:
    """Watch a run and read all of it."""
    watched = Job(run, lambda: recorder_lives)
    watched.look(float("inf"))
    return watched


def drawn(watched: Job, width: int = 80, height: int = 24, **more: object) -> list[str]:
    return [line.plain for line in frame.lines(watched, width, height, **more)]  # type: ignore[arg-type]


def row(lines: list[str], name: str) -> str:
    """Return the one line that begins with ``name``."""
    (found,) = (line for line in lines if line.startswith(name))
    return found


def live_run(folder: Path, ranks: int = 1, **changes: object) -> Path:
    """Make a run whose processes are live and have not been written to yet."""
    run = write_run(folder, created_ns=T0, **changes)
    for rank in range(ranks):
        write_process(run, rank, state="live", ended_ns=None, world_size=ranks)
    return run


def nested_loop() -> list[dict[str, object]]:
    """Make steps: nested phases, phases of two threads, a range in a step without phases."""
    rows = loop(300, noise=0.4)
    for number in range(0, 290, 3):
        at = 6000 + number * 12.0
        rows += [
            span(at + 6.5, 1.5, "phase", "recompute", 300 + number),
            span(at + 5, 4.5, "phase", "backward", 300 + number),
            span(at, 1.0, "phase", "dataloader", 300 + number, thread=2),
            span(at, 12, "step", "step", 300 + number),
        ]
    rows += [span(9600, 4, "user", "augment", 900), span(9600, 10, "step", "step", 900)]
    return rows


def test_phases_and_steps_are_those_of_the_views(tmp_path: Path) -> None:
    run = live_run(tmp_path / "run")
    rows = nested_loop()
    write_live(run / "n0#0", schema.SPANS, [rows])
    (rank,) = job(run).ranks
    seen = Analyzer(run)
    steps, phases = seen.steps(0), seen.phases(0)
    now = int((steps["start"] + steps["duration"]).max())
    count, ns = rank.steps.by_second(now)
    assert int(count.sum()) == steps.height
    assert int(ns.sum()) == int(steps["duration"].sum())
    expected: dict[str, int] = {}
    for name, category, duration, step in phases.select(
        "name", "category", "duration", "step"
    ).iter_rows():
        if category != "user" or step == 900:
            expected[name] = expected.get(name, 0) + duration
    assert rank.steps.spent(now) == {name: ns for name, ns in expected.items() if ns}
    assert rank.steps.mean(now) == steps["duration"].sum() / steps.height


@pytest.mark.parametrize("trains", [False, True])
def test_inference_steps_are_steps_until_the_process_trains(tmp_path: Path, trains: bool) -> None:
    run = live_run(tmp_path / "run")
    rows = [
        span(10.0 * n, 10, "inference_step", "inference_step", schema.INFERENCE + n)
        for n in range(5)
    ]
    later = [dict(row, start=row["start"] + 50_000_000) for row in loop(3)]
    write_live(run / "n0#0", schema.SPANS, [rows, later] if trains else [rows])
    (rank,) = job(run).ranks
    count, _ = rank.steps.by_second(rank.newest)
    assert int(count.sum()) == (3 if trains else 5)
    assert rank.steps.number == (2 if trains else 4)


def ends_of_batches(stream: bytes) -> list[int]:
    """Where the record batches of an IPC stream end."""
    source = pa.BufferReader(stream)
    messages = pa.ipc.MessageReader.open_stream(source)
    return [source.tell() for message in messages if message.type == "record batch"]


def test_numbers_do_not_depend_on_how_the_rows_came(tmp_path: Path) -> None:
    rows = sorted(nested_loop(), key=lambda row: row["start"] + row["duration"])  # type: ignore[operator]
    at_once, bit_by_bit = live_run(tmp_path / "a"), live_run(tmp_path / "b")
    write_live(at_once / "n0#0", schema.SPANS, [rows])
    (one,) = job(at_once).ranks
    now = one.newest
    watched = job(bit_by_bit)
    parts = [rows[n : n + 7] for n in range(0, len(rows), 7)]
    file = write_live(bit_by_bit / "n0#0", schema.SPANS, parts)
    whole = file.read_bytes()
    for end in ends_of_batches(whole):
        # Rewritten as a whole, without the mark of its end: bytes follow what was read.
        file.write_bytes(whole[:end])
        watched.look(float("inf"))
    (other,) = watched.ranks
    assert other.steps.spent(now) == one.steps.spent(now)
    assert [a.tolist() for a in other.steps.by_second(now)] == [
        a.tolist() for a in one.steps.by_second(now)
    ]
    assert (other.steps.last, other.steps.number) == (one.steps.last, one.steps.number)


def test_the_mean_is_of_the_last_minute_and_the_trend_of_five(tmp_path: Path) -> None:
    run = live_run(tmp_path / "run")
    slow = [span(n * 1000, 400, "step", "step", n) for n in range(340)]
    fast = [span(n * 1000, 100, "step", "step", n) for n in range(340, 400)]
    write_live(run / "n0#0", schema.SPANS, [slow, fast])
    watched = job(run)
    (rank,) = watched.ranks
    assert rank.steps.mean(watched.now) == 100 * MS
    count, _ = rank.steps.by_second(watched.now)
    assert len(count) == TREND_SECONDS
    assert int(count.sum()) == TREND_SECONDS
    lines = drawn(watched)
    assert "last 100 ms   mean 100 ms (1 min)   step 399" in row(lines, "steps")
    trend = row(lines, "trend")
    assert trend.endswith("100 ms … 400 ms in 5 min")
    assert re.search(r"█{30,}[▃▄▅▆▇]?▂{6,9} ", trend)


def test_steps_longer_than_a_minute_are_shown_by_the_last(tmp_path: Path) -> None:
    run = live_run(tmp_path / "run")
    rows = [span(n * 100_000, 100_000, "step", "step", n) for n in range(3)]
    write_live(run / "n0#0", schema.SPANS, [rows])
    write_live(run / "n0#0", schema.SAMPLES, [[sample(399, "proc.cpu.percent", 5.0)]])
    watched = job(run)
    (rank,) = watched.ranks
    assert rank.steps.mean(watched.now) == 100 * SECOND
    assert watched.now - rank.steps.ended > MEAN_SECONDS * SECOND
    lines = drawn(watched)
    assert row(lines, "steps").endswith("last 100 s   step 2")
    assert "█" * 20 in row(lines, "trend")  # a step covers the time before its end, too


def test_a_job_that_hangs_is_reported_by_its_samples(tmp_path: Path) -> None:
    run = live_run(tmp_path / "run")
    write_live(run / "n0#0", schema.SPANS, [loop(100)])
    write_live(run / "n0#0", schema.SAMPLES, [host_samples(45)])
    assert "no step for 0:00:43" in row(drawn(job(run)), "steps")


def test_one_letter_and_style_for_each_phase() -> None:
    assert set(PHASE_ORDER) < set(frame.PHASES)
    letters = [letter for letter, _ in frame.PHASES.values()]
    assert len(set(letters)) == len(letters)


def test_shares_fill_the_bar(tmp_path: Path) -> None:
    run = live_run(tmp_path / "run")
    write_live(run / "n0#0", schema.SPANS, [loop(60)])
    bar = row(drawn(job(run)), "phases")[9:]
    # Of 12 ms: 1, 4, 4.5, 1.5 and 1 under no phase.
    assert {c: bar.count(c) for c in "dfbo·"} == {"d": 6, "f": 24, "b": 26, "o": 9, "·": 6}
    assert "dataloader 8 %  forward 33 %  backward 38 %  optimizer 12 %" in "\n".join(
        drawn(job(run))
    )


def test_of_many_ranges_those_that_the_bar_shows_are_named(tmp_path: Path) -> None:
    run = live_run(tmp_path / "run")
    rows = [span(n, 0.1, "user", f"tiny{n}", 0) for n in range(30)]
    rows += [span(40, 50, "user", "load", 0), span(100, 80, "user", "model", 0)]
    rows += [span(180 + n / 10, 0.1, "user", f"late{n}", 0) for n in range(100)]
    write_live(run / "n0#0", schema.SPANS, [[*rows, span(0, 200, "step", "step", 0)]])
    watched = job(run)
    (rank,) = watched.ranks
    spent = rank.steps.spent(watched.now)
    assert sum(spent.values()) == 200 * MS
    assert spent["model"] == 80 * MS
    assert spent["more ranges"] == round((130 + 2 - 62) * 0.1 * MS)
    legend = row(drawn(watched, 200), "         u model")
    assert "u model 40 %  u load 25 %  u more ranges 4 %" in legend
    assert legend.endswith("· other 28 %")


def test_ranks_stand_the_worst_first_and_the_rest_in_one_row(tmp_path: Path) -> None:
    run = live_run(tmp_path / "run", ranks=40)
    for rank in range(40):
        slower = 1.5 if rank == 17 else 1 + rank / 1000
        phases = [("forward", 10.0 * slower)]
        write_live(run / f"n0#{rank}", schema.SPANS, [loop(50, phases, rest=0)])
    lines = drawn(job(run))
    head = next(n for n, line in enumerate(lines) if line.startswith("rank"))
    assert lines[head + 1].split()[0] == "17"
    assert "+50.0 %" in lines[head + 1]
    assert lines[head + 2].split()[0] == "39"
    more = next(line for line in lines if line.startswith("… "))
    shown = lines.index(more) - head - 1
    slowest = 39 - (shown - 1)  # rank 17 is shown as well
    assert more == f"… {40 - shown} more: 10 ms … {10 + slowest / 100:.3g} ms"
    skew = row(lines, "skew")
    assert "slowest rank 17 15 ms, fastest rank 0 10 ms: 50 % apart" in skew


def test_of_two_ranks_the_one_that_waits_is_not_blamed(tmp_path: Path) -> None:
    for waits_in in ("gradient_sync", "backward"):
        run = live_run(tmp_path / waits_in, ranks=2)
        for rank in range(2):
            forward = 30.0 if rank == 1 else 10.0
            phases = [("forward", forward), ("backward", 20.0)]
            phases = [*phases, ("gradient_sync", 0.0)] if waits_in == "gradient_sync" else phases
            phases[-1] = (waits_in, phases[-1][1] + 30.0 - forward)
            write_live(run / f"n0#{rank}", schema.SPANS, [loop(50, phases, rest=0)])
        lines = drawn(job(run))
        skew = lines.index(row(lines, "skew"))
        assert lines[skew + 1].strip() == "forward takes 30 ms on rank 1, 20 ms on the median rank"


def test_the_rank_that_the_others_wait_for_is_found(tmp_path: Path) -> None:
    run = live_run(tmp_path / "run", ranks=8)
    for rank in range(8):
        forward = 30.0 if rank == 5 else 10.0
        phases = [("forward", forward), ("backward", 50.0 - forward)]  # all-reduce is in there
        write_live(run / f"n0#{rank}", schema.SPANS, [loop(50, phases, rest=0)])
    lines = drawn(job(run))
    skew = lines.index(row(lines, "skew"))
    assert lines[skew].endswith("0 % apart")
    assert lines[skew + 1].strip() == "forward takes 30 ms on rank 5, 10 ms on the median rank"
    head = lines.index(row(lines, "rank"))
    assert lines[head + 1].split()[0] == "5"


def test_a_restarted_rank_is_its_newest_attempt(tmp_path: Path) -> None:
    run = live_run(tmp_path / "run")
    write_live(run / "n0#0", schema.SPANS, [loop(5)])
    old = run / "n0#0"
    old.rename(run / "n0#0.old")
    write_process(run, 0, attempt=1, pid=77, started_ns=T0 + SECOND, state="live", ended_ns=None)
    (rank,) = job(run).ranks
    assert rank.process.pid == 77


def test_what_is_absent_is_left_out(tmp_path: Path) -> None:
    run = live_run(tmp_path / "run")
    node = write_node(
        run,
        state="live",
        sources=[{"name": "gpu", "state": "absent", "reason": "none", "mend": "buy"}],
    )
    write_live(node, schema.SAMPLES, [[sample(1, "cpu.util.percent", 41.0)]])
    text = "\n".join(drawn(job(run)))
    assert "cpu 41 %" in text
    for word in ("gpu ", "dram", "disk", "ib ", "memory", " 0 "):
        assert word not in text.replace("1 absent: haiprof doctor", "")
    assert "1 absent: haiprof doctor" in text


def test_the_node_in_its_units(tmp_path: Path) -> None:
    run = live_run(tmp_path / "run")
    node = write_node(run, state="live")
    values = {
        ("mem.used.bytes", None): 3.0 * 2**30,
        ("mem.total.bytes", None): 8.0 * 2**30,
        **with_sockets("dram.read.bytes_per_s", 40e9, 41e9),
        ("ib.rx.bytes_per_s", "mlx5_0/1"): 1e9,
        ("ib.rx.bytes_per_s", "mlx5_1/1"): 22e9,
        ("ib.tx.bytes_per_s", "mlx5_1/1"): 21e9,
        ("io.nfs_read.bytes_per_s", "/data"): 4.5e8,
        ("disk.read.bytes_per_s", "sda"): 3e6,
        ("disk.read.bytes_per_s", "sdb"): 4e6,
        ("haiprof.cost.ratio", "cpu"): 0.001,
        ("haiprof.cost.ratio", "memory"): 0.003,
    }
    write_live(node, schema.SAMPLES, [[*node_samples(3), *steady(3, values)]])
    text = "\n".join(drawn(job(run), 120))
    assert "memory 3 GiB of 8 GiB" in text
    assert "dram read 81.0 GB/s" in text
    assert "ib mlx5_1/1 22.0 GB/s in, 21.0 GB/s out" in text
    assert "nfs read 450 MB/s, write 0 MB/s" in text
    assert "disk read 7 MB/s" in text
    assert "net eth0 5 MB/s in, 1 MB/s out" in text
    assert "cost 0.4 % of a core" in text


def test_gpus_stand_with_the_rank_that_uses_them(tmp_path: Path) -> None:
    text = drawn(job(make_gpu_run(tmp_path / "run", ranks=2)), 120)
    ranks = {line.split()[0]: line for line in text if re.match(r" +\d ", line)}
    assert "60 %" in ranks["0"]
    assert "61 %" in ranks["1"]
    assert "16 GiB" in ranks["0"]
    assert "2 gpus 60 % … 61 %" in "\n".join(text)


def test_losses_and_the_newest_event_are_reported(tmp_path: Path) -> None:
    from haiprof.recorder.reach import Reach
    from haiprof.recorder.segments import TableWriter
    from haiprof.recorder.tables import RowTable

    run = live_run(tmp_path / "run")
    rows, writer = RowTable(schema.EVENTS), TableWriter(run / "n0#0", schema.EVENTS)
    rows.add(T0, "lost", "7 records were overwritten", None, None)
    rows.add(T0 + 1, "mark", "not this one", None, None)
    writer.prepare()
    writer.append(rows.take(), Reach({0: 9}, {"overwritten": 7, "nested": 2, "names": 5}))
    writer.push()
    lines = drawn(job(run))
    assert "rank 0: 7 records were overwritten" in row(lines, "event")
    assert row(lines, "haiprof").startswith("haiprof  lost 9 records")


@pytest.mark.parametrize(("width", "height"), [(80, 24), (200, 50), (40, 10), (20, 5), (1, 1)])
def test_frames_fit(tmp_path: Path, width: int, height: int) -> None:
    run = make_gpu_run(tmp_path / "run", ranks=20)
    write_live(run / "n0", schema.EVENTS, [[event(1, "link", "mlx5_0/1 is down " * 20)]])
    content = frame.lines(job(run), width, height, others=["a" * 50, "b"])
    console = Console(file=io.StringIO(), width=width, color_system=None)
    lines = render(console, content)
    assert len(lines) == height
    assert max(cell_len(line) for line in lines) <= width


def test_names_cannot_drive_the_terminal(tmp_path: Path) -> None:
    bad = "\x1b[2Jboo\n"
    run = live_run(tmp_path / "run", command=["python", bad], run=bad)
    node = write_node(run, state="live")
    write_live(node, schema.SAMPLES, [[sample(1, "net.rx.bytes_per_s", 1e6, f"eth{bad}")]])
    write_live(node, schema.EVENTS, [[event(1, "link", bad)]])
    spans = [span(0, 5, "user", bad, 0), span(0, 10, "step", "step", 0)]
    write_live(run / "n0#0", schema.SPANS, [spans])
    text = drawn(job(run), others=[bad])
    assert not any("\x1b" in line or "\n" in line for line in text)
    assert sum("boo" in line for line in text) >= 5


# -- states ------------------------------------------------------------------------------------


def test_a_job_that_has_not_begun(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", created_ns=time.time_ns())
    watched = job(run)
    assert watched.state().word == "waiting"
    assert "0 ranks" not in drawn(watched)[0]
    warm = write_run(tmp_path / "warm", created_ns=time.time_ns(), options={"warmup": 120.0})
    assert watched_state(warm) == "warming up"


def watched_state(run: Path, recorder_lives: bool | None = None) -> str:
    return job(run, recorder_lives).state().word


def test_ranks_that_come_later_are_found(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", created_ns=time.time_ns())
    watched = job(run)
    folder = write_process(run, 0, state="live", ended_ns=None, started_ns=time.time_ns())
    watched.look(30)
    assert watched.state() == ("recording", "no step yet")
    shift = time.time_ns() - T0 - SECOND
    rows = [{**row, "start": row["start"] + shift} for row in loop(20)]
    write_live(folder, schema.SPANS, [rows])
    watched.look(30)
    assert watched.state().word == "recording"
    assert "rank" in drawn(watched)[5] or any(line.startswith("rank") for line in drawn(watched))
    (folder / "process.json").unlink()  # written anew, not over: the folder tells so
    write_process(run, 0, state="closed")
    for _ in range(2):
        watched.look(30)
    assert watched.state().word == "ended"


def test_a_recorder_that_is_gone_is_distinguished_from_one_that_is_silent(tmp_path: Path) -> None:
    run = live_run(tmp_path / "run")
    write_live(run / "n0#0", schema.SPANS, [loop(20)])
    assert watched_state(run, recorder_lives=False) == "recorder gone"
    assert watched_state(run, recorder_lives=True) == "silent"
    assert watched_state(run, recorder_lives=None) == "silent"
    assert f"haiprof recover {run}" in job(run, recorder_lives=False).state().more


HANGS = {"over": False, "ranks": [1, 2], "waiting": [0], "line": "nap (t.py:9)"}


@pytest.mark.parametrize(
    ("said", "state"),
    [
        ([HANGS], ("hangs", "waits for rank 1, 2, at nap (t.py:9)")),
        ([{**HANGS, "line": None}], ("hangs", "waits for rank 1, 2")),
        ([{**HANGS, "ranks": []}], ("hangs", "all ranks have come")),
        ([{**HANGS, "waiting": []}], ("hangs", "gets no further, at nap (t.py:9)")),
        ([HANGS, {"over": True}], ("recording", "no step yet")),
        ([{"over": False}], ("recording", "no step yet")),
        ([{**HANGS, "ranks": 5}], ("recording", "no step yet")),
        ([{**HANGS, "ranks": ["x"]}], ("recording", "no step yet")),
    ],
)
def test_a_hang_is_shown_while_it_lasts(
    tmp_path: Path, said: list[dict[str, object]], state: tuple[str, str]
) -> None:
    run = write_run(tmp_path / "run", created_ns=time.time_ns())
    write_process(run, 0, state="live", ended_ns=None, started_ns=time.time_ns())
    node = write_node(run, state="live", started_ns=time.time_ns())
    at = (time.time_ns() - T0) / SECOND
    rows = [event(at, "hang", "the job hangs", attributes=attributes) for attributes in said]
    write_live(node, schema.EVENTS, [[row] for row in rows])
    watched = job(run)
    assert watched.state() == state
    assert "node" in row(drawn(watched), "event")


COSTS = {"over": False, "kind": "slow_loader", "ranks": [0, 1], "line": "load (t.py:9)"}
OVER = {**COSTS, "over": True}
MANY = [{**COSTS, "kind": f"k{n}", "ranks": [], "line": None} for n in range(100)]


@pytest.mark.parametrize(
    ("said", "more"),
    [
        ([COSTS], "the DataLoader is too slow (rank 0, 1), at load (t.py:9)"),
        ([{**COSTS, "line": None, "ranks": []}], "the DataLoader is too slow"),
        ([COSTS, {**COSTS, "kind": "new"}, OVER], "new (rank 0, 1), at load (t.py:9)"),
        ([COSTS, OVER], ""),
        ([COSTS, {"over": True}], ""),
        ([{**COSTS, "ranks": 5}], ""),
        ([{**COSTS, "ranks": ["x"]}], ""),
        ([{"over": False}], ""),
        (MANY, "k99, k98, k97, k96, and 16 more"),
        ([{**COSTS, "kind": "k" * 9999}], "k" * 300),
    ],
    ids=range(10),
)
def test_what_costs_time_is_shown_while_it_does(
    tmp_path: Path, said: list[dict[str, object]], more: str
) -> None:
    run = write_run(tmp_path / "run", created_ns=time.time_ns())
    write_process(run, 0, state="live", ended_ns=None, started_ns=time.time_ns())
    write_live(run / "n0#0", schema.SPANS, [loop(20)])
    node = write_node(run, state="live", started_ns=time.time_ns())
    at = (time.time_ns() - T0) / SECOND
    rows = [event(at, "finding", "it costs", attributes=attributes) for attributes in said]
    write_live(node, schema.EVENTS, [[row] for row in rows])
    watched = job(run)
    assert watched.state().more == more
    assert "it costs" in row(drawn(watched), "event")


def test_how_it_ended(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", ranks=3)
    assert watched_state(run) == "ended"
    write_process(run, 1, state="died")
    watched = job(run)
    assert watched.state().word == "ended, 1 died"
    lines = drawn(watched)
    head = next(n for n, line in enumerate(lines) if line.startswith("rank"))
    assert lines[head + 1].split()[:2] == ["1", "died"]


@pytest.mark.parametrize(
    ("kind", "signal", "code", "state", "word", "cell"),
    [
        ("killed", "SIGSEGV", None, "died", "ended, 1 failed", "SIGSEGV"),
        ("failed", None, 3, "closed", "ended, 1 failed", "exit 3"),
        ("interrupted", "SIGTERM", None, "died", "ended, 1 interrupted", "SIGTERM"),
    ],
)
def test_how_each_rank_ended(
    tmp_path: Path,
    kind: str,
    signal: str | None,
    code: int | None,
    state: str,
    word: str,
    cell: str,
) -> None:
    run = make_run(tmp_path / "run", ranks=3)
    ended = {"kind": kind, "signal": signal, "exit_code": code, "text": "…", "time_ns": 5}
    write_process(run, 1, state=state, ended=ended)
    watched = job(run)
    assert watched.state().word == word
    lines = drawn(watched)
    head = next(n for n, line in enumerate(lines) if line.startswith("rank"))
    assert lines[head + 1].split()[0] == "1"
    assert cell in lines[head + 1]


def test_a_folder_that_cannot_be_read_is_named_and_the_others_are_shown(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", ranks=2)
    write_process(run, 1, version="9.0")
    lines = drawn(job(run), 200)
    assert "field 'version' is 9.0" in row(lines, "problem")
    assert "1 rank on 1 node" in lines[1]


def test_a_thousand_ranks_are_read_in_turns(tmp_path: Path) -> None:
    run = live_run(tmp_path / "run", ranks=1000)
    for rank in range(1000):
        write_live(run / f"n0#{rank}", schema.SPANS, [loop(3, [("forward", 10.0 + rank / 100)])])
    watched = Job(run, lambda: None)
    took = []
    for looks in range(200):
        begun = time.process_time()
        watched.look(0.15)
        frame.lines(watched, 200, 50)
        took.append(time.process_time() - begun)
        if not watched.unread and len(watched.ranks) == 1000 and looks > 3:
            break
    for _ in range(1000):
        watched.look(0.15)
        if all(w.steps.ended for w in watched.ranks):
            break
    lines = drawn(watched, 200, 50)
    assert "1000 ranks on 1 node" in lines[1]
    assert "slowest rank 999 21 ms, fastest rank 0 11 ms" in row(lines, "skew")
    assert min(took[3:]) < 0.3  # whatever else the machine does only adds to it


def test_where_each_rank_is_shows_when_it_is_asked_for(tmp_path: Path) -> None:
    run = live_run(tmp_path / "run", ranks=2)
    library = "/v/lib/python3.11/site-packages/torch/nn.py"
    frames: list[dict[str, object]] = [
        *FRAMES,
        {"id": 4, "parent": 2, "function": "linear", "file": library, "line": 7},
    ]
    for rank, node in enumerate((1, 4)):
        folder = run / f"n0#{rank}"
        write_live(folder, schema.SPANS, [loop(3)])
        write_live(folder, schema.FRAMES, [frames])
        pid = 1000 + rank
        main = {"process": pid, "thread": pid}
        rows = [stack(0, 3, **main), stack(900, node, **main), stack(950, 3, process=pid)]
        write_live(folder, schema.STACKS, [rows])
    watched = job(run)
    assert " at " not in "".join(drawn(watched, 120))
    watched.shows_places = True
    watched.look(float("inf"))
    lines = drawn(watched, 140)
    assert any(line.rstrip().find("load (data.py:88)") > 0 for line in lines)
    assert any("model.py:12 in linear (torch/nn.py:7)" in line for line in lines)
    (cut,) = (line for line in drawn(watched, 60) if "model.py:12" in line)
    assert len(cut) == 60
    assert cut.endswith("…")
    watched.shows_places = False
    assert "load (data.py:88)" not in "".join(drawn(watched, 140))
