"""How a deep trace begins and ends: in time, early, with the job, with others; never against it."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from commands import haiprof
from deep_jobs import Left, run_job, start_job
from recording import run_python, wait_for, wait_recorded


def test_a_with_block_ends_it_and_every_step_in_it_is_whole(shm: Path, tmp_path: Path) -> None:
    program = """
    train(2)
    with haiprof.trace(steps=100) as trace:
        train(3)
        model(batch)
    print(trace.wait().name, trace.state, trace.why)
    train(2)
    """
    left, out = run_job(program, shm, tmp_path)
    assert out.split(" ", 1) == [left.files[0].name, "done its block ended\n"]
    assert len(left.steps()) == left.end()["steps"] == 3
    assert [e["name"] for e in left.trace["traceEvents"] if "cut step" in e["name"]] == [
        f"cut step {left.numbers()[-1] + 1}"
    ]


def test_it_begins_after_its_warm_up(shm: Path, tmp_path: Path) -> None:
    program = """
    train(10)
    trace = haiprof.trace(steps=1, warmup=3)
    assert trace.state == "waiting"
    train(3)
    assert trace.state == "recording"
    train(2)
    print(trace.wait().name)
    """
    left, _ = run_job(program, shm, tmp_path)
    assert left.numbers() == [13, 14]


def test_called_again_it_is_the_same_one(shm: Path, tmp_path: Path) -> None:
    program = """
    first = haiprof.trace(steps=3)
    with haiprof.trace(steps=50) as second, haiprof.trace(seconds=1) as third:
        train(1)
    assert first.state == second.state == third.state == "recording"
    others = [threading.Thread(target=haiprof.trace) for _ in range(20)]
    for other in others: other.start()
    for other in others: other.join()
    train(10)
    file = first.wait()
    assert file is not None and second.file == third.file == file
    time.sleep(0.01)  # its name has milliseconds
    fourth = haiprof.trace(steps=1)
    train(10)
    assert fourth.wait() not in (None, file)
    """
    left, _ = run_job(program, shm, tmp_path)
    assert len(left.files) == 2
    assert left.states() == ["recording", "done"] * 2


def test_stop_ends_it_once_and_a_stop_before_it_begins_is_reported(
    shm: Path, tmp_path: Path
) -> None:
    program = """
    trace = haiprof.trace(steps=50)
    train(3)
    trace.stop(); trace.stop()
    assert trace.wait() is not None
    later = haiprof.trace(steps=50, warmup=5)
    later.stop(); later.stop()
    print(later.state, later.why, later.wait(0))
    """
    left, out = run_job(program, shm, tmp_path)
    assert out == "off no deep trace: it was stopped before it had begun None\n"
    assert left.states() == ["recording", "done", "off"]


def test_a_loop_without_steps_is_traced_for_seconds(shm: Path, tmp_path: Path) -> None:
    program = """
    with torch.no_grad():
        until_traced(lambda: model(batch))
    haiprof.flush()
    """
    left, _ = run_job(program, shm, tmp_path, trace=1, trace_seconds=0.3, trace_warmup=0.2)
    end = left.end()
    assert end["why"] == "it is complete"
    assert end["end_ns"] - end["begin_ns"] >= 0.3e9
    assert len(left.steps()) == 1  # all there is, so that tools have one
    assert any(e["name"] == "aten::addmm" for e in left.events("cpu_op"))


def test_it_does_not_begin_in_the_middle_of_an_import_of_torch(shm: Path, tmp_path: Path) -> None:
    late = tmp_path / "late" / "torch_late.py"
    late.parent.mkdir()
    late.write_text("import __main__\n__main__.loop(1.0)\nstate = __main__.trace.state\n")
    program = f"""
    def loop(seconds):
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            pass

    trace = haiprof.trace(seconds=0.5, warmup=0.2)
    torch.__path__.append({str(late.parent)!r})
    import torch.torch_late
    until_traced(lambda: model(batch))
    trace.wait(300)
    print(torch.torch_late.state, trace.state)
    """
    _, out = run_job(program, shm, tmp_path)
    assert out == "waiting done\n"


def test_steps_may_be_marked_by_hand(shm: Path, tmp_path: Path) -> None:
    program = """
    with haiprof.trace(steps=2):
        for _ in range(6):
            model(batch)
            haiprof.step()
    """
    left, _ = run_job(program, shm, tmp_path)
    assert len(left.steps()) == 3
    per_step = [
        sum(s["ts"] <= e["ts"] < s["ts"] + s["dur"] for e in left.events("cpu_op")
            if e["name"] == "aten::addmm")
        for s in left.steps()
    ]  # fmt: skip
    assert per_step == [2, 2, 2]


#: Nearly all of a step is a hook in its backward pass, where the main thread comes to all calls.
LONG_BACKWARD = """
    from torch.profiler import ProfilerActivity, profile
    within = []
    seconds = 0.02
    def hook(gradient):
        for what in within[:1]:
            within.clear()
            what()
        until = time.monotonic() + seconds
        while time.monotonic() < until: time.sleep(0.0005)

    def train(steps=1):
        for _ in range(steps):
            optimizer.zero_grad()
            out = model(batch)
            out.register_hook(hook)
            out.sum().backward()
            optimizer.step()

    def as_before():
        assert not torch._C._autograd._profiler_enabled()
        with profile(activities=[ProfilerActivity.CPU]) as own:
            model(batch)
        assert any(event.name == "aten::addmm" for event in own.events())
