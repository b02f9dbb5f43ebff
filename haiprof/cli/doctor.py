"""``haiprof doctor``: what can be collected here, and for what cannot: why, and the mend."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from haiprof.options import ENABLED_VARIABLE, Options, resolve
from haiprof.places import ring_root, room_for_ring
from haiprof.printable import printable

OK: Final = "ok"
ABSENT: Final = "absent"
DENIED: Final = "denied"
BROKEN: Final = "broken"
#: As src/ring/writer.h has it; the core may not be there to ask.
_SMALLEST_RING: Final = 2 << 20
#: How long one record may take from a ring to a file, s.
_TRIP_SECONDS: Final = 20.0
#: How long an interpreter may take to import torch, s.
_PYTHON_SECONDS: Final = 180.0
_TIME_BASES: Final = {
    1: "the CPU's time stamp counter (TSC)",
    2: "the CPU's virtual counter (CNTVCT_EL0)",
    3: "the kernel's CLOCK_MONOTONIC",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the examination."""

    what: str
    state: str
    found: str
    mend: str = ""
    #: Without it haiprof records nothing at all.
    core: bool = False


def examine(*, as_json: bool) -> int:
    """Print what was found; return 0 when the core of haiprof works here, else 1."""
    findings = list(_findings())
    works = all(f.state == OK for f in findings if f.core)
    if as_json:
        from haiprof import __version__

        told = [asdict(f) for f in findings]
        print(json.dumps({"haiprof": __version__, "ok": works, "findings": told}, indent=1))
    elif sys.stdout.isatty():
        _print_table(findings)
    else:
        for f in findings:
            mend = f"; mend: {f.mend}" if f.mend else ""
            print(printable(f"{f.state:<8}{f.what}: {f.found}{mend}"))
    return 0 if works else 1


def _findings() -> Iterator[Finding]:
    checks: tuple[Callable[[], Iterator[Finding]], ...] = (
        _options,
        _shared_memory,
        _recording,
        _torch,
        _start_file,
        _host_sources,
        _gpu,
        _gpu_sampling,
        _stale_runs,
    )
    for check in checks:
        try:
            yield from check()
        except Exception as error:  # one check that fails must not hide the others
            name = check.__name__.strip("_").replace("_", " ")
            core = check in (_shared_memory, _recording)
            yield Finding(name, BROKEN, repr(error), "report this as a bug of haiprof", core=core)


def _options() -> Iterator[Finding]:
    _, problems = resolve({})
    for problem in problems:
        name = problem.partition("=")[0]
        yield Finding("environment", BROKEN, problem, f"correct or unset {name}")


def _shared_memory() -> Iterator[Finding]:
    what = "shared memory"
    base = ring_root().parent
    elsewhere = "set HAIPROF_SHM_DIR to a folder on tmpfs"
    if not base.is_dir():
        yield Finding(what, ABSENT, f"there is no folder {base}", elsewhere, core=True)
        return
    room = os.statvfs(base)
    size, free = room.f_frsize * room.f_blocks, room.f_frsize * room.f_bavail
    found = f"{base}: {_mib(free)} free of {_mib(size)}"
    wanted = resolve({})[0].ring_mib << 20
    takes = room_for_ring(base, wanted)
    mine = ring_root()
    if mine.exists() and mine.lstat().st_uid != os.getuid():
        owner = mine.lstat().st_uid
        yield Finding(
            what, DENIED, f"{mine} belongs to user {owner}", f"remove it, or {elsewhere}", core=True
        )
    elif not os.access(base, os.W_OK | os.X_OK):
        yield Finding(what, DENIED, f"{base} cannot be written", elsewhere, core=True)
    elif takes < _SMALLEST_RING:
        yield Finding(
            what,
            BROKEN,
            f"{found}; a ring takes half of what is free, which must be {_mib(_SMALLEST_RING)}",
            f"give the container a larger /dev/shm, or {elsewhere}",
            core=True,
        )
    elif takes < wanted:
        yield Finding(
            what,
            OK,
            f"{found}; the next ring takes half of that instead of {_mib(wanted)}",
            "a larger /dev/shm makes losses less likely",
            core=True,
        )
    else:
        yield Finding(what, OK, found, core=True)


