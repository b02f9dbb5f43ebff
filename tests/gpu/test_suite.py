"""The suite for a machine with a GPU: its plan, its results, and a run of it without one."""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gpu.suite
import pytest
from gpu.estimates import Estimate
from gpu.install import Installed, install
from gpu.part import Part
from gpu.plan import PLAN, Planned, chosen, together
from gpu.results import number, page, parsed, replace, write
from gpu.suite import FIRST, IN_ALL, RINGS, Suite, folder_for_rings
from recording import wait_for

TESTS = Path(__file__).resolve().parents[1]
#: All that a run leaves.
FILES = {"summary.json", "gpu.json", "gpu.md", "log.txt", "buffers.tar.gz"}
#: Programs that end by themselves soon after their suite.
BRIEF = (b"haiprof.recorder", b"train_digits")
#: What a run takes at most without a GPU, s, on two cores with nothing else to do.
WITHOUT_GPU = 180.0
#: On a machine with much else to do.
MOST = 5 * WITHOUT_GPU


def _path(*before: Path) -> str:
    found = [*map(str, before), os.environ.get("PYTHONPATH", "")]
    return os.pathsep.join(filter(None, found))


# -- results -------------------------------------------------------------------------------------


def _part(**changes: Any) -> dict[str, Any]:
    return {"name": "p", "title": "P", "state": "done", "reason": "", "seconds": 1.0,
            "rows": [], "facts": {}, "failures": [], **changes}  # fmt: skip


def _results(*parts: dict[str, Any], **machine: Any) -> dict[str, Any]:
    return {"state": "running", "machine": machine, "waiting": [], "parts": list(parts)}


def test_rows_of_a_part_become_lines_of_a_table(tmp_path: Path) -> None:
    out = tmp_path / "out"
    part = Part("m", "cpu", 60, out, "")
    part.limited("longer | slower", Estimate(0.12345, 0.1, 0.2, 12), "%", 0.15, "of\n9")
    part.fact("told", ["a", 1])
    part.failed("clock", "it stood still")
    found = parsed(out.read_text() + '{"row": "cut o')
    [row] = found["rows"]
    assert row["met"] is None
    assert row["target"] == "<= 0.15"
    results = _results(_part(**found), gpu="H")
    said = write(tmp_path, results)
    assert said["targets_undecided"] == said["pieces_failed"] == 1
    assert said["undecided"] == ["p: longer | slower: 0.1235 %, target <= 0.15; of 9"]
    assert said["not_measured"] == ["p: clock: it stood still"]
    text = page(results)
    assert "| longer \\| slower | 0.1235 % | 0.1 to 0.2 | 12 | <= 0.15 | undecided | of 9 |" in text
    assert "Not measured: clock: it stood still" in text
    assert "- gpu: H" in text


def test_every_row_has_as_many_cells_as_the_head(tmp_path: Path) -> None:
    out = tmp_path / "out"
    part = Part("m", "cpu", 60, out, "")
    part.row("a", 1.0, "s")
    part.check("b|c", False, "d|e")
    write(tmp_path, _results(_part(**parsed(out.read_text()))))
    assert json.loads((tmp_path / "gpu.json").read_text())["summary"]["targets_not_met"] == 1
    lines = [li for li in (tmp_path / "gpu.md").read_text().splitlines() if li.startswith("|")]
    assert len(lines) == 4
    assert {line.replace("\\|", "").count("|") for line in lines} == {8}


def test_of_rows_with_one_name_the_last_counts_and_rounds_are_kept(tmp_path: Path) -> None:
    part = Part("m", "cpu", 60, tmp_path / "out", "")
    part.row("so far", 1.0, "s")
    part.round({"off": 1.5})
    part.row("so far", 2.0, "s")
    found = parsed(part.out.read_text())
    assert [row["value"] for row in found["rows"]] == [2.0]
    assert found["rounds"] == [{"off": 1.5}]


