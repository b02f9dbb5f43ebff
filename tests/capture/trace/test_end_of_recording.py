"""A recording that ends before its process, while a deep trace begins, runs or is written."""

from __future__ import annotations

from pathlib import Path

from deep_jobs import run_job
from recording import read_table

#: torch's profiler does not begin before the recording is about to end.
SLOW = """
    begin = torch.profiler.profile.prepare_trace
    begins, ending = threading.Event(), threading.Event()
    def slow(self):
        begins.set()
        until = time.monotonic() + 30
        while not ending.is_set() and time.monotonic() < until:
            time.sleep(0.01)
        begin(self)
    torch.profiler.profile.prepare_trace = slow
    train(1)
"""


def test_a_recording_that_ends_while_it_begins_waits_for_it(shm: Path, tmp_path: Path) -> None:
    program = f"""
    finish = deep.finish
    def finishing(*arguments, **keywords):
        threading.Timer(0.5, ending.set).start()  # when it waits
        finish(*arguments, **keywords)
    deep.finish = finishing
    {SLOW}
    train(2)
    print(torch._C._autograd._profiler_enabled())
    """
    left, out = run_job(program, shm, tmp_path, trace=1, time=4)
    assert out == "False\n"
    assert left.states() == ["recording", "done"]
    assert left.end()["why"] == "the recording ended"
    assert left.trace["traceEvents"]


def test_training_goes_on_while_its_file_is_compressed(shm: Path, tmp_path: Path) -> None:
    program = """
    compress, begun, goes_on = files._compress, [], threading.Event()
    def slow(*arguments):
        begun.append(threading.current_thread().name)
        print(*begun, goes_on.wait(60))
        compress(*arguments)
    files._compress = slow
    further, until = 0, time.monotonic() + 60
    while recording.active() is not None and time.monotonic() < until:
        train(1)
        time.sleep(0.01)
        further += len(begun)
        if further > 3:
            goes_on.set()
    train(20)
    """
    left, out = run_job(program, shm, tmp_path, trace=1, time=4)
    assert out == "haiprof-trace-file True\n"
    assert left.states() == ["recording", "done"]
    steps = [row for row in read_table(left.folder, "spans").to_pylist() if row["name"] == "step"]
    # The recording ends when the file is there.
    assert max(row["start"] for row in steps) < left.rows[-1][0]["time"] + 10_000_000_000


def test_one_that_is_given_up_while_it_begins_does_not_go_on(shm: Path, tmp_path: Path) -> None:
    program = f"""
    def give_up():
        begins.wait()
        deep.finish("nobody waits", 0.1, process_ends=False)
        ending.set()

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