def _mib(size: int) -> str:
    return f"{size / 2**20:,.0f} MiB"


def _recording() -> Iterator[Finding]:
    """Send one record all the way: a ring, a recorder, an Arrow file."""
    from haiprof import _core
    from haiprof.places import make_private

    try:
        make_private(ring_root())
        rings = Path(tempfile.mkdtemp(prefix=".doctor-", dir=ring_root()))
    except OSError as error:
        why = f"no ring can be made: {error.filename}: {error.strerror}"
        yield Finding("recorder", BROKEN, why, "see shared memory, above", core=True)
        return
    try:
        ring = rings / f"{os.getpid()}.ring"
        with tempfile.TemporaryDirectory(prefix="haiprof-doctor-") as folder:
            _core.open_ring(
                str(ring), bytes=_core.MIN_RING_BYTES, rank=0, run="doctor", run_dir=folder
            )
            _core.event("mark", "doctor")
            _core.close_ring()
            yield _clock(ring)
            yield _recorder(rings, ring, Path(folder))
    finally:
        shutil.rmtree(rings, ignore_errors=True)


def _clock(ring: Path) -> Finding:
    from haiprof._core import RingReader

    base = RingReader(str(ring)).header["time_base"]
    if base == 3:
        return Finding(
            "clock",
            OK,
            f"{_TIME_BASES[base]}: this machine's counter is not steady, so a span costs more",
            core=True,
        )
    return Finding("clock", OK, _TIME_BASES.get(base, f"number {base}"), core=True)


def _recorder(rings: Path, ring: Path, folder: Path) -> Finding:
    from haiprof.places import RECORDER_LOG
    from haiprof.recorder.launch import start_recorder

    begun = time.monotonic()
    recorder = start_recorder(rings, folder, Options())
    said = ""
    while time.monotonic() - begun < _TRIP_SECONDS:
        alive = Path(f"/proc/{recorder}").exists()
        with contextlib.suppress(OSError):  # it goes with the folder
            said = (rings / RECORDER_LOG).read_text(encoding="utf-8", errors="replace")
        if not rings.exists():
            break
        if not alive:
            lines = said.strip().splitlines() or ["it ended at once and said nothing"]
            return Finding(
                "recorder", BROKEN, lines[-1], "reinstall haiprof and pyarrow here", core=True
            )
        time.sleep(0.01)
    took = time.monotonic() - begun
    if any(folder.glob("*/events-*.arrow")):
        return Finding("recorder", OK, f"a record reached its file in {took:.1f} s", core=True)
    return Finding(
        "recorder",
        BROKEN,
        f"a record did not reach its file within {took:.0f} s",
        f"see whether {sys.executable} can start and import pyarrow",
        core=True,
    )


def _torch() -> Iterator[Finding]:
    """Attach to torch in a process of its own: only trying tells what works with this torch."""
    program = (
        "import json, torch\n"
        "from haiprof import hooks\n"
        "hooks.install()\n"
        "print(json.dumps([torch.__version__, hooks.status()]))\n"
    )
    code, said, error = _ask_python(program, ENABLED_VARIABLE, "0")
    if code != 0:
        missing = "No module named 'torch'" in error
        yield Finding(
            "torch",
            ABSENT if missing else BROKEN,
            f"not installed for {sys.executable}" if missing else error,
            "run haiprof doctor with the Python of the job",
        )
        return
    version, hooks = json.loads(said.splitlines()[-1])
    yield Finding("torch", OK, str(version))
    for name, how in hooks.items():
        works = not str(how).startswith("off")
        mend = "" if works else "mark steps with haiprof.step() and phases with haiprof.range()"
        yield Finding(f"hook {name}", OK if works else BROKEN, str(how), mend)


def _start_file() -> Iterator[Finding]:
    program = "import sys; print(hasattr(sys, '_haiprof_armed'))"
    code, said, error = _ask_python(program, ENABLED_VARIABLE, "1")
    if code == 0 and said.strip() == "True":
        yield Finding("start file", OK, f"{ENABLED_VARIABLE}=1 starts haiprof in this Python")
    else:
        yield Finding(
            "start file",
            ABSENT,
            f"{error or 'haiprof.pth is in no site folder'}, so haiprof run sees no steps",
            f"{sys.executable} -m pip install haiprof, or call haiprof.start() in the job",
        )


