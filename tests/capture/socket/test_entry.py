"""What runs first of haiprof in a process that it was brought into, and the children of that."""

from __future__ import annotations

from pathlib import Path

import pytest
from recording import run_python, wait_recorded

from haiprof.capture.bundle import bundle
from haiprof.capture.socket import entry


@pytest.mark.parametrize("bundled", [True, False])
def test_a_child_that_is_forked_meanwhile_is_as_its_parent_was_and_can_import(
    shm: Path, tmp_path: Path, bundled: bool
) -> None:
    answer = tmp_path / "answer"
    answer.write_bytes(bytes(entry.ANSWER_BYTES))
    (tmp_path / "modules").write_bytes(bundle())
    out = run_python(
        """
        import os, signal, sys, threading
        from importlib.machinery import SourceFileLoader
        from haiprof.capture.socket import entry

        held, go = threading.Event(), threading.Event()

        execute = SourceFileLoader.exec_module
        def hold(loader, module):
            ours = module.__name__ == "haiprof.capture.session.recording"
            if ours and threading.current_thread() is brought:
                held.set()
                go.wait()
            execute(loader, module)

        SourceFileLoader.exec_module = hold
        before = sys.getswitchinterval(), list(sys.meta_path)
        given, modules = {"log_dir": sys.argv[1], "run": "r"}, sys.argv[3]
        brought = threading.Thread(target=entry.begin, args=(given, sys.argv[2], None, modules))
        brought.start()
        assert held.wait(60)
        child = os.fork()
        if child == 0:
            signal.alarm(30)
            as_before = before == (sys.getswitchinterval(), sys.meta_path)
            import haiprof.capture.session
            print(as_before, haiprof.capture.session.active(), flush=True)
            os._exit(0)
        os.waitpid(child, 0)
        go.set()
        brought.join()
        print(before[0] == sys.getswitchinterval(), open(sys.argv[2]).read().strip(chr(0)))
        """,
        str(tmp_path),
        str(answer),
        str(tmp_path / "modules") if bundled else "",
    )
    assert out.splitlines() == ["True None", "True ok"]
    wait_recorded(shm)
