"""Figures of torch's CUDA allocator, from stand-ins of its functions to the tables."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

import polars as pl
from recording import python, run_python, wait_recorded

from haiprof import Analyzer

#: What every program begins with: torch's functions as a CUDA build has them, and a training loop.
#: Device 1 has no context of this process; device 2 has one and nothing in it.
PRELUDE = """
    import json, os, sys, time
    import torch, torch._dynamo  # which would miss more functions of a CUDA build
    from torch import nn
    from torch.utils.data import DataLoader
    import haiprof
    from haiprof import _core
    from haiprof.capture import hooks

    GIB = 1 << 30
    calls, observers = [], []
    state = {"allocated": 2 * GIB, "retries": 0, "ooms": 0, "fork": False, "error": None}

    def stat(current, peak):
        return {"all": {"current": current, "peak": peak, "allocated": peak, "freed": 0}}

    def memory_stats(device):
        calls.append(device)
        if state["error"] is not None:
            raise state["error"]
        used = state["allocated"] if device == 0 else 0
        return {
            "allocated_bytes": stat(used, used + 1), "reserved_bytes": stat(2 * used, 2 * used),
            "active_bytes": stat(used, used), "inactive_split_bytes": stat(used // 2, used),
            "num_alloc_retries": state["retries"], "num_ooms": state["ooms"],
            "num_device_alloc": 7, "num_device_free": 5,
        } if device == 0 else {
            "allocated_bytes": stat(0, 0), "reserved_bytes": stat(0, 0),
            "num_alloc_retries": 0, "num_ooms": 0,
        }

    core = torch._C
    core._cuda_memoryStats = memory_stats
    core._cuda_isInBadFork = lambda: state["fork"]
    core._cuda_getDeviceCount = lambda: 3
    core._cuda_hasPrimaryContext = lambda device: device != 1
    core._cuda_attach_out_of_memory_observer = observers.append
    torch.cuda.is_available = lambda: False

    def run_out_of_memory(wanted=3 * GIB):
        state["ooms"] += 1
        for observer in observers:
            assert observer(0, wanted, 80 * GIB, GIB // 2) is None
        raise torch.OutOfMemoryError("CUDA out of memory.")

    def train(steps, seconds=0.0, each=lambda n: None):
        model = nn.Linear(4, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        n = 0
        while n < steps:
            for batch in DataLoader(torch.randn(min(32, steps), 4), batch_size=4):
                optimizer.zero_grad()
                model(batch).sum().backward()
                optimizer.step()
                each(n)
                time.sleep(seconds)
                n += 1
"""


def job(program: str) -> str:
    """Return the prelude and a program as one."""
    return textwrap.dedent(PRELUDE) + textwrap.dedent(program)


def recorded(shm: Path, log_dir: Path) -> Analyzer:
    wait_recorded(shm)
    return Analyzer(log_dir / "run")


def values(run: Analyzer, metric: str, instance: str = "gpu0") -> list[float]:
    rows = run.samples(metric).filter(pl.col("instance") == instance).sort("time")
    return rows["value"].to_list()


def texts(run: Analyzer, kind: str) -> list[str]:
    return run.events(kind=kind)["text"].to_list()


def test_figures_are_recorded_after_steps_for_the_devices_in_use(shm: Path, tmp_path: Path) -> None:
    program = """
        torch.cuda._initialized = True
        haiprof.start(sys.argv[1], run="run")
        assert hooks.status()["allocator"] == "waiting: CUDA is not in use", hooks.status()
        def grow(n): state["allocated"] = (2 + n) * GIB
        train(8, each=grow)
        assert hooks.status()["allocator"] == "on: after steps", hooks.status()
        haiprof.stop()
        assert hooks.status()["allocator"] == "off: not installed", hooks.status()
        before = len(calls)
        train(8)
        assert len(calls) == before
    """
    run_python(job(program), str(tmp_path), warm=True)
    run = recorded(shm, tmp_path)
    rows = run.samples("torch.*")
    assert set(rows["instance"]) == {"gpu0"}
    assert set(rows["rank"]) == {0}
    # One before the first step's work, one after each step but the last, one at the end.
    assert [v / 2**30 for v in values(run, "torch.allocated.bytes")] == [2, *range(2, 9), 9]
    assert values(run, "torch.allocated_peak.bytes")[-1] == 9 * 2**30 + 1
    assert values(run, "torch.reserved.bytes")[-1] == 18 * 2**30
    assert values(run, "torch.active.bytes")[-1] == 9 * 2**30
    assert values(run, "torch.inactive_split.bytes")[-1] == 4.5 * 2**30
    assert set(values(run, "torch.alloc_retries.count")) == {0}
    assert set(values(run, "torch.ooms.count")) == {0}
    assert set(values(run, "torch.device_allocs.count")) == {7}
    assert set(values(run, "torch.device_frees.count")) == {5}
    assert texts(run, "memory") == []


def test_many_short_steps_are_looked_at_four_times_a_second(shm: Path, tmp_path: Path) -> None:
    program = """
        torch.cuda._initialized = True
        haiprof.start(sys.argv[1], run="run")
        train(8)
        calls.clear()
        begin = time.monotonic()
        steps = 0
        while calls.count(0) < 6 and time.monotonic() - begin < 60:
            train(8)
            steps += 8
        print(json.dumps([calls.count(0), time.monotonic() - begin, steps]))
        haiprof.stop()
    """
    looks, seconds, steps = json.loads(run_python(job(program), str(tmp_path), warm=True))
    assert 6 <= looks <= 4 * seconds + 2
    assert steps > 2 * looks
    recorded(shm, tmp_path)


def test_a_job_that_does_not_use_cuda_is_not_asked(shm: Path, tmp_path: Path) -> None:
    program = """
        haiprof.start(sys.argv[1], run="run")
        train(16)
        torch.cuda._initialized = state["fork"] = True
        train(16, seconds=0.05)
        haiprof.stop()
        assert (calls, observers) == ([], []), (calls, observers)
    """
    run_python(job(program), str(tmp_path), warm=True)
    run = recorded(shm, tmp_path)
    assert run.samples("torch.*").is_empty()
    assert texts(run, "hook") == []
    assert run.steps().height == 32


#: What a torch may do otherwise, and a part of the message then.
BREAKS = {
    "state['error'] = RuntimeError('not supported')": "RuntimeError('not supported')",
    "core._cuda_memoryStats = lambda device: None": "_cuda_memoryStats() returned no dict",
    "core._cuda_memoryStats = lambda device: {'a': 1}": "returned no allocated_bytes",
    "core._cuda_memoryStats = lambda device: {'allocated_bytes': {'all': {'current': 'x'}}}": (
        "returned no allocated_bytes"
    ),
    "core._cuda_getDeviceCount = lambda: 'many'": "TypeError",
    "del core._cuda_hasPrimaryContext": "_cuda_hasPrimaryContext",
    "del torch.cuda._initialized": "_initialized",
}


def test_a_torch_that_answers_otherwise_takes_the_hook_off_and_the_job_goes_on(
    shm: Path, tmp_path: Path
) -> None:
    program = """
        names = ("_cuda_memoryStats", "_cuda_getDeviceCount", "_cuda_hasPrimaryContext")
        whole = {name: getattr(core, name) for name in names}
        for n, (breaks, why) in enumerate(json.loads(sys.argv[2]).items()):
            state["error"], torch.cuda._initialized = None, True
            vars(core).update(whole)
            haiprof.start(sys.argv[1], run=f"{n}")
            exec(breaks)
            train(20)
            before = len(calls)
            train(20, seconds=0.02)
            assert len(calls) == before, breaks
            off = hooks.status()["allocator"]
            assert off.startswith("off: ") and why in off, off
            torch.cuda._initialized = False
            haiprof.stop()
    """
    run_python(job(program), str(tmp_path), json.dumps(BREAKS), warm=True)
    wait_recorded(shm)
    for n, why in enumerate(BREAKS.values()):
        run = Analyzer(tmp_path / f"{n}")
        (line,) = texts(run, "hook")
        assert line.startswith("the allocator's figures are not recorded: ")
        assert why in line
        assert run.steps().height == 40
        assert run.samples("torch.*").is_empty()


def test_a_growth_of_retries_and_of_ooms_is_reported_at_first_each_time_then_as_it_doubles(
    shm: Path, tmp_path: Path
) -> None:
    program = """
        torch.cuda._initialized = True
        haiprof.start(sys.argv[1], run="run")
        torch.cuda._initialized = True
        look = _core.phases_finish  # one at any time
        for n in range(100):
            state["retries"] = n // 2
            state["ooms"] = 2 if n >= 4 else 0
            look()
        state["retries"] = state["ooms"] = 0  # torch.cuda.reset_accumulated_memory_stats()
        look()
        state["retries"] = 1
        look()
        haiprof.stop()
    """
    late = program
    early = program.replace("torch.cuda._initialized = True", "", 1)
    slow = "; torch gave its cache back and tried again, which is slow"
    for name, source in (("early", early), ("late", late)):
        run_python(job(source), str(tmp_path / name), warm=True)
        lines = texts(recorded(shm, tmp_path / name), "memory")
        retried = ["once", *(f"{n} times" for n in (2, 3, 4, 5, 6, 7, 8, 16, 32)), "once"]
        assert [t for t in lines if "ran short" in t] == [
            f"gpu0: memory ran short {times}{slow}" for times in retried
        ]
        assert [t for t in lines if "ran short" not in t] == ["gpu0: out of memory 2 times"]


def test_what_happened_before_the_recording_is_not_reported(shm: Path, tmp_path: Path) -> None:
    program = """
        torch.cuda._initialized = True
        state["retries"] = state["ooms"] = 5
        haiprof.start(sys.argv[1], run="run")
        train(4)
        haiprof.stop()
    """
    run_python(job(program), str(tmp_path), warm=True)
    run = recorded(shm, tmp_path)
    assert set(values(run, "torch.ooms.count")) == {5}
    assert texts(run, "memory") == []


def test_running_out_of_memory_in_the_first_step_leaves_the_last_figures(
    shm: Path, tmp_path: Path
) -> None:
    program = """
        theirs = []
        observers.append(lambda *numbers: theirs.append(numbers))
        torch.cuda._initialized = True
        haiprof.start(sys.argv[1], run="run")
        class Large(nn.Linear):
            def forward(self, x):
                state["allocated"] = 70 * GIB
                run_out_of_memory()
        try:
            Large(4, 1)(torch.ones(4))
        finally:
            assert len(theirs) == 1 and len(observers) == 2, (theirs, observers)
            print("reported", flush=True)
    """
    process = python(job(program), str(tmp_path))
    out, err = process.communicate(timeout=60)
    assert out == "reported\n", err
    assert process.returncode == 1
    assert err.splitlines()[-1] == "torch.OutOfMemoryError: CUDA out of memory."
    run = recorded(shm, tmp_path)
    assert texts(run, "memory") == [
        "gpu0: out of memory: 3.00 GiB wanted, 512.00 MiB of 80.00 GiB free; "
        "torch had 70.00 GiB allocated, 140.00 GiB reserved"
    ]
    assert values(run, "torch.allocated.bytes")[-1] == 70 * 2**30
    assert values(run, "torch.ooms.count")[-1] == 1


def test_a_job_that_survives_each_lack_of_memory_does_not_flood_the_events(
    shm: Path, tmp_path: Path
) -> None:
    program = """
        torch.cuda._initialized = True
        haiprof.start(sys.argv[1], run="run")
        train(2)
        for _ in range(100):
            try: run_out_of_memory()
            except torch.OutOfMemoryError: pass
        for numbers in [(), (0,), ("a", 1, 2, 3), (-1, 1, 2, 3), (2**70, 1, 2, 3), (99, 1, 2, 3)]:
            assert observers[0](*numbers) is None
        haiprof.stop()
    """
    run_python(job(program), str(tmp_path), warm=True)
    run = recorded(shm, tmp_path)
    assert len(texts(run, "memory")) == 8 + 3  # 16, 32, 64
    assert values(run, "torch.ooms.count")[-101:] == [*range(1, 101), 100]


def test_the_observer_is_attached_once_and_does_nothing_after_the_end(
    shm: Path, tmp_path: Path
) -> None:
    program = """
        torch.cuda._initialized = True
        for name in ("first", "run"):
            haiprof.start(sys.argv[1], run=name)
            train(2)
            haiprof.stop()
        assert len(observers) == 1, observers
        calls.clear()
        assert observers[0](0, GIB, GIB, 0) is None
        assert calls == []
        haiprof.start(sys.argv[1], run="third", hooks=False)
        assert observers[0](0, GIB, GIB, 0) is None
        haiprof.stop()
        assert calls == []
    """
    run_python(job(program), str(tmp_path), warm=True)
    recorded(shm, tmp_path)
    for name in ("first", "run"):
        assert len(values(Analyzer(tmp_path / name), "torch.allocated.bytes")) >= 2
    assert texts(Analyzer(tmp_path / "third"), "memory") == []


def test_an_allocator_without_observers_still_gives_its_figures(shm: Path, tmp_path: Path) -> None:
    program = """
        def refuse(observer): raise RuntimeError("cudaMallocAsync does not yet support observers")
        core._cuda_attach_out_of_memory_observer = refuse
        torch.cuda._initialized = True
        haiprof.start(sys.argv[1], run="run")
        train(4)
        try: run_out_of_memory()
        except torch.OutOfMemoryError: pass
        haiprof.stop()
    """
    run_python(job(program), str(tmp_path), warm=True)
    run = recorded(shm, tmp_path)
    assert texts(run, "memory") == ["gpu0: out of memory once"]
    assert texts(run, "hook") == []


def test_ctrl_c_during_a_look_reaches_the_job(shm: Path, tmp_path: Path) -> None:
    program = """
        def interrupted(device): raise KeyboardInterrupt
        torch.cuda._initialized = True
        haiprof.start(sys.argv[1], run="run")
        core._cuda_memoryStats = interrupted
        try:
            train(4)
        except KeyboardInterrupt:
            core._cuda_memoryStats = memory_stats
            train(8)
            print("interrupted", hooks.status()["allocator"])
        haiprof.stop()
    """
    assert run_python(job(program), str(tmp_path), warm=True) == "interrupted on: after steps\n"
    assert values(recorded(shm, tmp_path), "torch.allocated.bytes") != []