def _ask_python(program: str, variable: str, value: str) -> tuple[int, str, str]:
    """Run ``program`` in a fresh interpreter; return its code, output and last line of errors."""
    import subprocess

    # haiprof need not be installed to be asked about.
    paths = [str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
    answer = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, variable: value, "PYTHONPATH": os.pathsep.join(paths)},
        cwd="/",
        capture_output=True,
        text=True,
        errors="replace",
        timeout=_PYTHON_SECONDS,
        check=False,
    )
    errors = answer.stderr.strip().splitlines()
    return answer.returncode, answer.stdout, errors[-1] if errors else ""


def _host_sources() -> Iterator[Finding]:
    from haiprof._core import HostSampler

    sampler = HostSampler(gpu=0.0)  # GPUs are looked at in a process of their own
    sampler.watch(os.getpid())  # some sources are those of a process
    sampler.read(time.monotonic_ns())
    for source in sampler.sources():
        metrics = ", ".join(source.get("metrics") or ())
        found = metrics if source["state"] == OK else source["reason"]
        yield Finding(f"host {source['name']}", source["state"], found, source["mend"] or "")


def _gpu() -> Iterator[Finding]:
    # In an interpreter of its own: a driver or a libcupti that is broken may take it along.
    program = (
        "import json; from haiprof import _core; from haiprof.hooks.cuda import libcupti_folders; "
        "print(json.dumps(_core.gpu_probe(':'.join(libcupti_folders()))))"
    )
    code, said, error = _ask_python(program, ENABLED_VARIABLE, "0")
    if code != 0:
        yield Finding(
            "GPU kernels", BROKEN, f"asking CUPTI ended with {code}: {error}", "install it anew"
        )
        return
    found, mend, version = json.loads(said.splitlines()[-1])
    if version == 0:
        yield Finding("GPU kernels", ABSENT, found, mend)
    else:
        yield Finding("GPU kernels", OK, f"{found}, API version {version}")


def _gpu_sampling() -> Iterator[Finding]:
    what, counters = "GPU sampling", "GPU counters"
    program = "import json; from haiprof.cli.gpus import look; print(json.dumps(look()))"
    code, said, error = _ask_python(program, ENABLED_VARIABLE, "0")
    if code != 0:
        yield Finding(what, BROKEN, f"asking NVML ended with {code}: {error}", "see nvidia-smi")
        return
    told = json.loads(said.splitlines()[-1])
    if told["state"] != OK:
        yield Finding(what, told["state"], told["reason"], told["mend"])
        return
    sources = {source["name"]: source for source in told["sources"]}
    gpus = ", ".join(f"{gpu['instance']} {gpu['name']}" for gpu in told["gpus"])
    driver = next((gpu["driver"] for gpu in told["gpus"]), "")
    for name, source in ((what, sources["gpu"]), (counters, sources["gpu_counters"])):
        if source["state"] != OK:
            yield Finding(name, source["state"], source["reason"], source["mend"])
            continue
        metrics = ", ".join(source["metrics"])
        found = f"driver {driver}, {gpus}: {metrics}" if name == what else metrics
        yield Finding(name, OK, found)


def _stale_runs() -> Iterator[Finding]:
    from haiprof.recorder.recover import stale_ring_dirs

    stale = [p.name for p in stale_ring_dirs()]
    if stale:
        yield Finding(
            "left over",
            BROKEN,
            f"records in memory without a recorder: {', '.join(stale)}",
            "haiprof recover",
        )


def _print_table(findings: list[Finding]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    colours = {OK: "green", ABSENT: "yellow", DENIED: "yellow", BROKEN: "red"}
    table = Table(box=None, pad_edge=False)
    for heading in ("", "state", "found", "mend"):
        table.add_column(heading, overflow="fold")
    for f in findings:
        state: Any = Text(f.state, style=colours.get(f.state, ""))
        what, found, mend = (Text(printable(text)) for text in (f.what, f.found, f.mend))
        table.add_row(what, state, found, mend)
    Console().print(table)
