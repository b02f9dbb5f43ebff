"""``haiprof doctor``: what works here, what does not, and how to fix it."""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path
from typing import Any

import pytest
from commands import haiprof, only_line

from haiprof import _core
from haiprof.cli import doctor
from haiprof.cli.doctor.finding import failed
from haiprof.cli.doctor.job import hook_findings
from haiprof.options import HOST_RECORDERS

STATES = {"ok", "absent", "denied", "broken"}


def findings(**environment: str) -> tuple[int, dict[str, dict[str, Any]]]:
    done = haiprof("doctor", "--json", "--require", "core", env={**os.environ, **environment})
    document = json.loads(done.stdout)
    assert document["ok"] == (done.returncode == 0) == (done.stderr == "")
    return done.returncode, {f["what"]: f for f in document["findings"]}


def test_here_the_core_works_and_every_finding_is_whole(shm: Path) -> None:
    code, found = findings()
    assert code == 0
    assert {w for w, f in found.items() if f["core"]} == {"shared memory", "clock", "recorder"}
    for what, f in found.items():
        assert f["state"] in STATES
        assert f["found"], what
        assert f["state"] not in ("denied", "broken") or f["mend"], what
    assert {"start file", "torch", "host cpu", "host memory", "GPU kernels"} <= set(found)
    assert not list(shm.glob("*/*"))
    assert not list(shm.glob("*/.*"))


def test_what_it_prints_is_one_line_each_when_nobody_watches(shm: Path) -> None:
    done = haiprof("doctor")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert {line.split()[0] for line in lines} <= STATES
    assert any(line.startswith("ok      shared memory: ") for line in lines)
    assert "\x1b" not in done.stdout


def test_without_shared_memory_the_core_does_not_work(shm: Path, tmp_path: Path) -> None:
    code, found = findings(HAIPROF_SHM_DIR=str(tmp_path / "nowhere"))
    assert code == 1
    assert found["shared memory"]["state"] == "absent"
    assert "HAIPROF_SHM_DIR" in found["shared memory"]["mend"]
    assert found["recorder"]["state"] == "broken"


def test_what_is_missing_is_no_failure_of_who_only_asks(shm: Path, tmp_path: Path) -> None:
    nowhere = {**os.environ, "HAIPROF_SHM_DIR": str(tmp_path / "nowhere")}
    done = haiprof("doctor", env=nowhere)
    assert (done.returncode, done.stderr) == (0, "")
    assert "absent  shared memory: " in done.stdout


def test_a_file_where_rings_should_lie_is_found(shm: Path) -> None:
    place = shm / f"haiprof-{os.getuid()}"
    place.write_text("")
    code, found = findings()
    assert code == 0
    assert f"rings go to {place}.1" in found["shared memory"]["found"]
    assert found["shared memory"]["mend"] == "remove it"
    assert found["recorder"]["state"] == "ok"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
def test_a_ring_folder_of_somebody_else_is_named(shm: Path) -> None:
    folder = shm / f"haiprof-{os.getuid()}"
    folder.mkdir()
    os.chown(folder, 12345, 12345)
    code, found = findings()
    assert code == 0
    assert f"{folder} exists but is not a folder of this user" in found["shared memory"]["found"]
    assert found["recorder"]["state"] == "ok"


def test_rings_without_a_recorder_are_named(shm: Path) -> None:
    folder = shm / f"haiprof-{os.getuid()}" / "forgotten"
    folder.mkdir(parents=True, mode=0o700)
    (folder / "1.ring").write_bytes(b"x")
    code, found = findings()
    assert code == 0
    assert "forgotten" in found["left over"]["found"]
    assert found["left over"]["mend"] == "haiprof recover"


