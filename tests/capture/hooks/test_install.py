"""Attaching to torch and taking everything off again."""

from __future__ import annotations

import gc
import inspect
import pickle
import sys
import traceback
from pathlib import Path
from typing import Any

import pytest
import torch
from phases import read_spans
from recording import run_python
from torch import nn
from torch.utils.data import dataloader

from haiprof import _core
from haiprof.capture import hooks
from haiprof.capture.hooks import watch


def surface() -> dict[str, Any]:
    """Everything of torch that a hook touches."""
    return {
        "Module.__call__": nn.Module.__call__,
        "Module.__call__ code": nn.Module.__call__.__code__,
        "wraps steps": torch.optim.Optimizer.profile_hook_step.__code__,
        "SGD.step code": torch.optim.SGD.step.__code__,
        "engine": torch.autograd.Variable._execution_engine,
        "backward code": torch.autograd.backward.__code__,
        "GradScaler.step": torch.amp.GradScaler.__dict__["step"],
        "DataLoader.__iter__": dataloader.DataLoader.__dict__["__iter__"],
        "next": dataloader._BaseDataLoaderIter.__dict__["__next__"],
        "gc callbacks": list(gc.callbacks),
        "meta path": list(sys.meta_path),
        "tools": [sys.monitoring.get_tool(n) for n in range(6)]
        if sys.version_info >= (3, 12)
        else [],
    }


def test_uninstall_leaves_torch_as_it_was() -> None:
    before = surface()
    reports: list[tuple[str, str]] = []
    for _ in range(2):
        hooks.install(lambda kind, text: reports.append((kind, text)))
        hooks.install()
        assert surface() != before
        assert all(state.startswith(("on", "waiting")) for state in hooks.status().values())
        hooks.uninstall()
        hooks.uninstall()
        assert surface() == before
    assert reports == []
    assert set(hooks.status().values()) == {"off: not installed"}


def test_install_before_torch_is_imported() -> None:
    program = """
        import sys
        from haiprof.capture import hooks
        path = list(sys.meta_path)
        hooks.install(lambda kind, text: print(kind, text))
        assert "torch" not in sys.modules
        found = hooks.status()
        assert found.pop("gc") == "on: gc.callbacks", found
        assert found.pop("io") == "on: import slots", found
        assert set(found.values()) == {"waiting: torch is not imported"}, found
        import json, torch
        assert hooks.status()["modules"].startswith("on"), hooks.status()
        assert type(torch.__loader__).__name__ == "SourceFileLoader", torch.__loader__
        assert torch.__spec__.loader is torch.__loader__
        hooks.uninstall()
        assert sys.meta_path == path
        print("done")
    """
    assert run_python(program) == "done\n"


