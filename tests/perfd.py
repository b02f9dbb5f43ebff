"""haiprof-perfd, those who ask it, and a made-up machine whose memory controller is a live PMU."""

from __future__ import annotations

import itertools
import select
import shutil
import socket
import statistics
import struct
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

#: As src/perf/perfd_wire.h has it.
MAGIC = 0x46504148
VERSION = 1
REQUEST = struct.Struct("=IIiIII96Q")
ANSWER = struct.Struct("=IIiI248s248s")

NOBODY = 65534
STRANGER = 65533

_DEVICES = Path("/sys/bus/event_source/devices")


class Counter(NamedTuple):
    """One that this machine really has, for all of CPU 0."""

    type: int
    config: int


def live_counter() -> Counter:
    """The time stamp counter, through a PMU that the kernel numbered; else the CPU's clock."""
    try:
        number = int((_DEVICES / "msr/type").read_text())
        event = (_DEVICES / "msr/events/tsc").read_text()
        return Counter(number, int(event.split("=")[1], 16))
    except OSError:
        return Counter(1, 0)


def request(
    counter: Counter, *, cpu: int = 0, count: int = 1, version: int = VERSION, config1: int = 0
) -> bytes:
    words = [counter.config, config1, 0] * 32
    return REQUEST.pack(MAGIC, version, cpu, counter.type, count, 0, *words)


class Answer(NamedTuple):
    version: int
    error: int
    reason: str
    mend: str

    @classmethod
    def of(cls, message: bytes) -> Answer:
        magic, version, error, _, reason, mend = ANSWER.unpack(message)
        assert magic == MAGIC
        return cls(version, error, _text(reason), _text(mend))


def _text(field: bytes) -> str:
    return field.partition(b"\0")[0].decode("ascii")


class Place:
    """A folder that every user may enter, with the programs and the made-up machine."""

    def __init__(self, folder: Path, programs: Path) -> None:
        self.folder = folder
        self.socket = folder / "run" / "s"
        self.perfd = folder / "haiprof-perfd"
        self.reader = folder / "perfd_reader"
        shutil.copy(programs / "haiprof-perfd", self.perfd)
        shutil.copy(programs / "tests/native/perfd_reader", self.reader)
        self.counter = live_counter()
        self._write_machine()

    def _write_machine(self) -> None:
        pmu = "sys/bus/event_source/devices/uncore_imc_free_running_0"
        event = f"event={self.counter.config:#x}"
        for path, text in {
            f"{pmu}/type": str(self.counter.type),
            f"{pmu}/cpumask": "0",
            f"{pmu}/format/event": "config:0-63",
            f"{pmu}/events/read": event,
            f"{pmu}/events/read.scale": "6.103515625e-5",
            f"{pmu}/events/read.unit": "MiB",
            f"{pmu}/events/write": event,
            f"{pmu}/events/write.scale": "6.103515625e-5",
            f"{pmu}/events/write.unit": "MiB",
            "sys/devices/system/cpu/cpu0/topology/physical_package_id": "0",
            "proc/cpuinfo": "processor\t: 0\nvendor_id\t: GenuineIntel\n"
            "cpu family\t: 6\nmodel\t\t: 106\n",
            "proc/sys/kernel/perf_event_paranoid": "2",
        }.items():
            file = self.folder / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text + "\n")

    @property
    def roots(self) -> list[str]:
        return [
            f"--sysfs-root={self.folder / 'sys'}",
            f"--procfs-root={self.folder / 'proc'}",
        ]

    def connect(self) -> socket.socket:
        """Connect, and take the greeting."""
        connection = dial(self.socket)
        assert Answer.of(connection.recv(1024)).error == 0
        return connection


@contextmanager
def a_place(programs: Path) -> Iterator[Place]:
    folder = Path(tempfile.mkdtemp(prefix="haiprof-perfd-", dir="/tmp"))
    folder.chmod(0o755)
    try:
        yield Place(folder, programs)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def dial(path: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    connection.settimeout(10)
    for _ in range(1000):
        try:
            connection.connect(str(path))
            return connection
        except BlockingIOError:  # as many wait to be accepted as may
            time.sleep(0.01)
    raise TimeoutError(f"{path}: nobody accepts")


class Perfd:
    """A running haiprof-perfd; what it says goes to a file."""

    def __init__(
        self, place: Place, *options: str, user: int | None = None, files: int | None = None
    ) -> None:
        """Start it; with ``files``, it may have so many open."""
        self.place = place
        limited = [] if files is None else ["prlimit", f"--nofile={files}:{files}"]
        self._log = (place.folder / "log").open("w+b", buffering=0)
        self.process = subprocess.Popen(
            [*limited, place.perfd, f"--socket={place.socket}", *place.roots, *options],
            stderr=self._log,
            user=user,
            group=user,
            extra_groups=None if user is None else [],
        )
        until = time.monotonic() + 20
        while "listens at" not in self.log():
            assert self.process.poll() is None, self.log()
            assert time.monotonic() < until, self.log()
            time.sleep(0.01)

    def log(self) -> str:
        self._log.seek(0)
        return self._log.read().decode()

    def __enter__(self) -> Perfd:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        self._log.close()


class Refused(NamedTuple):
    error: int
    seconds: float
    line: str


class Reader:
    """Somebody who asks for counters, and reads them: through the socket, or without it."""

    def __init__(
        self,
        place: Place,
        path: Path | str | None,
        *,
        user: int | None = None,
        group: int | None = None,
        groups: list[int] | None = None,
    ) -> None:
        self._counter = place.counter
        self._process = subprocess.Popen(
            [place.reader, *([] if path is None else [path])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            user=user,
            group=user if group is None else group,
            extra_groups=None if user is None else groups or [],
        )

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def _ask(self, command: str) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(command.encode() + b"\n")
        self._process.stdin.flush()
        ready, _, _ = select.select([self._process.stdout], [], [], 20)
        assert ready, f"{command}: no answer"
        return self._process.stdout.readline().decode().strip()

    def open(self, *, counters: int = 2, cpu: int = 0) -> Refused | None:
        """Open a group that counts the same thing; None when it is open."""
        configs = " ".join([str(self._counter.config)] * counters)
        answer = self._ask(f"open {self._counter.type} {cpu} {configs}")
        if answer == "opened":
            return None
        _, error, seconds, line = answer.split(" ", 3)
        return Refused(int(error), float(seconds), line)

    def descriptors(self) -> list[str]:
        """What it has open beside its standard streams."""
        opened = Path(f"/proc/{self._process.pid}/fd").iterdir()
        return [str(fd.readlink()) for fd in opened if int(fd.name) > 2]

    def read(self) -> list[tuple[int, int, int]]:
        """Count, enabled ns, running ns of each."""
        error, *numbers = (int(word) for word in self._ask("read").split())
        assert error == 0
        return [(numbers[i], numbers[i + 1], numbers[i + 2]) for i in range(0, len(numbers), 3)]

    def rate(self) -> float:
        """How fast the first counter grows, per ns that it runs.

        The median of five: a virtual CPU that is taken away between the reading of the counter
        and that of its time spoils one of them.
        """
        reads = [self.read()[0]]
        for _ in range(5):
            time.sleep(0.1)
            reads.append(self.read()[0])
        return statistics.median(
            (after[0] - before[0]) / (after[2] - before[2])
            for before, after in itertools.pairwise(reads)
        )