@pytest.fixture
def no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spare the interpreters that ask for torch, which take seconds."""
    monkeypatch.setattr(doctor.job, "ask_python", lambda *_: (1, "", "No module named 'torch'"))


@pytest.mark.usefixtures("no_torch")
def test_the_size_that_a_ring_is_asked_for_is_the_one_that_must_fit(
    shm: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def room(mib: int) -> os.statvfs_result:
        blocks = mib * 2**20 // 4096
        return os.statvfs_result((4096, 4096, blocks, blocks, blocks, 1, 1, 1, 0, 255))

    monkeypatch.setenv("HAIPROF_RING_MIB", "200")
    monkeypatch.setattr(os, "statvfs", lambda _: room(100))
    doctor.examine(as_json=False)
    printed = capsys.readouterr().out
    assert "100 MiB free of 100 MiB; the next ring takes half of that instead of 200 MiB" in printed
    monkeypatch.setattr(os, "statvfs", lambda _: room(3))
    assert doctor.examine(as_json=False, require="core") == 1
    assert "which must be 2 MiB" in capsys.readouterr().out


@pytest.mark.usefixtures("no_torch")
def test_a_check_of_the_core_that_fails_is_no_success(
    shm: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise RuntimeError("no ring today")

    monkeypatch.setattr("haiprof._core.open_ring", fails)
    assert doctor.examine(as_json=True, require="core") == 1
    document = json.loads(capsys.readouterr().out)
    assert not document["ok"]
    (found,) = (f for f in document["findings"] if "no ring today" in f["found"])
    assert (found["state"], found["core"]) == ("broken", True)


def test_a_harmless_word_of_the_recorders_python_is_no_failure(shm: Path, tmp_path: Path) -> None:
    # Python says such a thing of every broken .pth file, and goes on.
    (tmp_path / "sitecustomize.py").write_text(
        "import sys; sys.stderr.write('Error processing line 1 of x.pth:\\n')"
    )
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    done = haiprof("doctor", "--json", env={**os.environ, "PYTHONPATH": path})
    found = {f["what"]: f for f in json.loads(done.stdout)["findings"]}
    assert found["recorder"]["state"] == "ok"


def test_a_recorder_that_cannot_start_is_reported_by_its_last_line(
    shm: Path, tmp_path: Path
) -> None:
    # The recorder is the one Python of them all whose program has this name.
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "if any('haiprof.recorder' in word for word in sys.orig_argv):\n"
        "    raise SystemExit('no recorder today')\n"
    )
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    code, found = findings(PYTHONPATH=path)
    assert code == 1
    assert (found["recorder"]["state"], found["recorder"]["found"]) == (
        "broken",
        "SystemExit: no recorder today",
    )


def test_a_recorder_that_cannot_close_large_files_is_broken(shm: Path, tmp_path: Path) -> None:
    (tmp_path / "pyarrow.py").write_text("raise ImportError('pyarrow is broken here')")
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    code, found = findings(PYTHONPATH=path)
    assert code == 1
    recorder = found["recorder"]
    assert recorder["state"] == "broken"
    assert recorder["found"] == (
        "a record reached its file, but files of a longer job cannot be closed: "
        "pyarrow is broken here"
    )
    assert recorder["mend"] == "reinstall pyarrow here"


def test_a_wrong_variable_is_named(shm: Path) -> None:
    _, found = findings(HAIPROF_SAMPLE_HZ="often")
    assert "HAIPROF_SAMPLE_HZ='often'" in found["environment"]["found"]
    assert found["environment"]["mend"]


def test_every_source_belongs_to_its_recorder_and_recorders_stay_together(shm: Path) -> None:
    done = haiprof("doctor", "--json")
    document = json.loads(done.stdout)
    keys = {"what", "state", "found", "mend", "recorder", "core"}
    assert all(set(f) == keys for f in document["findings"])
    groups = [f["recorder"] for f in document["findings"]]
    named = [group for group, _ in itertools.groupby(groups) if group]
    assert named == [name for name in HOST_RECORDERS if name in named]
    assert {"basic", "gpu", "io"} <= set(named)
    of = {f["what"]: f["recorder"] for f in document["findings"]}
    assert (of["host cpu"], of["GPU sampling"], of["torch"]) == ("basic", "gpu", "")
    assert [f["what"] for f in document["findings"]].count("host cpu") == 1
    assert isinstance(document["uncore_plan"], list)
    assert isinstance(document["uncore_problems"], list)


def test_what_is_required_and_missing_is_one_line_each_and_the_exit_code(shm: Path) -> None:
    done = haiprof("doctor", "--json", "--require", "cpu,basic,GPU kernels")
    document = json.loads(done.stdout)
    assert done.returncode == 1
    assert document["ok"]
    (line,) = document["unmet"]
    assert line.startswith("gpu_kernels is absent: no NVIDIA driver")
    assert done.stderr == f"haiprof: {line}\n"


def test_an_unknown_requirement_is_one_line_that_names_what_there_is(shm: Path) -> None:
    done = haiprof("doctor", "--require", "basic,ethernet")
    assert done.returncode == 2
    line = "there is nothing named 'ethernet' here; the names are all, core, basic,"
    assert line in only_line(done)


@pytest.mark.usefixtures("no_torch")
def test_a_recorder_whose_sources_fail_hides_no_other(
    shm: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    original = _core.HostSampler

    def sampler(**keywords: Any) -> _core.HostSampler:
        if keywords["io"]:
            raise RuntimeError("no disks today")
        return original(**keywords)

    monkeypatch.setattr(_core, "HostSampler", sampler)
    assert doctor.examine(as_json=True) == 0
    found = {f["what"]: f for f in json.loads(capsys.readouterr().out)["findings"]}
    assert found["io sources"]["state"] == "broken"
    assert "no disks today" in found["io sources"]["found"]
    assert found["host cpu"]["state"] == "ok"


@pytest.mark.usefixtures("no_torch")
def test_without_a_usable_sys_the_rest_is_examined(
    shm: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def shows_none(folder: str) -> Path:
        raise ValueError("is not a sysfs")

    monkeypatch.setattr(doctor.plans, "find_sysfs", shows_none)
    assert doctor.examine(as_json=True, require="core") == 0
    found = {f["what"]: f for f in json.loads(capsys.readouterr().out)["findings"]}
    assert found["sys and proc"]["state"] == "absent"
    assert "/sys: is not a sysfs" in found["sys and proc"]["found"]
    assert found["sys and proc"]["mend"].startswith("mount them here")
    assert found["host cpu"]["state"] == "ok"


def test_a_file_that_may_not_be_read_is_named_and_no_bug() -> None:
    error = PermissionError(13, "Permission denied", "/sys/kernel/debug/x")
    found = failed("mem sources", error, "mem")
    assert (found.state, found.recorder) == ("denied", "mem")
    assert found.found == "/sys/kernel/debug/x: Permission denied"
    assert "bug" not in found.fix
    assert failed("x", FileNotFoundError(2, "No such file", b"/proc/x")).state == "broken"
    assert "bug of haiprof" in failed("x", RuntimeError("odd")).fix


@pytest.mark.parametrize(
    ("hook", "why", "state", "fix"),
    [
        ("dataloader", "off: no __next__", "broken", "haiprof.step()"),
        ("io", "off: OSError('process_vm_readv is not permitted here')", "denied", "SYS_PTRACE"),
        ("gc", "off: TypeError()", "broken", "bug"),
        ("io", "on: import slots", "ok", ""),
        ("nccl", "off: RuntimeError('NCCL 2.21.5 is older than 2.27')", "absent", "newer NCCL"),
    ],
)
def test_what_fixes_a_hook_depends_on_what_it_sees(
    hook: str, why: str, state: str, fix: str
) -> None:
    (found,) = hook_findings({hook: why})
    assert (found.what, found.state, found.found) == (f"hook {hook}", state, why)
    assert fix in found.fix
    assert fix == "haiprof.step()" or "haiprof.step()" not in found.fix