@pytest.mark.parametrize(("device", "more"), [("cuda", True), ("cpu", False)])
def test_rounds_go_on_for_a_time_only_where_times_mean_something(
    device: str, more: bool, tmp_path: Path
) -> None:
    part = Part("m", device, 60, tmp_path / "out", "")
    assert part.rounds(30)() is more
    assert part.spend(30)()
    assert not part.rounds(0)()


def test_a_file_is_replaced_and_nothing_else_lies_beside_it(tmp_path: Path) -> None:
    folder = tmp_path / "results"
    folder.mkdir()
    replace(folder / "a", b"old")
    before = (folder / "a").stat().st_ino
    replace(folder / "a", b"new")
    assert (folder / "a").read_bytes() == b"new"
    assert (folder / "a").stat().st_ino != before  # never written in place
    assert [path.name for path in folder.iterdir()] == ["a"]
    assert [path.name for path in tmp_path.iterdir()] == ["results"]


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (12345678.0, "12 345 678"), (0.012345, "0.01235"), (98765.4, "98 765")],
)
def test_numbers_are_short(value: float, text: str) -> None:
    assert number(value) == text


# -- the suite itself ----------------------------------------------------------------------------


def _seconds(group: str) -> list[float]:
    return [part.seconds for part in PLAN if part.group == group]


def test_the_parts_fit_into_the_time() -> None:
    # Limits are for what goes wrong; most parts end earlier.
    assert max(_seconds("raw")) <= 75
    # A dozen parts at a time, of which the longest begin first, but for those without haiprof.
    correctness = max(*_seconds("correctness"), sum(_seconds("correctness")) / 12)
    assert max(_seconds("raw")) + correctness <= FIRST
    assert sum(_seconds("rest")) + max(_seconds("raw")) <= IN_ALL
    [overhead] = _seconds("overhead")
    assert overhead <= 60
    assert [part.fills for part in PLAN] == [False] * (len(PLAN) - 1) + [True]


def test_the_order_is_first_what_is_right_and_last_what_it_costs() -> None:
    groups = list(dict.fromkeys(part.group for part in PLAN))
    assert groups == ["raw", "correctness", "rest", "overhead"]
    assert len({part.name for part in PLAN}) == len(PLAN)
    for part in PLAN:
        assert importlib.util.find_spec(f"gpu.parts.{part.module}") is not None
    pieces = together(PLAN, everything=False)
    assert [piece[0].group for piece in pieces[:2]] == ["raw", "correctness"]
    assert all(len(piece) == 1 for piece in pieces[2:])
    assert len(together(PLAN, everything=True)) == len(groups)


def test_groups_and_parts_can_be_chosen() -> None:
    def names(only: str) -> list[str]:
        return [part.name for part in chosen(only)]

    assert chosen("") == PLAN
    assert names("first") == [p.name for p in PLAN if p.group in ("raw", "correctness")]
    assert names("overhead") == ["machine", "overhead"]
    assert names("rest,counts")[:2] == ["machine", "counts"]
    assert names("soak,counts") == ["counts", "soak"]
    with pytest.raises(ValueError, match="called 'sok'; there are first, correctness, "):
        chosen("sok")


