"""What runs first of haiprof in a process that it was brought into, and the children of that."""

from __future__ import annotations

from pathlib import Path

from recording import run_python, wait_recorded

from haiprof.control import entry


def test_a_child_that_is_forked_meanwhile_is_as_its_parent_was_and_can_import(
    shm: Path, tmp_path: Path
) -> None:
    told = tmp_path / "told"
    told.write_bytes(bytes(entry.ANSWER_BYTES))
    out = run_python(
        """
        import os, signal, sys, threading
        from importlib.machinery import PathFinder
        from haiprof.control import entry

        held, go = threading.Event(), threading.Event()

        class Holds:
            def find_spec(self, name, path=None, target=None):
                if name != "haiprof.session.life" or threading.current_thread() is not brought:
                    return None
                spec = PathFinder.find_spec(name, path)
                execute = spec.loader.exec_module
                def hold(module):
                    held.set()
                    go.wait()
                    execute(module)
                spec.loader.exec_module = hold
                return spec

        sys.meta_path.insert(0, Holds())
        before = sys.getswitchinterval(), list(sys.meta_path)
        given = {"log_dir": sys.argv[1], "run": "r"}
        brought = threading.Thread(target=entry.begin, args=(given, sys.argv[2], None))
        brought.start()
        held.wait(60)
        child = os.fork()
        if child == 0:
            signal.alarm(30)
            as_before = before == (sys.getswitchinterval(), sys.meta_path)
            import haiprof.session
            print(as_before, haiprof.session.active(), flush=True)
            os._exit(0)
        os.waitpid(child, 0)
        go.set()
        brought.join()
        print(before[0] == sys.getswitchinterval(), open(sys.argv[2]).read().strip(chr(0)))
        """,
        str(tmp_path),
        str(told),
    )
    assert out.splitlines() == ["True None", "True ok"]
    wait_recorded(shm)
