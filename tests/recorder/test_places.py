"""Where rings and runs lie when the first place cannot be had, and folders with odd names."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import HAIPROF, haiprof
from containers import needs_namespaces
from recording import python, read_table, recorders, run_python, wait_for

from haiprof import _core
from haiprof.cli.doctor import itself
from haiprof.common.places import (
    control_socket,
    in_ring_dir,
    open_rings,
    ring_dirs,
    ring_root,
    ring_roots,
)
from haiprof.recorder.recover import stale_ring_dirs

OTHER = 12345
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
#: Records until a line comes.
JOB = """
    import haiprof, sys
    session = haiprof.start(sys.argv[1], run="run", hooks=False, ring_mib=2)
    with haiprof.range(sys.argv[2]):
        pass
    print(session.recording, flush=True)
    sys.stdin.readline()
    haiprof.stop()
"""


#: Removes an empty folder whenever it is there, until its input ends.
REMOVES = """
import contextlib, os, select, sys
while not select.select([0], [], [], 0.0005)[0]:
    with contextlib.suppress(OSError):
        os.rmdir(sys.argv[1])
"""


def squat(place: Path, kind: str) -> None:
    """Have another user take a name."""
    if kind == "folder":
        place.mkdir(mode=0o700)
    elif kind == "file":
        place.write_text("")
    elif kind == "link":
        (place.parent / "away").mkdir()
        place.symlink_to(place.parent / "away")
    if os.geteuid() == 0:
        os.chown(place, OTHER, OTHER, follow_symlinks=False)


def spans(log_dir: Path) -> set[str]:
    folders = log_dir.glob("run/*#*")
    return {name for f in folders for name in read_table(f, "spans")["name"].to_pylist()}


@contextlib.contextmanager
def recorded(log_dir: Path, name: str) -> Iterator[subprocess.Popen[str]]:
    """Run a job that records a span of this name until it is ended."""
    with python(JOB, str(log_dir), name, stdin=subprocess.PIPE) as job:
        try:
            assert job.stdout is not None
            assert job.stdout.readline() == "True\n"
            yield job
        finally:
            job.kill()


def end(job: subprocess.Popen[str]) -> str:
    """End a job; return what it said on stderr."""
    _, said = job.communicate("\n", timeout=120)
    assert job.returncode == 0, said
    return said


# -- rings ---------------------------------------------------------------------------------------


@needs_root
@pytest.mark.parametrize("kind", ["folder", "file", "link"])
def test_a_squatted_place_costs_one_line(shm: Path, tmp_path: Path, kind: str) -> None:
    place = shm / f"haiprof-{os.getuid()}"
    squat(place, kind)
    with recorded(tmp_path, "first") as first, recorded(tmp_path, "second") as second:
        rows = json.loads(haiprof("ps", "--json").stdout)
        assert {(p["pid"], p["state"]) for p in rows} == {
            (first.pid, "recording"),
            (second.pid, "recording"),
        }
        assert len({p["recorder"] for p in rows}) == 1
        assert haiprof("flush", tmp_path / "run").returncode == 0
        assert spans(tmp_path) == {"first", "second"}
        said = end(first)
        assert said.count("\n") == 1, said
        assert f"{place}: exists but is not a folder of this user" in said
        assert f"rings are kept in {place}.1 instead" in said
        assert end(second) == ""
    wait_for(lambda: not recorders(shm), 60)


def test_what_a_squatter_removes_again_hides_no_place(shm: Path) -> None:
    for n in (0, 1, 2):
        squat(shm / (f"haiprof-{os.getuid()}.{n}" if n else f"haiprof-{os.getuid()}"), "file")
    said: list[str] = []
    rings = in_ring_dir(shm / "logs/run", _makes, said.append)
    assert rings.parent == shm / f"haiprof-{os.getuid()}.3"
    assert len(said) == 1
    (shm / f"haiprof-{os.getuid()}.1").unlink()
    assert [root.path for root in ring_roots()] == [rings.parent]
    assert ring_dirs(shm / "logs/run") == [rings]
    assert in_ring_dir(shm / "logs/run", _makes, said.append) == rings
    assert len(said) == 1
    assert control_socket().parent.parent == shm / f"haiprof-{os.getuid()}.1"


def _makes(folder: Path) -> Path:
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def test_other_folders_serve_where_the_first_cannot(
    shm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = shm / "second"
    second.mkdir()
    monkeypatch.setenv("HAIPROF_SHM_DIR", f"{shm / 'missing'}:{second}")
    with recorded(tmp_path, "work") as job:
        rows = json.loads(haiprof("ps", "--json").stdout)
        assert [p["pid"] for p in rows] == [job.pid]
        assert haiprof("stop", str(job.pid)).returncode == 0
        said = end(job)
    assert said.count("\n") == 1, said
    assert f"{shm / 'missing'}: No such file or directory; rings are kept in {second}" in said
    wait_for(lambda: not recorders(shm), 60)
    assert spans(tmp_path) == {"work"}
    (found,) = itself.shared_memory()
    assert found.state == "ok"
    assert str(second) in found.found


def test_a_dead_ring_in_the_second_place_is_recovered(
    shm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = shm / "second"
    second.mkdir()
    monkeypatch.setenv("HAIPROF_SHM_DIR", f"{shm / 'missing'}:{second}")
    run_python(
        """
        import os, sys
        from haiprof.capture.session import ring
        ring.start_recorder = lambda *_: 0
        import haiprof
        haiprof.start(sys.argv[1], run="run", hooks=False, ring_mib=2)
        with haiprof.range("work"):
            pass
        os._exit(0)
        """,
        str(tmp_path),
    )
    assert [p.parent.parent for p in stale_ring_dirs()] == [second]
    assert haiprof("recover").returncode == 0
    assert spans(tmp_path) == {"work"}


def test_full_read_only_and_noexec_places(shm: Path, tmp_path: Path) -> None:
    needs_namespaces(["unshare", "--mount"])
    mounts = {"full": "size=1m", "read-only": "ro", "noexec": "noexec,size=64m"}
    for name in mounts:
        (shm / name).mkdir()
    script = "\n".join(f"mount -t tmpfs -o {o} none {shm / n}" for n, o in mounts.items())
    environment = {**os.environ, "HAIPROF_SHM_DIR": ":".join(str(shm / n) for n in mounts)}
    program = """
        import haiprof, sys
        session = haiprof.start(sys.argv[1], run="run", hooks=False)
        for _ in range(100_000):
            with haiprof.range("work"):
                pass
        haiprof.flush()
        haiprof.stop()
        """
    (tmp_path / "job.py").write_text("\n".join(line[8:] for line in program.splitlines()))
    done = subprocess.run(
        [
            "unshare",
            "--mount",
            "sh",
            "-ec",
            f'{script}\nexec "$@"',
            "sh",
            sys.executable,
            str(tmp_path / "job.py"),
            str(tmp_path),
        ],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert "No space left on device; rings are kept in" in done.stderr
    assert str(shm / "noexec") in done.stderr
    assert "on a disk" not in done.stderr
    assert spans(tmp_path) == {"work"}


# -- a working folder that has been removed ------------------------------------------------------


def test_a_job_whose_working_folder_is_gone_is_recorded(shm: Path, tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    out = run_python(
        """
        import os, sys
        from pathlib import Path
        from haiprof.common import places
        places._FOR_LOGS = (sys.argv[1],)
        os.chdir(sys.argv[2])
        os.rmdir(sys.argv[2])
        sys.stderr = sys.stdout
        import haiprof
        session = haiprof.start(run="run", hooks=False)
        with haiprof.range("work"):
            pass
        haiprof.stop()
        print(session.run_dir)
        """,
        str(tmp_path),
        str(tmp_path / "gone"),
    )
    logs = tmp_path / f"haiprof-logs-{os.getuid()}" / "haiprof-logs"
    assert out.splitlines() == [
        f"haiprof: the working folder has been removed; the run is kept in {logs / 'run'}",
        str(logs / "run"),
    ]
    assert spans(logs) == {"work"}
    assert (logs.parent.stat().st_mode & 0o777, logs.stat().st_mode & 0o777) == (0o700, 0o700)


def test_a_recorder_starts_from_a_working_folder_that_is_gone(shm: Path, tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    out = run_python(
        """
        import os, sys
        sys.stderr = sys.stdout
        os.chdir(sys.argv[2])
        os.rmdir(sys.argv[2])
        import haiprof
        haiprof.start(sys.argv[1], run="run", hooks=False)
        with haiprof.range("work"):
            pass
        haiprof.stop()
        """,
        str(tmp_path),
        str(tmp_path / "gone"),
    )
    assert out == ""
    assert spans(tmp_path) == {"work"}


def test_haiprof_run_in_a_working_folder_that_is_gone(shm: Path, tmp_path: Path) -> None:
    needs_namespaces(["unshare", "--mount"])
    (tmp_path / "gone").mkdir()
    job = "import haiprof\nwith haiprof.range('work'): pass\nraise SystemExit(3)"
    script = (
        f'mount --bind {tmp_path} /var/tmp; cd {tmp_path}/gone; rmdir {tmp_path}/gone; exec "$@"'
    )
    done = subprocess.run(
        [
            "unshare",
            "--mount",
            "sh",
            "-ec",
            script,
            "sh",
            *HAIPROF,
            "run",
            "--run",
            "run",
            "--",
            sys.executable,
            "-c",
            job,
        ],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 3, done.stderr
    kept = f"/var/tmp/haiprof-logs-{os.getuid()}/haiprof-logs/run"
    assert done.stderr.count("the working folder has been removed") == 1
    assert f"the run is kept in {kept}" in done.stderr
    assert spans(tmp_path / f"haiprof-logs-{os.getuid()}" / "haiprof-logs") == {"work"}


def test_commands_in_a_working_folder_that_is_gone(shm: Path, tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    done = subprocess.run(
        [
            "sh",
            "-c",
            f'cd {tmp_path}/gone; rmdir {tmp_path}/gone; exec "$@"',
            "sh",
            *HAIPROF,
            "flush",
            "nobody",
        ],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 1
    assert "nobody: no such run" in done.stderr


# -- names ---------------------------------------------------------------------------------------


def _names() -> Iterator[tuple[str, bytes]]:
    yield "no_utf8", b"caf\xe9"
    yield "newline", b"a\nb"
    yield "spaces", b" a  b "
    yield "long", b"/".join([b"x" * 200] * 15)


@pytest.mark.parametrize("name", dict(_names()).values(), ids=dict(_names()))
def test_a_ring_names_its_run_whatever_that_is_called(
    shm: Path, tmp_path: Path, name: bytes
) -> None:
    run_dir = tmp_path / os.fsdecode(name) / "run"
    ring = shm / "1.ring"
    run_python(
        """
        import os, sys
        from haiprof import _core
        _core.open_ring(sys.argv[1], bytes=_core.MIN_RING_BYTES, run="run", run_dir=sys.argv[2])
        os._exit(0)
        """,
        str(ring),
        str(run_dir),
    )
    assert _core.RingReader(ring).header["run_dir"] == str(run_dir)


def test_a_ring_of_an_older_layout_has_no_rest_of_a_path(shm: Path) -> None:
    run_dir, ring = "/" + "x" * 2000, shm / "1.ring"
    run_python(
        """
        import os, sys
        from haiprof import _core
        _core.open_ring(sys.argv[1], bytes=_core.MIN_RING_BYTES, run_dir=sys.argv[2])
        os._exit(0)
        """,
        str(ring),
        run_dir,
    )
    with ring.open("r+b") as file:  # its super block ends before the counters
        file.seek(12)
        file.write((2240).to_bytes(4, "little"))
    assert _core.RingReader(ring).header["run_dir"] == run_dir[:1023]


@pytest.mark.parametrize("name", [b"caf\xe9", b"/".join([b"x" * 200] * 8)], ids=["bytes", "long"])
def test_a_log_folder_of_any_name_is_recorded_recovered_and_read(
    shm: Path, tmp_path: Path, name: bytes
) -> None:
    log_dir = tmp_path / os.fsdecode(name)
    said = run_python(
        """
        import os, sys
        sys.stderr = sys.stdout
        from haiprof.capture.session import ring
        ring.start_recorder = lambda *_: 0
        import haiprof
        haiprof.start(sys.argv[1], run="run", hooks=False)
        for _ in range(3):
            haiprof.step()
            with haiprof.range("work"):
                pass
        os._exit(0)
        """,
        str(log_dir),
    )
    assert said == ""
    done = haiprof("recover")
    assert done.returncode == 0, done.stdout
    assert spans(log_dir) >= {"work"}
    done = haiprof("report", log_dir)
    assert done.returncode == 0, done.stderr
    assert (log_dir / "run" / "report.html").is_file()


def test_the_root_of_rings_is_the_first_folder(shm: Path) -> None:
    assert ring_root() == shm / f"haiprof-{os.getuid()}"


def test_a_folder_that_a_leaving_recorder_takes_along_is_made_again(
    tmp_path: Path, shm: Path
) -> None:
    """It is no reason to go to another place."""
    tries: list[Path] = []
    lines: list[str] = []

    def use(folder: Path) -> Path:
        tries.append(folder)
        if len(tries) < 3:
            raise FileNotFoundError(2, "No such file or directory", str(folder))
        return folder

    assert in_ring_dir(tmp_path / "run", use, lines.append).parent == ring_root()
    assert len(set(tries)) == 1
    assert lines == []
    rings = ring_root() / "rings~0"
    with subprocess.Popen(
        [sys.executable, "-c", REMOVES, rings], stdin=subprocess.PIPE
    ) as remover:  # fmt: skip
        for _ in range(3000):
            open_rings(rings, make=True)
        remover.communicate()
