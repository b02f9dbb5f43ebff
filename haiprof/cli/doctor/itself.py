"""Whether haiprof itself works here: options, shared memory, one record all the way to a file.

Tests: tests/recorder/test_places.py.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from haiprof.cli.doctor.finding import ABSENT, BROKEN, DENIED, OK, Finding
from haiprof.common.owned_files import private_folder
from haiprof.common.places import folders_for_rings, room_for_ring, root_with_room
from haiprof.options import Options, resolve
from haiprof.schema import LIVE_SUFFIX

#: Bytes, as src/ring/writer.h has it; the core may not be there to ask.
SMALLEST_RING: Final = 2 << 20
#: How long one record may take from a ring to a file, s.
_TRIP_SECONDS: Final = 20.0
_TIME_BASES: Final = {
    1: "the CPU's time stamp counter (TSC)",
    2: "the CPU's virtual counter (CNTVCT_EL0)",
    3: "the kernel's CLOCK_MONOTONIC",
}


def options() -> Iterator[Finding]:
    """Name the variables of the environment that cannot be used."""
    _, problems = resolve({})
    for problem in problems:
        name = problem.partition("=")[0]
        yield Finding("environment", BROKEN, problem, f"correct or unset {name}")


def shared_memory() -> Iterator[Finding]:
    """Check that a ring has room, in the first folder or in another."""
    found = [_place(base) for base in folders_for_rings()]
    first = found[0]
    serving = next((place for place in found if place.state == OK), first)
    if serving is not first:
        yield Finding(
            first.what,
            OK,
            f"{serving.found}; taken because this cannot be: {first.found}",
            first.fix,
            core=True,
        )
    else:
        yield first


def _place(base: Path) -> Finding:
    what = "shared memory"
    elsewhere = "set HAIPROF_SHM_DIR to a folder on tmpfs"
    if not base.is_dir():
        return Finding(what, ABSENT, f"there is no folder {base}", elsewhere, core=True)
    room = os.statvfs(base)
    size, free = room.f_frsize * room.f_blocks, room.f_frsize * room.f_bavail
    found = f"{base}: {mib(free)} free of {mib(size)}"
    wanted = resolve({})[0].ring_mib << 20
    takes = room_for_ring(base, wanted)
    if not os.access(base, os.W_OK | os.X_OK):
        return Finding(what, DENIED, f"{base} cannot be written", elsewhere, core=True)
    if takes < SMALLEST_RING:
        return Finding(
            what,
            BROKEN,
            f"{found}; a ring takes half of what is free, which must be {mib(SMALLEST_RING)}",
            f"give the container a larger /dev/shm, or {elsewhere}",
            core=True,
        )
    mine = base / f"haiprof-{os.getuid()}"
    try:
        private_folder(mine)
    except FileNotFoundError:
        pass
    except OSError as error:
        text = f"{found}; {mine} {error.strerror}: rings go to {mine}.1 or the next free name"
        return Finding(what, OK, text, "remove it", core=True)
    if takes < wanted:
        return Finding(
            what,
            OK,
            f"{found}; the next ring takes half of that instead of {mib(wanted)}",
            "a larger /dev/shm makes losses less likely",
            core=True,
        )
    return Finding(what, OK, found, core=True)


def mib(size: int) -> str:
    """Format a size in bytes."""
    return f"{size / 2**20:,.0f} MiB"


def recording() -> Iterator[Finding]:
    """Send one record all the way: a ring, a recorder, an Arrow file."""
    from haiprof import _core

    try:
        root = root_with_room(_core.MIN_RING_BYTES)
        rings = root.make(f".doctor-{os.getpid()}-{time.monotonic_ns()}").path
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
    from haiprof.common.places import RECORDER_LOG
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
        try:
            why = _why_not_compressed()
        except ModuleNotFoundError as error:
            return Finding(
                "recorder",
                OK,
                f"a record reached its file in {took:.1f} s; without {error.name} the files of a "
                "longer job stay uncompressed",
                f"pip install {error.name}",
                core=True,
            )
        if why:
            why = f"a record reached its file, but files of a longer job cannot be closed: {why}"
            return Finding("recorder", BROKEN, why, "reinstall pyarrow here", core=True)
        return Finding("recorder", OK, f"a record reached its file in {took:.1f} s", core=True)
    if not rings.exists() and any(folder.glob(f"*/events-*{LIVE_SUFFIX}")):
        with contextlib.suppress(OSError):
            said = (folder / RECORDER_LOG).read_text(encoding="utf-8", errors="replace")
        lines = [line for line in said.splitlines() if LIVE_SUFFIX in line]
        why = lines[-1] if lines else "its log does not say why"
        return Finding(
            "recorder",
            BROKEN,
            f"a record reached its file, but that could not be closed: {why}",
            "reinstall pyarrow here",
            core=True,
        )
    return Finding(
        "recorder",
        BROKEN,
        f"a record did not reach its file within {took:.0f} s",
        f"see whether {sys.executable} can start and import pyarrow",
        core=True,
    )


def _why_not_compressed() -> str:
    """Say why a recorder cannot load what compresses its files; empty: it can.

    Raises:
        ModuleNotFoundError: it is not installed.
    """
    try:
        import haiprof.recorder.closing  # noqa: F401
    except ModuleNotFoundError:
        raise
    except ImportError as error:
        return str(error)
    return ""


def left_over() -> Iterator[Finding]:
    """Name the runs whose records nobody writes to disk."""
    from haiprof.recorder.recover import stale_ring_dirs

    stale = [p.name for p in stale_ring_dirs()]
    if stale:
        yield Finding(
            "left over",
            BROKEN,
            f"records in memory without a recorder: {', '.join(stale)}",
            "haiprof recover",
        )