@pytest.mark.parametrize(("free", "base"), [(RINGS, "/dev/shm"), (RINGS - 1, None)])
def test_rings_lie_in_shared_memory_if_there_is_enough_of_it(
    free: int, base: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HAIPROF_SHM_DIR", raising=False)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=free))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder, said = folder_for_rings()
    try:
        assert folder.startswith(base or str(tmp_path))
        assert ("too little: rings lie in" in said) == (base is None)
    finally:
        shutil.rmtree(folder)


def _suite(folder: Path, seconds: float = 60, **more: Any) -> Suite:
    environment = {**os.environ, "PYTHONPATH": _path(TESTS, folder)}
    return Suite(folder, time.time() + seconds, "cpu", environment, {}, **more)


@pytest.fixture
def made_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make a part of a program text, run it and return what the suite tells of it."""
    package = tmp_path / "gpu" / "parts"
    package.mkdir(parents=True)
    monkeypatch.setattr(gpu.suite, "PATIENCE", 0.0)

    def run(body: str, seconds: float = 20) -> dict[str, Any]:
        program = "import os, sys, time\nfrom gpu.part import main\ndef measure(part):\n"
        program += "".join(f"    {line}\n" for line in body.splitlines())
        (package / "made_up.py").write_text(program + "main(measure)\n")
        return _suite(tmp_path).part(Planned("machine", "M", "made_up", seconds))

    return run


def test_a_part_that_works(made_up: Any) -> None:
    result = made_up("part.row('a', 1.0, 's')")
    assert result["state"] == "done"
    assert [row["what"] for row in result["rows"]] == ["a"]


@pytest.mark.parametrize(
    ("end", "state", "reason"),
    [
        ("raise OSError('it is gone')", "failed", "OSError: it is gone"),
        ("os.kill(os.getpid(), 11)", "failed", "it was ended by SIGSEGV; it said nothing"),
        ("time.sleep(60)", "timeout", "it took more than 3 s; it said nothing"),
        ("sys.exit(7)", "failed", "it said nothing"),
    ],
)
def test_a_part_that_ends_badly_keeps_its_rows(
    made_up: Any, end: str, state: str, reason: str
) -> None:
    result = made_up(f"part.row('a', 1.0, 's')\n{end}", 3)
    assert (result["state"], result["reason"]) == (state, reason)
    assert [row["what"] for row in result["rows"]] == ["a"]


def test_a_part_of_which_no_piece_works_has_failed(made_up: Any) -> None:
    result = made_up("part.piece('b', [].index, 9)")
    assert result["state"] == "failed"
    assert result["reason"].startswith("ValueError: ")


def test_a_part_that_no_longer_fits_is_left_out(tmp_path: Path) -> None:
    result = _suite(tmp_path, 10).part(Planned("machine", "M", "machine", 30))
    assert result["state"] == "skipped"
    assert result["reason"] == "10 s were left, and it takes 30 s"


def test_parts_beside_each_other_are_all_reported(tmp_path: Path) -> None:
    suite = _suite(tmp_path, 0)
    plan = tuple(Planned(name, "T", "machine", 30, group="correctness")
                 for name in ("forks", "ends", "capture"))  # fmt: skip
    suite.run((*plan, Planned("soak", "T", "machine", 30, group="rest")))
    found = json.loads((tmp_path / "gpu.json").read_text())
    assert [part["name"] for part in found["parts"]] == ["capture", "forks", "ends", "soak"]
    assert found["summary"]["parts_skipped"] == 4


def test_parts_beside_each_other_have_rings_of_their_own(made_up: Any, shm: Path) -> None:
    # Runs of one name in one folder share a recorder, and all of the suite's have one name.
    result = made_up("part.fact('rings', os.environ['HAIPROF_SHM_DIR'])")
    assert result["facts"]["rings"] == str(shm / "machine")
    assert (shm / "machine").is_dir()


def test_a_part_may_skip_itself(made_up: Any) -> None:
    result = made_up("part.row('a', 1.0, 's')\npart.needs_gpu()")
    assert (result["state"], result["reason"]) == ("skipped", "needs a GPU")
    assert len(result["rows"]) == 1


def test_forks_of_a_part_that_hang_or_crash_keep_their_rows(made_up: Any) -> None:
    result = made_up(
        """
def good(): part.row('good', 1.0, 's')
def hangs():
    part.row('before it hangs', 1.0, 's')
    time.sleep(60)
def crashes(): os.kill(os.getpid(), 11)
def fails(): [].index(9)
part.apart({'good': good, 'hangs': hangs, 'crashes': crashes, 'fails': fails}, 1.5)
part.row('afterwards', 1.0, 's')"""
    )
    assert {row["what"] for row in result["rows"]} == {"good", "before it hangs", "afterwards"}
    reasons = {failure["what"]: failure["reason"] for failure in result["failures"]}
    assert reasons["hangs"] == "did not end in 2 s and was killed"
    assert reasons["crashes"] == "ended by SIGSEGV"
    assert reasons["fails"].startswith("ValueError: ")


def test_rows_are_on_disk_while_their_part_runs_and_then_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "gpu" / "parts"
    package.mkdir(parents=True)
    (package / "slow.py").write_text(
        "import time\nfrom gpu.part import main\ndef measure(part):\n"
        "    part.row('early', 1.0, 's')\n    time.sleep(4)\nmain(measure)\n"
    )
    suite = _suite(tmp_path)
    writes: list[tuple[float, list[str]]] = []
    monkeypatch.setattr(gpu.suite, "write", lambda *given: [
        writes.append((time.monotonic(), [p["state"] for p in given[1]["parts"]])), write(*given)
    ][1])  # fmt: skip
    suite.run((Planned("machine", "M", "slow", 20),))
    running = [at for at, states in writes if states == ["running"]]
    # Once when it began, once with its row; and then not while it measures.
    assert 1 <= len(running) <= 3
    assert [states for _, states in writes][-1] == ["done"]
    assert writes[-2][0] - running[-1] > 2


def test_whatever_files_parts_leave_a_run_has_five_and_they_are_new_after_each_part(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    package = tmp_path / "gpu" / "parts"
    package.mkdir(parents=True)
    (package / "leaves.py").write_text(
        "import os, pathlib\nfrom gpu.part import main\ndef measure(part):\n"
        "    folder = pathlib.Path(os.environ['GPU_SUITE_FILES'], 'buffers')\n"
        "    folder.mkdir(exist_ok=True)\n"
        "    for name in part.options: (folder / name).write_text(name)\nmain(measure)\n"
    )
    suite = _suite(tmp_path)
    suite.environment["GPU_SUITE_FILES"] = str(tmp_path_factory.mktemp("files"))
    left: list[str] = []
    for name, files in (("raw", ["a", "b"]), ("machine", ["c"])):
        suite.part(Planned(name, "T", "leaves", 20, ",".join(files)))
        left += files
        assert {path.name for path in tmp_path.iterdir()} == {"gpu", *FILES}
        with tarfile.open(tmp_path / "buffers.tar.gz") as archive:
            assert archive.getnames() == ["buffers", *(f"buffers/{file}" for file in left)]
        said = json.loads((tmp_path / "summary.json").read_text())
        assert said["parts"][name].startswith("done")


def test_files_are_whole_when_parts_end_together(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    left = tmp_path_factory.mktemp("files")
    (left / "buffers").write_bytes(random.Random(7).randbytes(1 << 18))
    suite = _suite(tmp_path, 0)
    suite.environment["GPU_SUITE_FILES"] = str(left)
    plan = [Planned("machine", "T", "machine", 30) for _ in range(48)]
    with ThreadPoolExecutor(8) as pool:
        for _ in pool.map(suite.part, plan):
            with tarfile.open(tmp_path / "buffers.tar.gz") as archive:
                assert archive.getnames() == ["buffers"]
            json.loads((tmp_path / "gpu.json").read_text())


# -- haiprof for the parts -------------------------------------------------------------------------


def test_without_haiprof_its_parts_say_why_and_the_others_run(tmp_path: Path) -> None:
    for folder in ("site", "sources"):
        (tmp_path / folder).mkdir()
    (tmp_path / "broken.whl").write_text("no wheel")
    came = install(tmp_path / "site", tmp_path / "sources", str(tmp_path / "broken.whl"))
    assert came.source == "none"
    assert came.reason.startswith("haiprof is not installed: ")
    assert "it cannot be built: " in came.reason
    installed: Future[Installed] = Future()
    installed.set_result(came)
    suite = _suite(tmp_path, installed=installed)
    suite.run((Planned("machine", "M", "machine", 30, group="raw", haiprof=False),
               Planned("forks", "F", "forks", 30)))  # fmt: skip
    said = json.loads((tmp_path / "summary.json").read_text())
    assert said["parts"]["machine"].startswith("done")
    assert said["parts"]["forks"] == f"skipped, 0 rows, 0 s: {came.reason}"
    assert said["machine"]["haiprof"] == came.reason


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The haiprof that is installed here, as a wheel."""
    installed = importlib.metadata.distribution("haiprof")
    tag = str(installed.read_text("WHEEL")).partition("Tag: ")[2].split()[0]
    path = tmp_path_factory.mktemp("wheel") / f"haiprof-{installed.version}-{tag}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for file in installed.files or ():
            own = file.name not in ("INSTALLER", "REQUESTED", "direct_url.json")
            if own and ".." not in file.parts and file.suffix != ".pyc":
                archive.write(str(file.locate()), str(file))
    return path


def test_a_wheel_is_installed_and_its_site_is_one(tmp_path: Path, wheel: Path) -> None:
    came = install(tmp_path, tmp_path / "no sources", str(wheel))
    assert came == (f"wheel {wheel.name}, and beside it nothing that is missing", "")
    done = subprocess.run(
        [sys.executable, "-c", "import haiprof, sys; print(haiprof.__file__)"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True, text=True,
    )  # fmt: skip
    assert done.stdout.startswith(str(tmp_path))
    assert (tmp_path / "haiprof.pth").exists()


# -- a run of all of it ----------------------------------------------------------------------------

Start = Callable[[Path], "subprocess.Popen[str]"]


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A folder for temporary files with a short name, as sockets of a DataLoader's workers want."""
    with tempfile.TemporaryDirectory(dir="/tmp", ignore_cleanup_errors=True) as folder:
        yield Path(folder)
        # A job outlives whoever recorded it, and this one has lost its folder.
        for left in _of_the_run(Path(folder), but=()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(left, signal.SIGKILL)


@pytest.fixture
def start(native_build: Path, temporary: Path, wheel: Path, shm: Path) -> Start:
    """Start run.sh without a GPU, with the libraries that stand in for NVIDIA's."""
    places = (native_build / "tests" / "native" / name for name in ("cuda", "cupti", "nvidia-ml"))
    environment = {
        **os.environ, "LD_LIBRARY_PATH": ":".join(map(str, places)), "PYTHON": sys.executable,
        "HAIPROF_WHEEL": str(wheel), "TMPDIR": str(temporary),
        "SECONDS_IN_ALL": str(MOST),
    }  # fmt: skip

    def run(results: Path) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [str(TESTS / "gpu" / "run.sh"), str(results), "--device", "cpu"], env=environment,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        )  # fmt: skip

    return run


@pytest.mark.jobs
def test_all_of_it_runs_without_a_gpu(start: Start, tmp_path: Path) -> None:
    results = tmp_path / "results"
    begin = time.monotonic()
    run = start(results)
    out, _ = run.communicate(timeout=MOST)
    print(f"it took {time.monotonic() - begin:.0f} s")
    assert run.returncode == 0, out
    assert {path.name for path in results.iterdir()} == FILES
    with tarfile.open(results / "buffers.tar.gz") as archive:
        assert {"buffers/eager-0.bin", "buffers/eager-0.json"} <= set(archive.getnames())
    lines = out.splitlines()
    assert json.loads(lines[0])["waiting"] == len(PLAN)
    assert json.loads(lines[-1])["state"] == "finished"
    said = json.loads((results / "summary.json").read_text())
    assert said["state"] == "finished"
    assert said["machine"]["haiprof"].startswith("wheel haiprof-")
    states = {name: end.partition(",")[0] for name, end in said["parts"].items()}
    assert list(states) == [part.name for part in PLAN]
    assert {"raw", "machine", "capture", "refusals", "late-graphs", "report", "forks",
            "collectives", "ends", "soak", "launches", "residue", "flushes", "sampling", "overhead",
            } <= {name for name, state in states.items() if state == "done"}  # fmt: skip
    for name, end in said["parts"].items():
        assert states[name] == "done" or end.endswith(": needs a GPU"), end
    assert said["not_measured"] == []
    found = {part["name"]: part for part in json.loads((results / "gpu.json").read_text())["parts"]}
    assert len(found["overhead"]["rounds"]) >= 2
    assert "from 1000 to 1000 of 1000" in found["late-graphs"]["rows"][1]["note"]


def _rows_on_disk(folder: Path) -> set[str]:
    """Names of the rows that parts which run now have written."""
    found: set[str] = set()
    for out in folder.glob("*/out"):
        try:
            found |= {row["what"] for row in parsed(out.read_text())["rows"]}
        except OSError:  # its part has just ended
            continue
    return found


def _of_the_run(temporary: Path, but: Sequence[bytes] = BRIEF) -> dict[int, bytes]:
    """Processes, and their command lines, that have the run's folder for temporary files.

    Args:
        temporary: the folder.
        but: words of those that are left out, which end by themselves.
    """
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            environment = (process / "environ").read_bytes()
            command = (process / "cmdline").read_bytes()
        except OSError:
            continue
        of_the_run = os.fsencode(temporary) in environment and command
        if of_the_run and not any(name in command for name in but):
            found[int(process.name)] = command
    return found


@pytest.mark.parametrize("moment", range(4))
def test_a_killed_run_still_reports_what_it_saw(
    start: Start, temporary: Path, tmp_path: Path, moment: int
) -> None:
    results = tmp_path / "results"
    run = start(results)
    assert run.stdout is not None
    first = run.stdout.readline()  # from here on there is something to read
    seconds = random.uniform(5 * moment, 5 * moment + 5)
    print(f"killed a second after {seconds:.3f} s")
    time.sleep(seconds)
    rows = _rows_on_disk(temporary)
    time.sleep(1.0)
    os.killpg(run.pid, signal.SIGKILL)
    out = first + run.communicate()[0]
    assert {path.name for path in results.iterdir()} <= FILES
    said = json.loads((results / "summary.json").read_text())
    everything = json.loads((results / "gpu.json").read_text())
    assert said["state"] == "running"
    assert {*said["parts"], *said["waiting"]} == {part.name for part in PLAN}
    found = {row["what"] for part in everything["parts"] for row in part["rows"]}
    assert rows <= found
    for line in out.splitlines():
        name, _, state = line.partition(": ")
        if name in said["parts"]:
            assert said["parts"][name].startswith(state.split()[0])
    # Nothing goes on to use the GPU; a compiler that was at work ends first.
    until = time.monotonic() + 60
    while _of_the_run(temporary) and time.monotonic() < until:
        time.sleep(0.1)
    assert _of_the_run(temporary) == {}


#: A part that has a fork and a child, and a suite that runs it.
SLOW = """
import os, pathlib, time
from gpu.part import main
def begun(name):
    pathlib.Path(os.environ["BEGUN"], name).write_text(str(os.getpid()))
    time.sleep(60)
def measure(part):
    part.apart({"a": lambda: begun("fork"), "b": lambda: part.child("c")}, 60)
main(measure, {"c": lambda device, words: begun("child")})
"""
STARTER = """
import os, pathlib, time
from gpu.plan import Planned
from gpu.suite import Suite
folder = pathlib.Path(os.environ["BEGUN"])
suite = Suite(folder, time.time() + 99, "cpu", dict(os.environ), {})
suite.part(Planned("machine", "M", "slow", 60))
"""


def test_what_a_part_has_started_ends_with_the_suite(tmp_path: Path) -> None:
    package = tmp_path / "gpu" / "parts"
    package.mkdir(parents=True)
    (package / "slow.py").write_text(SLOW)
    begun = tmp_path / "begun"
    begun.mkdir()
    environment = {**os.environ, "PYTHONPATH": _path(TESTS, tmp_path), "BEGUN": str(begun)}
    suite = subprocess.Popen([sys.executable, "-c", STARTER], env=environment)
    files = [begun / name for name in ("fork", "child")]
    wait_for(lambda: all(file.exists() and file.read_text() for file in files), what="their start")
    processes = [Path("/proc", file.read_text()) for file in files]
    suite.kill()
    suite.wait()
    wait_for(lambda: not any(process.exists() for process in processes), 60, "their end")
    assert suite.returncode == -9