def test_a_torch_that_cannot_be_imported_fails_as_ever(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('broken build')\n")
    program = """
        import sys
        sys.path.insert(0, sys.argv[1])
        from haiprof.capture import hooks
        hooks.install(lambda kind, text: print(kind, text))
        for _ in range(2):
            try:
                import torch
            except ImportError as error:
                print(error)
    """
    assert run_python(program, str(tmp_path)) == "broken build\n" * 2


@pytest.fixture
def unknown_torch(tmp_path: Path) -> str:
    """A folder with a torch that no hook can be attached to."""
    (tmp_path / "torch.py").write_text("is_grad_enabled = bool\n")
    return str(tmp_path)


def test_an_unknown_torch_is_reported_hook_by_hook(unknown_torch: str, shm: Path) -> None:
    program = """
        import sys
        sys.path.insert(0, sys.argv[1])
        from haiprof import _core
        from haiprof.capture import hooks
        _core.open_ring(sys.argv[2] + "/test.ring")
        reports = []
        hooks.install(lambda kind, text: reports.append(text))
        import torch
        off = [name for name, state in hooks.status().items() if state.startswith("off: ")]
        assert {"modules", "backward", "optimizer", "scaler", "dataloader"} <= set(off), off
        for name in off:
            assert sum(name in text.partition(" cannot ")[0] for text in reports) == 1, reports
        hooks.uninstall()
        print("done")
    """
    assert run_python(program, unknown_torch, str(shm)) == "done\n"


def test_a_torch_that_nothing_is_attached_to_opens_no_ring(unknown_torch: str, shm: Path) -> None:
    program = """
        import sys
        sys.path.insert(0, sys.argv[1])
        from haiprof import _core
        from haiprof.capture import hooks
        reports, opened = [], []
        _core.set_opener(opened.append)
        hooks.install(lambda kind, text: reports.append(text) or _core.event(kind, text))
        import torch
        hooks.report_kept()
        assert (reports, opened) == ([], []), (reports, opened)
        _core.open_ring(sys.argv[2] + "/test.ring")
        hooks.report_kept()
        print(len(reports) > 3)
    """
    assert run_python(program, unknown_torch, str(shm)) == "True\n"


def test_a_report_may_wait_for_a_thread_that_waits_for_the_hooks(
    unknown_torch: str, shm: Path
) -> None:
    program = """
        import sys, threading
        sys.path.insert(0, sys.argv[1])
        from haiprof import _core
        from haiprof.capture import hooks
        _core.open_ring(sys.argv[2] + "/test.ring")
        session, reporting, got = threading.Lock(), threading.Event(), []

        def report(kind, text):
            reporting.set()
            got.append(session.acquire(timeout=5))
            session.release()

        hooks.install(report)
        importer = threading.Thread(target=lambda: __import__("torch"))
        with session:
            importer.start()
            assert reporting.wait(10)
            hooks.status()
        importer.join()
        print(len(got) > 3, all(got))
    """
    assert run_python(program, unknown_torch, str(shm)) == "True True\n"


def test_a_torch_that_does_not_say_when_it_traces_keeps_the_other_hooks(
    rewriting: None, shm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(torch.compiler, "is_dynamo_compiling")
    reports: list[str] = []
    _core.phases_reset()
    _core.open_ring(str(shm / "test.ring"))
    try:
        hooks.install(lambda kind, text: reports.append(text))
        assert {n for n, s in hooks.status().items() if s.startswith("off")} == {
            "modules", "compiled", "optimizer",
        }  # fmt: skip
        assert len(reports) == 1
        assert "is_dynamo_compiling" in reports[0]
        for (x,) in dataloader.DataLoader([(torch.ones(2, requires_grad=True),)], batch_size=None):
            x.sum().backward()
        _core.phases_finish()
    finally:
        hooks.uninstall()
        _core.close_ring()
        _core.phases_reset()
    assert {"dataloader", "backward"} <= {row.name for row in read_spans(shm / "test.ring")}


def test_a_backward_whose_source_cannot_be_read_is_left_as_it_was(
    rewriting: None, shm: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, reports = surface(), []
    rewritten = watch.with_calls

    def with_calls(function: Any, *others: Any) -> Any:
        if function is torch.autograd.backward:
            raise IndexError("somebody edited the file meanwhile")
        return rewritten(function, *others)

    monkeypatch.setattr(watch, "with_calls", with_calls)
    _core.open_ring(str(shm / "test.ring"))
    try:
        hooks.install(lambda kind, text: reports.append(text))
        assert hooks.status()["backward"] == "on: autograd engine"
        assert len(reports) == 1
        assert "somebody edited" in reports[0]
    finally:
        hooks.uninstall()
        _core.close_ring()
    assert surface() == before


def test_importing_hooks_imports_no_torch_and_is_quick() -> None:
    program = """
        import sys, time
        begin = time.process_time()
        import haiprof.capture.hooks
        haiprof.capture.hooks.install()
        spent = time.process_time() - begin
        heavy = {"torch", "numpy", "pyarrow", "polars"} & set(sys.modules)
        print(len(heavy), spent)
    """
    for _ in range(5):  # others may have the caches
        heavy, spent = run_python(program).split()
        assert heavy == "0"
        if float(spent) < 0.1:
            break
    assert float(spent) < 0.1


def test_a_wrapper_put_over_ours_survives() -> None:
    original = dataloader.DataLoader.__dict__["__iter__"]
    hooks.install()
    ours = dataloader.DataLoader.__dict__["__iter__"]

    def theirs(self: Any) -> Any:
        return ours(self)

    dataloader.DataLoader.__iter__ = theirs
    try:
        hooks.uninstall()
        assert dataloader.DataLoader.__dict__["__iter__"] is theirs
        assert len(list(dataloader.DataLoader(range(4)))) == 4
    finally:
        dataloader.DataLoader.__iter__ = original


def test_wrapped_call_looks_like_the_original() -> None:
    def original(self: Any, x: int, *, y: int = 2) -> int:
        """Add."""
        return x + y

    class Owner:
        method = _core.WrappedCall(original, "fetch")

    wrapped = Owner.__dict__["method"]
    assert Owner().method(1, y=3) == 4
    assert Owner.method(None, 1) == 3
    assert inspect.ismethod(Owner().method)
    assert wrapped.__name__ == "original"
    assert wrapped.__doc__ == "Add."
    assert wrapped.__module__ == __name__
    assert wrapped.__wrapped__ is original
    assert str(inspect.signature(wrapped)) == str(inspect.signature(original))
    with pytest.raises(TypeError, match="original"):
        Owner().method()
    with pytest.raises(AttributeError):
        _ = wrapped.nothing


def test_wrapped_call_refuses_nonsense() -> None:
    for arguments in ((print, "dance"), (3, "fetch")):
        with pytest.raises(ValueError, match="WrappedCall"):
            _core.WrappedCall(*arguments)


def test_modules_and_loaders_stay_picklable() -> None:
    hooks.install()
    try:
        model = pickle.loads(pickle.dumps(nn.Linear(2, 2)))
        loader = pickle.loads(pickle.dumps(dataloader.DataLoader([1, 2])))
        function = pickle.loads(pickle.dumps(dataloader.DataLoader.__iter__))
        assert model(torch.ones(2)).shape == (2,)
        assert [int(x) for x in loader] == [1, 2]
        assert function is dataloader.DataLoader.__iter__
    finally:
        hooks.uninstall()


class Failing(nn.Module):
    def forward(self) -> None:
        raise KeyError("somewhere inside")


def lines_of_failure() -> list[tuple[str, int | None, str | None]]:
    try:
        Failing()()
    except KeyError as error:
        return [(f.filename, f.lineno, f.line) for f in traceback.extract_tb(error.__traceback__)]
    raise AssertionError


def test_tracebacks_are_the_same() -> None:
    before = lines_of_failure()
    hooks.install()
    try:
        assert lines_of_failure() == before
    finally:
        hooks.uninstall()


def test_busy_monitoring_tools_are_left_alone(recorded: Any, rewriting: None) -> None:
    hooks.install()
    assert hooks.status()["modules"] == "on: rewritten code"
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters())
    for _ in range(4):
        model(torch.ones(4)).sum().backward()
        optimizer.step()
    assert len(recorded.steps()) == 4
    assert recorded.counts(2) == {"forward": 1, "backward": 1, "optimizer": 1}


def test_nothing_is_recorded_without_a_ring() -> None:
    _core.phases_reset()
    hooks.install()
    try:
        for _ in range(3):
            nn.Linear(4, 1)(torch.ones(4)).sum().backward()
        assert _core.current_step() is None
    finally:
        hooks.uninstall()
