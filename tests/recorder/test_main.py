"""The recorder's process itself."""

from __future__ import annotations

import os
import resource
import subprocess
import time
from pathlib import Path

import pytest
from recording import (
    python,
    read_table,
    recorders,
    run_python,
    the_recorder,
    wait_for,
    wait_recorded,
)

from haiprof.common.places import make_private, ring_dir, ring_root
from haiprof.recorder.launch import ring_doorbell


@pytest.mark.parametrize("module", ["cloudpickle", "numpy", "pandas"])
def test_what_only_recognises_its_arrays_is_not_imported(
    shm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str
) -> None:
    (tmp_path / f"{module}.py").write_text(
        f"open({str(tmp_path / 'imported')!r}, 'a').write('by somebody')\n__version__ = '2.2.0'\n"
    )
    paths = [str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
    program = """
        import sys, haiprof
        haiprof.start(sys.argv[1], run="run")
        with haiprof.range("work"): pass
        haiprof.stop()
    """
    run_python(program, str(tmp_path))
    wait_recorded(shm)
    folder = next(tmp_path.glob("run/*#0"))
    assert read_table(folder, "spans")["name"].to_pylist() == ["work"]
    assert not (tmp_path / "imported").exists()


def test_it_may_have_more_descriptors_than_its_job(shm: Path, tmp_path: Path) -> None:
    program = """
        import resource, sys, haiprof
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (most // 2, most))
        haiprof.start(sys.argv[1], run="run")
        haiprof.mark("work")
        print(most // 2, most, flush=True)
        sys.stdin.readline()
    """
    job = python(program, str(tmp_path), stdin=subprocess.PIPE)
    assert job.stdout is not None
    half, most = job.stdout.readline().split()
    recorder = the_recorder(shm)
    wait_for(lambda: resource.prlimit(recorder, resource.RLIMIT_NOFILE)[0] == int(most))
    assert resource.prlimit(job.pid, resource.RLIMIT_NOFILE)[0] == int(half)
    assert job.communicate("\n", timeout=60)[1] == ""


def test_pyarrow_is_not_loaded_while_it_records(shm: Path, tmp_path: Path) -> None:
    program = """
        import sys, haiprof
        haiprof.start(sys.argv[1], run="run", hang_after=0)
        with haiprof.range("work"): pass
        haiprof.mark("made")
        sys.stdin.readline()
    """
    job = python(program, str(tmp_path), stdin=subprocess.PIPE)
    recorder = the_recorder(shm)
    folder = tmp_path / "run"
    wait_for(lambda: list(folder.glob("*#0/spans-*.arrows")))
    wait_for(lambda: read_table(next(folder.glob("*#0")), "spans").num_rows == 1)
    assert "libarrow" not in Path(f"/proc/{recorder}/maps").read_text()
    assert job.communicate("\n", timeout=60)[1] == ""
    wait_recorded(shm)
    assert list(folder.glob("*#0/spans-*.arrow"))
    assert read_table(next(folder.glob("*#0")), "spans")["name"].to_pylist() == ["work"]


def test_it_leaves_behind_what_it_cannot_read(shm: Path, tmp_path: Path) -> None:
    """A ring of another version, for one; the recorder neither stays for it nor goes in circles."""
    rings = ring_dir(tmp_path / "run")
    make_private(ring_root())
    make_private(rings)
    strange = [rings / "1.ring", rings / "1-1.outside"]
    strange[0].write_bytes(b"of another kind " * 4096)
    strange[1].write_text("{}")
    run_python("import sys, haiprof; haiprof.start(sys.argv[1], run='run')", str(tmp_path))
    wait_for(lambda: not recorders(shm), 20)
    assert sorted(path for path in rings.iterdir() if path.suffix != ".log") == sorted(strange)
    log = (tmp_path / "run/recorder.log").read_text()
    assert log.count("1.ring") == 1
    assert log.count("1-1.outside: is not a note") == 1


def test_what_is_asked_for_at_the_doorbell_is_written_sooner(shm: Path, tmp_path: Path) -> None:
    program = """
        import sys, haiprof
        haiprof.start(sys.argv[1], run="run", hang_after=0)
        with haiprof.range("first"): pass
        for line in sys.stdin:
            with haiprof.range(line.strip()): pass
            print(flush=True)
    """
    job = python(program, str(tmp_path), stdin=subprocess.PIPE)
    assert job.stdin is not None
    assert job.stdout is not None
    the_recorder(shm)
    spans = wait_for(lambda: next(tmp_path.glob("run/*#0/spans-*"), None))
    folder = spans.parent

    def written() -> set[str]:
        return set(read_table(folder, "spans")["name"].to_pylist())

    took = []
    for number in range(4):
        time.sleep(1.1)  # it is written once a second at most
        job.stdin.write(f"range {number}\n")
        job.stdin.flush()
        job.stdout.readline()
        begun = time.monotonic()
        ring_doorbell(ring_dir(tmp_path / "run"))
        wait_for(lambda name=f"range {number}": name in written())
        took.append(time.monotonic() - begun)
    # Otherwise each but the first would take 3.9 s: those and the pauses are turns of 5 s.
    assert min(took[1:]) < 2.5
    job.communicate(timeout=60)