"""


def test_it_neither_begins_nor_ends_in_a_backward_pass(shm: Path, tmp_path: Path) -> None:
    program = """
    train(5)
    seconds = 0.4  # it is looked at five times in a second at least
    for _ in range(3):
        trace = haiprof.trace(seconds=0.6, warmup=0.1)
        while trace.state != "done": train()
        assert trace.wait() and trace.why == "it is complete", trace.why
        as_before()
    """
    left, _ = run_job(LONG_BACKWARD + program, shm, tmp_path)
    assert len(left.files) == 3
    assert any(e["name"] == "aten::addmm" for e in left.events("cpu_op"))


def test_one_asked_for_in_a_backward_pass_begins_after_it(shm: Path, tmp_path: Path) -> None:
    program = """
    asked = []
    within.append(lambda: asked.append(haiprof.trace(steps=3)))
    train()
    within.append(lambda: asked.append(haiprof.trace(steps=3)))  # the same
    train(5)
    assert asked[0].wait(), asked[0].why
    as_before()

    trace = haiprof.trace(steps=100)
    train(2)
    within.append(trace.stop)
    train(5)
    assert trace.wait() and trace.why == "it was stopped", trace.why
    as_before()
    """
    left, _ = run_job(LONG_BACKWARD + program, shm, tmp_path)
    assert [row["steps"] for _, row in left.rows if row["state"] == "done"] == [4, 3]


def test_a_recording_that_ends_in_a_backward_pass_leaves_torch_as_it_was(
    shm: Path, tmp_path: Path
) -> None:
    program = """
    trace = haiprof.trace(steps=100)
    train(2)
    within.append(haiprof.stop)
    train(1)
    assert trace.state == "off" and "lost" in trace.why, trace.why
    train(1)
    as_before()
    """
    left, _ = run_job(LONG_BACKWARD + program, shm, tmp_path)
    assert left.files == []
    assert left.end()["state"] == "off"


def test_optimizers_that_step_in_the_backward_pass(shm: Path, tmp_path: Path) -> None:
    program = """
    optimizers = {p: torch.optim.SGD([p], lr=0.01) for p in model.parameters()}
    for p in model.parameters():
        p.register_post_accumulate_grad_hook(lambda p: optimizers[p].step())
    trace = haiprof.trace(steps=2)
    for _ in range(200):
        model(batch).sum().backward()
        time.sleep(0.01)
    assert trace.wait(), trace.why
    assert not torch._C._autograd._profiler_enabled()
    """
    left, _ = run_job(program, shm, tmp_path)
    assert left.end()["steps"] >= 3


def test_two_optimizers_make_one_step(shm: Path, tmp_path: Path) -> None:
    program = """
    other = torch.optim.Adam(nn.Linear(2, 2).parameters())
    with haiprof.trace(steps=3):
        for _ in range(8):
            train()
            other.step()
    """
    left, _ = run_job(program, shm, tmp_path)
    assert len(left.steps()) == 4
    for step in left.steps():
        inside = [
            e["name"] for e in left.events("user_annotation")
            if step["ts"] < e["ts"] < step["ts"] + step["dur"]
        ]  # fmt: skip
        assert inside.count("Optimizer.step#SGD.step") == 1


def test_a_thread_that_trains_has_its_own_trace(shm: Path, tmp_path: Path) -> None:
    program = """
    thread = threading.Thread(target=train, args=(20,))
    thread.start(); thread.join()
    """
    left, _ = run_job(program, shm, tmp_path, trace=1)
    assert len(left.steps()) == 4
    assert left.events("python_function")


def test_a_thread_that_trains_has_the_trace_also_while_the_main_thread_is_idle(
    shm: Path, tmp_path: Path
) -> None:
    program = """
    def slowly():
        for _ in range(8):
            train()
            time.sleep(0.7)  # longer than between two looks

    thread = threading.Thread(target=slowly)
    thread.start()
    while thread.is_alive(): time.sleep(0.05)
    """
    left, _ = run_job(program, shm, tmp_path, trace=1, trace_seconds=1.5, trace_warmup=0.5)
    assert any(e["name"] == "aten::addmm" for e in left.events("cpu_op"))


@pytest.mark.parametrize("raised", ["SystemExit(3)", "TimeoutError('preempted')"])
@pytest.mark.parametrize("length", ["steps=3", "seconds=0.3"])
def test_what_a_signals_handler_raises_while_it_ends_is_the_jobs(
    shm: Path, tmp_path: Path, raised: str, length: str
) -> None:
    program = f"""
    import signal
    from haiprof.capture.trace.profiler import Profiler

    def handler(number, frame):
        raise {raised}

    def saving(self, path, save=Profiler.save):
        signal.raise_signal(signal.SIGTERM)
        save(self, path)

    signal.signal(signal.SIGTERM, handler)
    Profiler.save = saving
    trace = haiprof.trace({length})
    try:
        for _ in range(4): train()
        for _ in range(1000): time.sleep(0.01)  # no step ends any more
    except ({raised.partition("(")[0]}) as error:
        print("the job has it", repr(error) == repr({raised}), trace.state)
    """
    _, out = run_job(program, shm, tmp_path)
    assert out == "the job has it True off\n"


def test_a_job_that_fails_leaves_what_there_is(shm: Path, tmp_path: Path) -> None:
    program = """
    train(8)
    model(batch)
    raise ValueError("the job's own")
    """
    left, _ = run_job(program, shm, tmp_path, code=1, trace=1, trace_steps=50)
    assert left.end()["why"] == "the job ended"
    assert len(left.steps()) == left.end()["steps"] == 2
    assert left.states() == ["recording", "done"]


def test_a_job_that_ends_before_it_begins_says_so(shm: Path, tmp_path: Path) -> None:
    left, _ = run_job("train(3)", shm, tmp_path, trace=1)
    assert left.files == []
    assert left.end()["text"] == "no deep trace: the job ended before it had begun"


def test_ctrl_c_leaves_what_there_is(shm: Path, tmp_path: Path) -> None:
    program = """
    while True:
        train()
        print("step", flush=True)
        time.sleep(0.05)
    """
    process = start_job(program, tmp_path, trace=1, trace_steps=10000, trace_warmup=0)
    assert process.stdout is not None
    for _ in range(8):
        process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert "KeyboardInterrupt" in err
    wait_recorded(shm)
    left = Left(next(tmp_path.glob("run/*#0")))
    assert left.end()["why"] == "the job ended"
    assert len(left.steps()) >= 5


def test_a_job_that_is_killed_leaves_nothing_that_looks_whole(shm: Path, tmp_path: Path) -> None:
    program = """
    train(8)
    haiprof.flush()
    print("recorded", flush=True)
    time.sleep(60)
    """
    process = start_job(program, tmp_path, trace=1, trace_steps=50)
    assert process.stdout is not None
    assert process.stdout.readline() == "recorded\n"
    process.kill()
    process.communicate(timeout=60)
    wait_recorded(shm)
    left = Left(next(tmp_path.glob("run/*#0")))
    assert left.states() == ["recording"]
    assert not list(tmp_path.rglob("*.pt.trace.json*"))


def test_it_ends_at_a_step_before_its_events_take_too_much(shm: Path, tmp_path: Path) -> None:
    left, _ = run_job("train(4000)", shm, tmp_path, trace=1, trace_steps=100000, trace_mib=8)
    end = left.end()
    assert end["why"] == "its events would take more than 8 MiB (trace_mib)"
    block = 1 << 18  # torch allocates events in blocks; the last step may be the first of its size
    assert 4 << 20 < end["memory_bytes"] <= (8 << 20) + block
    assert len(left.steps()) == end["steps"] > 50
    assert not any("cut step" in e["name"] for e in left.trace["traceEvents"])


def test_what_the_job_needs_within_a_step_is_not_what_events_take(
    shm: Path, tmp_path: Path
) -> None:
    program = """
    for _ in range(15):
        activations = [torch.ones(1 << 18) for _ in range(40)]  # five times trace_mib
        train(1)
        del activations
    """
    left, _ = run_job(program, shm, tmp_path, trace=1, trace_steps=6, trace_mib=8)
    assert left.end()["why"] == "it is complete"
    assert left.end()["steps"] == 7
    assert left.end()["memory_bytes"] < 8 << 20


def test_an_early_end_is_said(shm: Path, tmp_path: Path) -> None:
    process = start_job("train(4000)", tmp_path, trace=1, trace_steps=100000, trace_mib=2)
    _, err = process.communicate(timeout=120)
    wait_recorded(shm)
    (said,) = [line for line in err.splitlines() if line.startswith("haiprof: deep trace of")]
    assert "(it ended early: its events would take more than 2 MiB (trace_mib)), ending" in said


def test_memory_that_the_job_has_freed_does_not_hide_what_events_take(
    shm: Path, tmp_path: Path
) -> None:
    program = """
    pieces = [bytes(5000) for _ in range(40000)]
    kept = [bytes(5000)]  # above them, so that the heap cannot shrink by itself
    del pieces
    train(4000)
    """
    left, _ = run_job(program, shm, tmp_path, trace=1, trace_steps=100000, trace_mib=8)
    assert left.end()["why"] == "its events would take more than 8 MiB (trace_mib)"
    assert left.end()["json_bytes"] < 32 << 20


def test_a_step_that_is_too_large_is_cut(shm: Path, tmp_path: Path) -> None:
    program = """
    train(7)
    # Events come slowly: those until the watch's next look must not count where it comes late.
    until_traced(lambda: (model(batch), time.sleep(0.001)))
    train(1)
    """
    left, _ = run_job(program, shm, tmp_path, trace=1, trace_mib=8, trace_with="")
    end = left.end()
    assert end["why"] == "its events would take more than 8 MiB (trace_mib)"
    assert 8 << 20 < end["memory_bytes"] < 16 << 20
    assert len(left.steps()) == 1
    assert any("cut step" in e["name"] for e in left.trace["traceEvents"])


def test_without_room_it_is_lost_and_nothing_is_left(shm: Path, tmp_path: Path) -> None:
    program = """
    import shutil
    shutil.disk_usage = lambda path: type("", (), {"free": 1000})
    train(15)
    print("trained")
    """
    left, out = run_job(program, shm, tmp_path, trace=1)
    assert out == "trained\n"
    assert left.files == []
    assert "the deep trace is lost" in left.end()["text"]
    assert "0 MiB are free" in left.end()["text"]


def test_there_is_none_while_the_job_profiles_itself(shm: Path, tmp_path: Path) -> None:
    program = """
    with torch.profiler.profile() as own:
        with haiprof.trace() as trace:
            train(3)
    assert any(e.key == "aten::addmm" for e in own.key_averages())
    print(trace.state, trace.why)
    with haiprof.trace(steps=1) as trace:
        train(3)
    assert trace.wait() is not None
    """
    left, out = run_job(program, shm, tmp_path)
    assert out == "off no deep trace: the job's own torch.profiler is recording\n"
    assert left.states() == ["off", "recording", "done"]


def test_it_gives_way_to_the_jobs_own_profiler(shm: Path, tmp_path: Path) -> None:
    program = """
    trace = haiprof.trace(steps=100)
    train(3)
    with torch.profiler.profile() as own:
        train(2)
    assert sum(e.count for e in own.key_averages() if e.key == "aten::addmm") == 4
    print(trace.wait() is not None, trace.why)
    """
    left, out = run_job(program, shm, tmp_path)
    assert out == "True the job's own torch.profiler began\n"
    assert len(left.steps()) == 3


def test_it_waits_until_the_job_has_profiled_itself(shm: Path, tmp_path: Path) -> None:
    program = """
    schedule = torch.profiler.schedule(wait=1, warmup=2, active=4, repeat=1)
    with torch.profiler.profile(schedule=schedule) as own:
        for _ in range(9):
            train()
            own.step()
    assert sum(e.count for e in own.key_averages() if e.key == "aten::addmm") == 8
    train(20)
    """
    left, _ = run_job(program, shm, tmp_path, trace=1, trace_warmup=3)
    assert left.states() == ["waiting", "recording", "done"]
    assert len(left.steps()) == 4
    assert left.numbers()[0] > 9


def test_a_forked_child_has_no_part_in_it(shm: Path, tmp_path: Path) -> None:
    program = """
    trace = haiprof.trace(steps=6)
    train(2)
    child = os.fork()
    if child == 0:
        train(20)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    train(10)
    print(trace.wait() is not None)
    """
    process = start_job(program, tmp_path)
    out, err = process.communicate(timeout=120)
    assert (process.returncode, out) == (0, "True\n"), err
    wait_recorded(shm)
    wait_for(lambda: len(list(tmp_path.rglob("*.pt.trace.json.gz"))) == 1)
    left = Left(next(p.parent for p in tmp_path.rglob("*.pt.trace.json.gz")))
    assert len(left.steps()) == 7


def test_invalid_values_are_reported_and_do_no_harm(shm: Path, tmp_path: Path) -> None:
    program = """
    with haiprof.trace(steps="many", mib=-4, warmup=None) as trace:
        train(6)
    assert trace.wait() is not None
    """
    left, _ = run_job(program, shm, tmp_path)
    assert len(left.steps()) == 4


def test_it_begins_a_recording_where_there_is_none(shm: Path, tmp_path: Path) -> None:
    left, _ = run_job("with haiprof.trace(steps=1): train(4)", shm, tmp_path, enabled=0)
    assert len(left.steps()) == 2


def test_the_memory_of_its_events_is_given_back(shm: Path, tmp_path: Path) -> None:
    program = """
    from haiprof.capture.trace.memory import private_bytes
    train(20)
    import threading
    before = peak = private_bytes()
    over = threading.Event()

    def watch():
        global peak
        while not over.wait(0.01):
            peak = max(peak, private_bytes())

    watching = threading.Thread(target=watch)
    watching.start()
    with haiprof.trace(steps=300) as trace:
        train(310)
    assert trace.wait() is not None
    over.set()
    watching.join()
    print((peak - before) >> 20, (private_bytes() - before) >> 20)
    """
    _, out = run_job(program, shm, tmp_path)
    peak, after = map(int, out.split())
    assert peak > 50
    assert after < peak / 3


def test_what_a_job_that_was_killed_while_saving_left_is_recovered(
    shm: Path, tmp_path: Path
) -> None:
    program = """
    import signal
    from haiprof.capture.trace.profiler import Profiler
    save = Profiler.save
    def save_and_die(self, path):
        save(self, path)
        os.kill(os.getpid(), signal.SIGKILL)
    Profiler.save = save_and_die
    haiprof.trace(steps=1)
    train(10)
    """
    job = start_job(program, tmp_path)
    job.communicate(timeout=120)
    assert job.returncode == -signal.SIGKILL
    wait_recorded(shm)
    (left,) = tmp_path.glob("run/.*")
    assert (left / "trace.json").stat().st_size > 0
    done = haiprof("recover", tmp_path / "run")
    assert done.stdout == f"run: an unfinished deep trace is removed ({tmp_path / 'run'})\n"
    assert not left.exists()
    assert "nothing was left to do" in haiprof("recover", tmp_path / "run").stdout


def test_the_main_thread_is_not_asked_again_while_it_acts() -> None:
    # It would hang where a profiler of functions begins, as torch's does.
    program = """
    import sys
    from haiprof.capture.trace.watch import soon_on_main_thread
    calls = []
    def act():
        soon_on_main_thread(lambda: calls.append("meanwhile"))
        sys.setprofile(lambda *_: None)
        (lambda: calls.append("act"))()
        sys.setprofile(None)
    soon_on_main_thread(act)
    while not calls: pass
    soon_on_main_thread(lambda: calls.append("later"))
    while len(calls) < 2: pass
    print(calls)
    """
    assert run_python(program) == "['act', 'later']\n"
