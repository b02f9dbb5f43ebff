"""A recording that ends before its process, while a deep trace begins, runs or is written."""

from __future__ import annotations

from pathlib import Path

from deep_jobs import run_job
from recording import read_table

#: torch's profiler takes two seconds to begin.
SLOW = """
    from haiprof.capture import trace as deep
    begin = torch.profiler.profile.prepare_trace
    def slow(self):
        until = time.monotonic() + 2
        while time.monotonic() < until:
            time.sleep(0.01)
        begin(self)
    torch.profiler.profile.prepare_trace = slow
    train(1)
"""


def test_a_recording_that_ends_while_it_begins_waits_for_it(shm: Path, tmp_path: Path) -> None:
    program = f"""
    {SLOW}
    train(2)
    print(torch._C._autograd._profiler_enabled())
    """
    left, out = run_job(program, shm, tmp_path, trace=1, time=1)
    assert out == "False\n"
    assert left.states() == ["recording", "done"]
    assert left.end()["why"] == "the recording ended"
    assert left.trace["traceEvents"]


def test_training_goes_on_while_its_file_is_compressed(shm: Path, tmp_path: Path) -> None:
    program = """
    from haiprof.capture.trace import files
    compress, took = files._compress, []
    def slow(*arguments):
        took.append((threading.current_thread().name, time.time_ns()))
        time.sleep(2)
        compress(*arguments)
    files._compress = slow
    longest, until = 0.0, time.monotonic() + 60
    while time.monotonic() < until:
        before = time.monotonic()
        train(1)
        longest = max(longest, time.monotonic() - before)
        time.sleep(0.01)
        if took and until > time.monotonic() + 2.5:
            until = time.monotonic() + 2.5
    print(*took[0], longest < 1.9)
    """
    left, out = run_job(program, shm, tmp_path, trace=1, time=1)
    thread, _, went_on = out.split()
    assert (thread, went_on) == ("haiprof-trace-file", "True")
    assert left.states() == ["recording", "done"]
    steps = [row for row in read_table(left.folder, "spans").to_pylist() if row["name"] == "step"]
    # The recording ends when the file is there.
    assert max(row["start"] for row in steps) < left.rows[-1][0]["time"] + 1_500_000_000


def test_one_that_is_given_up_while_it_begins_does_not_go_on(shm: Path, tmp_path: Path) -> None:
    program = f"""
    def give_up():
        time.sleep(1)
        deep.finish("nobody waits", 0.1, process_ends=False)

    {SLOW}
    threading.Thread(target=give_up).start()
    handle = haiprof.trace(seconds=100)
    train(2)
    print(handle.state, torch._C._autograd._profiler_enabled())
    """
    left, out = run_job(program, shm, tmp_path)
    assert out == "off False\n"
    assert left.files == []
    lost = "the deep trace is lost: nobody waits, and its thread did not end it"
    assert left.end()["text"] == lost
