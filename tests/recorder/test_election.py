"""Who is the recorder of a run, asked of a folder that may be another user's."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from recording import run_python

from haiprof.common.places import LOCK_NAME
from haiprof.recorder.election import Election, recorder_pid, recorder_running


def test_who_holds_the_lock_is_the_recorder(tmp_path: Path) -> None:
    rings = tmp_path / "rings" / "run"
    assert recorder_pid(rings) is None
    with Election(rings) as election:
        assert election.win()
        assert recorder_running(rings)
        assert recorder_pid(rings) == os.getpid()
        (rings / LOCK_NAME).write_text("x" * 100)
        assert recorder_pid(rings) is None
    assert not recorder_running(rings)


def test_whatever_lies_there_holds_nobody_up(tmp_path: Path) -> None:
    pipe = tmp_path / LOCK_NAME
    os.mkfifo(pipe)
    locked = os.open(pipe, os.O_RDWR)
    fcntl.flock(locked, fcntl.LOCK_EX)
    program = """
        import pathlib, sys
        from haiprof.recorder.election import recorder_pid
        print(recorder_pid(pathlib.Path(sys.argv[1])))
    """
    try:
        assert run_python(program, str(tmp_path)).split() == ["None"]
    finally:
        os.close(locked)
