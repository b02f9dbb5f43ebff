"""haiprof-perfd passes on the counters of its plan, and neither side trusts the other."""

from __future__ import annotations

import array
import errno
import os
import resource
import signal
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from haiprof import _core
from perfd import (
    ANSWER,
    MAGIC,
    NOBODY,
    REQUEST,
    STRANGER,
    VERSION,
    Answer,
    Counter,
    Perfd,
    Place,
    Reader,
    a_place,
    dial,
    request,
)


@pytest.fixture
def place(native_build: Path) -> Iterator[Place]:
    with a_place(native_build) as place:
        yield place


@pytest.fixture
def perfd(place: Place) -> Iterator[Perfd]:
    with Perfd(place) as running:
        yield running


@pytest.fixture
def root() -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can become other users")


@pytest.fixture
def counting(place: Place) -> None:
    """The tests' own user can open counters."""
    with Reader(place, None) as own:
        refused = own.open()
    if refused is not None:
        pytest.skip(f"no counter can be opened here: {refused.line}")


def lines(text: str) -> list[str]:
    return text.strip().splitlines()


# What it is for.


@pytest.mark.usefixtures("root", "counting")
def test_a_user_without_rights_reads_counters_that_grow_at_the_right_rate(place: Place) -> None:
    if int(Path("/proc/sys/kernel/perf_event_paranoid").read_text()) < 1:
        pytest.skip("kernel.perf_event_paranoid lets every user count here")
    with (
        Perfd(place, f"--allow-uid={NOBODY}"),
        Reader(place, None, user=NOBODY) as alone,
        Reader(place, None) as privileged,
        Reader(place, place.socket, user=NOBODY) as helped,
    ):
        refused = alone.open()
        assert refused is not None
        assert refused.error == 13
        assert privileged.open() is None
        assert helped.open() is None
        before, after = helped.read(), helped.read()
        assert all(b[0] < a[0] and b[1] < a[1] for b, a in zip(before, after, strict=True))
        assert helped.rate() == pytest.approx(privileged.rate(), rel=0.01)


def sampled(place: Place, perfd: str) -> tuple[dict[str, str], dict[tuple[str, str | None], float]]:
    """Sample the made-up machine twice; return states, and values of what is its hardware's."""
    sampler = _core.HostSampler(
        procfs=str(place.folder / "proc"),
        sysfs=str(place.folder / "sys"),
        perfd=perfd,
        **dict.fromkeys(("basic", "gpu", "ib", "io", "power"), 0.0),
    )
    sampler.read(time.monotonic_ns())
    time.sleep(1.0)
    rows = sampler.read(time.monotonic_ns())
    values = {(metric, at): value for _, metric, at, value, _ in rows if metric.startswith("dram.")}
    return {s["name"]: f"{s['state']} {s['reason']}" for s in sampler.sources()}, values


@pytest.mark.usefixtures("root", "counting")
def test_a_sampler_without_rights_has_memory_bandwidth_through_it(place: Place) -> None:
    if int(Path("/proc/sys/kernel/perf_event_paranoid").read_text()) < 1:
        pytest.skip("kernel.perf_event_paranoid lets every user count here")
    _, with_rights = sampled(place, "")
    with Perfd(place, f"--allow-uid={NOBODY}"):
        os.seteuid(NOBODY)
        try:
            alone, nothing = sampled(place, "")
            helped, values = sampled(place, str(place.socket))
        finally:
            os.seteuid(0)
    assert alone["memory_bandwidth"].startswith("denied ")
    assert nothing == {}
    assert helped["memory_bandwidth"] == "ok "
    assert set(values) == set(with_rights)
    for key, value in values.items():
        assert value == pytest.approx(with_rights[key], rel=0.01), key


def targets(folder: Path) -> Iterator[str]:
    """What the descriptors of a process are; one may be closed meanwhile."""
    for entry in folder.iterdir():
        with suppress(FileNotFoundError):
            yield str(entry.readlink())


@pytest.mark.usefixtures("counting")
def test_it_keeps_no_counter_that_it_has_passed_on(place: Place, perfd: Perfd) -> None:
    with Reader(place, place.socket) as reader:
        assert reader.open() is None
        folder = Path(f"/proc/{perfd.process.pid}/fd")
        until = time.monotonic() + 5
        while any("perf_event" in target for target in targets(folder)):
            assert time.monotonic() < until


@pytest.mark.usefixtures("counting")
def test_counters_go_on_when_it_is_killed_and_its_successor_is_asked_at_once(
    place: Place,
) -> None:
    with Reader(place, place.socket) as reader:
        with Perfd(place) as first:
            assert reader.open() is None
            rate = reader.rate()
            first.process.kill()
            first.process.wait()
            assert place.socket.exists()
            assert reader.rate() == pytest.approx(rate, rel=0.05)
        with Perfd(place):
            assert reader.open() is None
            assert reader.rate() == pytest.approx(rate, rel=0.05)


@pytest.mark.usefixtures("counting")
def test_one_who_was_idle_for_long_is_served_again(place: Place, perfd: Perfd) -> None:
    with Reader(place, place.socket) as reader:
        assert reader.open() is None
        with place.connect() as idle:
            assert idle.recv(1024) == b""
        assert reader.open() is None


# Whom it serves.


def groups_of(kind: str) -> tuple[list[str], dict[str, Any]]:
    """The options, and the user who asks."""
    return {
        "user": (["--allow-uid=1", f"--allow-uid={NOBODY}"], {"user": NOBODY}),
        "primary group": (["--allow-group=4321"], {"user": NOBODY, "group": 4321}),
        "other group": (["--allow-group=4321"], {"user": NOBODY, "groups": [7, 4321]}),
        "anybody": (["--allow-any"], {"user": NOBODY}),
        "root": ([], {"user": 0}),
    }[kind]


@pytest.mark.usefixtures("root", "counting")
@pytest.mark.parametrize("kind", ["user", "primary group", "other group", "anybody", "root"])
def test_it_serves(place: Place, kind: str) -> None:
    options, user = groups_of(kind)
    with Perfd(place, *options), Reader(place, place.socket, **user) as reader:
        assert reader.open() is None


@pytest.mark.usefixtures("root")
@pytest.mark.parametrize("options", [[], ["--allow-uid=65533"], ["--allow-group=4321"]])
def test_it_refuses_everybody_else_and_says_so_on_both_sides(
    place: Place, options: list[str]
) -> None:
    with (
        Perfd(place, *options) as perfd,
        Reader(place, place.socket, user=NOBODY, groups=[7]) as reader,
    ):
        refused = reader.open()
        assert refused is not None
        assert refused.error == 13
        assert f"does not serve user {NOBODY}" in refused.line
        assert f"--allow-uid {NOBODY}" in refused.line
        (line,) = [said for said in lines(perfd.log()) if "refused" in said]
        assert f"of user {NOBODY}" in line


@pytest.mark.usefixtures("root")
def test_the_log_does_not_grow_with_the_number_of_refusals(place: Place) -> None:
    with Perfd(place) as perfd:
        for _ in range(20):
            with Reader(place, place.socket, user=NOBODY) as reader:
                assert reader.open() is not None
        for _ in range(100):
            with place.connect() as connection:
                connection.send(b"?")
                assert Answer.of(connection.recv(1024)).error == 71
        assert len(lines(perfd.log())) < 30


# What it serves.


@pytest.mark.usefixtures("counting")
@pytest.mark.parametrize(
    "changed",
    [
        lambda c: request(Counter(c.type, c.config + 1)),
        lambda c: request(Counter(c.type + 1, c.config)),
        lambda c: request(c, config1=1),
        lambda c: request(c, cpu=1),
        lambda c: request(c, cpu=-1),
        lambda c: request(Counter(0, 0)),
        lambda c: request(Counter(2, 1)),
        lambda c: request(Counter(4, 0x3C)),
        lambda c: request(Counter(5, 0)),
    ],
    ids=["event", "pmu", "config1", "cpu", "no cpu", "core", "tracepoint", "raw", "breakpoint"],
)
def test_what_is_not_in_its_plan_is_refused(
    place: Place, perfd: Perfd, changed: Callable[[Counter], bytes]
) -> None:
    with place.connect() as connection:
        connection.send(changed(place.counter))
        answer = Answer.of(connection.recv(1024))
        assert answer.error == 1
        assert "not among the counters" in answer.reason
        assert "--sysfs-root" in answer.mend
        connection.send(request(place.counter))
        assert Answer.of(connection.recv(1024)).error == 0


@pytest.mark.parametrize("kernel_type", [0, 2, 4, 5])
def test_a_plan_that_names_what_is_no_uncore_counter_is_not_served(
    place: Place, kernel_type: int
) -> None:
    pmu = place.folder / "sys/bus/event_source/devices/uncore_imc_free_running_0"
    (pmu / "type").write_text(f"{kernel_type}\n")
    with Perfd(place), place.connect() as connection:
        connection.send(request(Counter(kernel_type, place.counter.config)))
        assert Answer.of(connection.recv(1024)).error == 1


@pytest.mark.usefixtures("counting")
def test_a_driver_that_comes_later_is_found(place: Place) -> None:
    pmu = place.folder / "sys/bus/event_source/devices/uncore_imc_free_running_0"
    away = place.folder / "away"
    pmu.rename(away)
    with Perfd(place) as perfd, place.connect() as connection:
        assert "with 0 counters" in perfd.log()
        away.rename(pmu)
        until = time.monotonic() + 20
        error = -1
        while error != 0 and time.monotonic() < until:
            connection.send(request(place.counter))
            error = Answer.of(connection.recv(1024)).error
            time.sleep(0.5)
        assert error == 0


@pytest.mark.usefixtures("root")
def test_without_rights_of_its_own_it_says_so(place: Place) -> None:
    if int(Path("/proc/sys/kernel/perf_event_paranoid").read_text()) < 1:
        pytest.skip("kernel.perf_event_paranoid lets every user count here")
    place.socket.parent.mkdir()
    os.chown(place.socket.parent, NOBODY, NOBODY)
    with (
        Perfd(place, user=NOBODY) as perfd,
        Reader(place, place.socket, user=NOBODY) as reader,
    ):
        assert "no right to open counters" in perfd.log()
        refused = reader.open()
        assert refused is not None
        assert refused.error == 13
        assert "has no right" in refused.line
        assert "CAP_PERFMON" in refused.line


@pytest.mark.usefixtures("root")
def test_it_gives_up_all_rights_but_one(place: Place, perfd: Perfd) -> None:
    status = dict(
        line.split(":\t", 1)
        for line in Path(f"/proc/{perfd.process.pid}/status").read_text().splitlines()
    )
    perfmon = 1 << 38
    assert int(status["CapEff"], 16) | perfmon == perfmon
    assert int(status["CapPrm"], 16) | perfmon == perfmon
    assert int(status["CapInh"], 16) == int(status["CapAmb"], 16) == 0
    assert status["NoNewPrivs"] == "1"


# Peers that do it wrong.


@pytest.mark.parametrize(
    ("message", "error"),
    [
        (b"x", 71),
        (b"\0" * REQUEST.size, 71),
        (request(Counter(9, 0))[: REQUEST.size // 2], 71),
        (request(Counter(9, 0)) + b"\0", 71),
        (b"\xff" * 100_000, 71),
        (request(Counter(9, 0), version=2), 71),
        (request(Counter(9, 0), count=0), 22),
        (request(Counter(9, 0), count=33), 22),
        (request(Counter(9, 0), count=0xFFFFFFFF), 22),
    ],
    ids=["byte", "zeros", "half", "more", "long", "version", "none", "many", "huge"],
)
def test_a_message_that_makes_no_sense_has_one_answer(
    place: Place, perfd: Perfd, message: bytes, error: int
) -> None:
    with place.connect() as connection:
        connection.send(message)
        answer = Answer.of(connection.recv(1024))
        assert answer.error == error
        assert answer.reason
        assert answer.mend
        if error == 71:
            assert connection.recv(1024) == b""
    assert perfd.process.poll() is None


@pytest.fixture(scope="module")
def lasting(native_build: Path) -> Iterator[Place]:
    with a_place(native_build) as place, Perfd(place):
        yield place


@settings(max_examples=200, suppress_health_check=list(HealthCheck))
@given(
    st.one_of(
        st.binary(max_size=2000),
        st.binary(min_size=REQUEST.size, max_size=REQUEST.size),
        st.binary(min_size=REQUEST.size - 8, max_size=REQUEST.size - 8).map(
            lambda rest: struct.pack("=II", MAGIC, VERSION) + rest
        ),
    )
)
def test_no_bytes_can_hurt_it(lasting: Place, message: bytes) -> None:
    with lasting.connect() as connection:
        connection.send(message)
        answer = connection.recv(1024)
        assert answer == b"" or Answer.of(answer).error != 0
    with lasting.connect() as connection:
        connection.send(request(lasting.counter, cpu=-1))
        assert Answer.of(connection.recv(1024)).error == 1


def test_of_200_connections_of_a_user_the_first_are_served(place: Place, perfd: Perfd) -> None:
    connections = [dial(place.socket) for _ in range(200)]
    answers = [Answer.of(connection.recv(1024)) for connection in connections]
    assert [answer.error for answer in answers] == [0] * 32 + [16] * 168
    assert answers[-1].reason == "too many are connected to haiprof-perfd"
    connections[0].send(request(place.counter, cpu=-1))
    assert Answer.of(connections[0].recv(1024)).error == 1
    for connection in connections:
        connection.close()
    with place.connect():
        pass
    assert perfd.process.poll() is None


@pytest.mark.usefixtures("root", "counting")
def test_connections_of_one_user_leave_room_for_another(place: Place) -> None:
    with Perfd(place, f"--allow-uid={NOBODY}"):
        crowd = [dial(place.socket) for _ in range(100)]
        with Reader(place, place.socket, user=NOBODY) as reader:
            assert reader.open() is None
        for connection in crowd:
            connection.close()


def send_forever(connection: socket.socket, message: bytes) -> None:
    for _ in range(100_000):
        connection.send(message)


@pytest.mark.usefixtures("counting")
def test_one_who_asks_without_taking_the_answers_stops_nobody(place: Place, perfd: Perfd) -> None:
    with place.connect() as greedy, Reader(place, place.socket) as reader:
        greedy.setblocking(False)
        with pytest.raises(BlockingIOError):
            send_forever(greedy, request(place.counter))
        assert reader.open() is None
        greedy.setblocking(True)
        _, control, _, _ = greedy.recvmsg(1024, socket.CMSG_SPACE(4))
        assert control
        greedy.setblocking(False)
        with pytest.raises(BlockingIOError):
            greedy.recv(1024)
    with place.connect():
        pass


@pytest.mark.usefixtures("counting")
def test_counters_that_nobody_takes_use_up_what_their_user_may_have(
    place: Place, perfd: Perfd
) -> None:
    crowd = [place.connect() for _ in range(32)]
    for connection in crowd:
        connection.send(request(place.counter))
        connection.shutdown(socket.SHUT_WR)
    time.sleep(0.2)
    with dial(place.socket) as one_more:
        assert Answer.of(one_more.recv(1024)).error == 16
    for connection in crowd:
        connection.close()
    time.sleep(0.2)
    with place.connect():
        pass


@pytest.mark.usefixtures("counting")
def test_a_user_who_asks_too_often_waits(place: Place, perfd: Perfd) -> None:
    with place.connect() as connection:
        for _ in range(4096 // 32):
            connection.send(request(place.counter, count=32))
            answer, control, _, _ = connection.recvmsg(1024, socket.CMSG_SPACE(4 * 32))
            assert Answer.of(answer).error == 0
            passed = array.array("i")
            passed.frombytes(control[0][2])
            assert len(passed) == 32
            for fd in passed:
                os.close(fd)
        connection.send(request(place.counter))
        answer = Answer.of(connection.recv(1024))
    assert answer.error == 16
    assert "too many counters" in answer.reason


def lingering() -> tuple[socket.socket, socket.socket]:
    """A connection whose close waits for an hour, and its other end."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen(1)
    sender = socket.socket()
    sender.connect(listener.getsockname())
    sender.setblocking(False)
    try:
        while True:
            sender.send(b"x" * 65536)
    except BlockingIOError:
        pass
    sender.setblocking(True)
    sender.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 3600))
    return sender, listener


@pytest.mark.usefixtures("counting")
def test_descriptors_that_are_slow_to_close_stop_nobody(place: Place, perfd: Perfd) -> None:
    listeners = []
    with Reader(place, place.socket) as reader:
        for _ in range(3):
            sender, listener = lingering()
            listeners.append(listener)
            with place.connect() as connection:
                # While it is stopped, the last descriptor is on its way, and not this one here.
                perfd.process.send_signal(signal.SIGSTOP)
                passed = array.array("i", [sender.fileno()])
                connection.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, passed)])
                sender.close()
                perfd.process.send_signal(signal.SIGCONT)
                assert reader.open() is None


# The client, and the answers it gets.


def refused_at(place: Place, path: Path | str, user: int | None = None) -> str:
    """Ask at `path`, which must fail soon; return the line. Asked again, nobody is waited for."""
    with Reader(place, path, user=user) as reader:
        refused = reader.open()
        assert refused is not None
        assert refused.error == 13
        assert refused.seconds < 5
        assert reader.descriptors() == []
        again = reader.open()
        assert again is not None
        assert again.line == refused.line
        assert again.seconds < 0.9
        return refused.line


def test_nobody_listens(place: Place) -> None:
    line = refused_at(place, place.folder / "none")
    assert "no haiprof-perfd listens at" in line
    assert "HAIPROF_PERFD" in line


def test_a_file_is_no_socket(place: Place) -> None:
    file = place.folder / "file"
    file.touch()
    assert str(file) in refused_at(place, file)


def test_the_path_of_a_socket_is_too_long_to_ask(place: Place) -> None:
    assert "107 is the limit" in refused_at(place, "/tmp/" + "x" * 200)


@contextmanager
def rogue(
    place: Place,
    behave: Callable[[socket.socket], None],
    kind: socket.SocketKind = socket.SOCK_SEQPACKET,
) -> Iterator[Path]:
    """A server that treats its first peer as `behave` does."""
    path = place.folder / "rogue"
    with socket.socket(socket.AF_UNIX, kind) as listener:
        listener.bind(str(path))
        path.chmod(0o666)
        listener.listen(1)

        def serve() -> None:
            with listener.accept()[0] as connection:
                behave(connection)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield path
        finally:
            with socket.socket(socket.AF_UNIX, kind) as last:
                last.connect(str(path))
            thread.join()


def answer(version: int = VERSION, error: int = 0, reason: bytes = b"", fix: bytes = b"") -> bytes:
    return ANSWER.pack(MAGIC, version, error, 0, reason, fix)


def passing(*paths: str, message: bytes = answer()) -> Callable[[socket.socket], None]:
    def behave(connection: socket.socket) -> None:
        connection.send(answer())
        assert len(connection.recv(4096)) == REQUEST.size
        fds = [os.open(path, os.O_RDONLY) for path in paths]
        if not paths:
            fds = list(os.pipe())
        rights = (socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))
        connection.sendmsg([message], [rights])
        for fd in fds:
            os.close(fd)
        connection.recv(1)

    return behave


def saying(*messages: bytes, then_wait: bool = True) -> Callable[[socket.socket], None]:
    def behave(connection: socket.socket) -> None:
        for message in messages:
            connection.send(message)
        if then_wait:
            connection.recv(4096)
            connection.recv(4096)

    return behave


@pytest.mark.parametrize(
    ("behave", "line"),
    [
        (passing(), "something other than counters"),
        (passing("/dev/zero", "/dev/zero"), "something other than counters"),
        (passing("/dev/zero"), "something other than counters"),
        (passing(*["/dev/zero"] * 33), "not all counters"),
        (passing("/dev/zero", message=b""), "hung up"),
        (saying(answer(), answer()), "something other than counters"),
        (saying(answer(), b"?"), "is not haiprof-perfd"),
        (saying(answer(), answer() + b"?"), "is not haiprof-perfd"),
        (saying(b"\xff" * ANSWER.size), "is not haiprof-perfd"),
        (saying(answer(version=7)), "speaks version 7"),
        (saying(answer(), answer(version=7)), "speaks version 7"),
        (saying(answer(error=5, reason=b"\xff\n" * 124, fix=b"m" * 248)), "?" * 248 + " | mmm"),
        (saying(then_wait=False), "hung up"),
        (saying(answer(), then_wait=False), "hung up"),
        (saying(), "does not answer"),
        (saying(answer()), "does not answer"),
    ],
    ids=[
        "pipes", "zeros", "one of two", "too many", "with nothing", "nothing", "short",
        "long", "noise", "greets in another version", "answers in another version",
        "unreadable words", "hangs up at once", "hangs up later", "mute", "mute later",
    ],
)  # fmt: skip
def test_a_server_that_is_none_is_refused(
    place: Place, behave: Callable[[socket.socket], None], line: str
) -> None:
    with rogue(place, behave) as path:
        assert line in refused_at(place, path)


def test_a_socket_of_another_kind_is_refused(place: Place) -> None:
    with rogue(place, saying(then_wait=False), socket.SOCK_STREAM) as path:
        assert "is not haiprof-perfd" in refused_at(place, path)


@pytest.mark.usefixtures("root")
def test_a_server_of_a_stranger_is_refused(place: Place) -> None:
    def behave(connection: socket.socket) -> None:
        connection.send(answer())

    with rogue(place, behave) as path:
        os.chown(place.folder, STRANGER, STRANGER)
        assert "hung up" in refused_at(place, path, user=NOBODY)  # it is root's
    place.folder.chmod(0o777)
    os.chown(place.folder, 0, 0)
    code = (
        "import socket, sys\n"
        "s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n"
        "s.bind(sys.argv[1]); s.listen(); print(flush=True); sys.stdin.read()\n"
    )
    path = place.folder / "stranger"
    with subprocess.Popen(
        ["/usr/bin/env", "python3", "-c", code, path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        user=STRANGER,
        group=STRANGER,
        extra_groups=[],
        env={"PATH": "/usr/local/bin:/usr/bin:/bin"},
    ) as stranger:
        assert stranger.stdout is not None
        assert stranger.stdin is not None
        assert stranger.stdout.readline()
        path.chmod(0o666)
        line = refused_at(place, path, user=NOBODY)
        assert f"user {STRANGER} listens at" in line
        os.chown(place.folder, STRANGER, STRANGER)
        assert "does not answer" in refused_at(place, path, user=NOBODY)
        stranger.stdin.close()


# How it starts and ends.


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_it_and_its_socket_goes(
    place: Place, perfd: Perfd, number: signal.Signals
) -> None:
    with place.connect():
        perfd.process.send_signal(number)
        assert perfd.process.wait(10) == 0
    assert not place.socket.exists()


def stat(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def state(pid: int) -> str:
    return stat(pid)[0]


def cpu_seconds(pid: int) -> float:
    fields = stat(pid)
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.parametrize("lowered", [False, True], ids=["from the beginning", "later"])
def test_with_few_descriptors_it_serves_rests_and_ends(place: Place, lowered: bool) -> None:
    with Perfd(place, files=None if lowered else 24) as perfd, place.connect() as connection:
        if lowered:
            while state(perfd.process.pid) != "S":
                time.sleep(0.01)
            resource.prlimit(perfd.process.pid, resource.RLIMIT_NOFILE, (1, 1))
            connection.send(request(place.counter, count=0))  # then it waits anew
            assert Answer.of(connection.recv(1024)).error == errno.EINVAL
        spent = cpu_seconds(perfd.process.pid)
        time.sleep(1.0)
        assert cpu_seconds(perfd.process.pid) - spent < 0.2
        perfd.process.terminate()
        assert perfd.process.wait(10) == 0


def test_its_socket_is_open_to_all_and_its_folder_is_not(place: Place, perfd: Perfd) -> None:
    assert place.socket.stat().st_mode & 0o7777 == 0o666
    assert place.socket.parent.stat().st_mode & 0o7777 == 0o755


def test_the_mode_of_the_socket_can_be_chosen(place: Place) -> None:
    with Perfd(place, "--mode=0600"):
        assert place.socket.stat().st_mode & 0o7777 == 0o600


def started(place: Place, *options: str, user: int | None = None) -> tuple[int, str]:
    """Start it where it must not stay; return its exit status and its one line."""
    done = subprocess.run(
        [place.perfd, f"--socket={place.socket}", *place.roots, *options],
        capture_output=True,
        text=True,
        timeout=20,
        user=user,
        group=user,
        extra_groups=None if user is None else [],
    )
    (line,) = lines(done.stderr)
    return done.returncode, line


def test_a_live_socket_is_not_replaced(place: Place, perfd: Perfd) -> None:
    status, line = started(place)
    assert status == 1
    assert f"another server listens at {place.socket}" in line
    with place.connect():
        pass


def test_a_successor_keeps_its_socket_when_the_one_before_ends(place: Place) -> None:
    with Perfd(place) as first:
        place.socket.unlink()
        with Perfd(place):
            first.process.terminate()
            assert first.process.wait(10) == 0
            with place.connect():
                pass


def test_what_is_no_socket_is_not_replaced(place: Place) -> None:
    place.socket.parent.mkdir(mode=0o755)
    place.socket.write_text("precious")
    status, line = started(place)
    assert status == 1
    assert "is not a socket; remove it" in line
    assert place.socket.read_text() == "precious"


def test_the_path_of_its_socket_is_too_long(place: Place) -> None:
    status, line = started(place, f"--socket={place.folder / ('x' * 200)}")
    assert status == 1
    assert "107 is the limit" in line


def test_there_is_no_folder_for_its_socket(place: Place) -> None:
    status, line = started(place, f"--socket={place.folder}/no/such/s")
    assert status == 1
    assert f"cannot create the folder {place.folder}/no/such: No such file" in line


@pytest.mark.usefixtures("root")
def test_it_may_not_make_the_folder(place: Place) -> None:
    status, line = started(place, user=NOBODY)
    assert status == 1
    assert "Permission denied" in line
    assert f"owned by user {NOBODY}" in line


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o757])
def test_a_folder_that_others_can_change_is_refused(place: Place, mode: int) -> None:
    place.socket.parent.mkdir()
    place.socket.parent.chmod(mode)
    status, line = started(place)
    assert status == 1
    assert "others could replace" in line


@pytest.mark.usefixtures("root")
def test_a_folder_of_somebody_else_is_refused(place: Place) -> None:
    place.socket.parent.mkdir()
    os.chown(place.socket.parent, NOBODY, NOBODY)
    status, line = started(place)
    assert status == 1
    assert "let user 0 own it" in line


@pytest.mark.parametrize(
    ("option", "line"),
    [
        ("--allow-uid=x", "--allow-uid x: give the number of a user"),
        ("--allow-uid=-1", "--allow-uid -1: give the number"),
        ("--allow-uid=4294967295", "--allow-uid 4294967295: give the number"),
        ("--allow-group=no-such-group", "--allow-group no-such-group: there is no such group"),
        ("--mode=0999", "--mode 0999: give an octal number"),
        ("--mode=7777", "--mode 7777: give an octal number"),
        ("--socket=", "--socket : name a file"),
        ("--frobnicate", "--frobnicate: no such option, or its value is missing"),
        ("--mode", "--mode: no such option, or its value is missing"),
        ("more", "more: not an option"),
    ],
)
def test_wrong_options_are_named(place: Place, option: str, line: str) -> None:
    status, said = started(place, option)
    assert status in (1, 2)
    assert line in said


def test_it_prints_its_options_and_its_version(place: Place) -> None:
    done = subprocess.run([place.perfd, "--help"], capture_output=True, text=True, check=True)
    for option in ("--socket", "--mode", "--allow-uid", "--allow-group", "--allow-any"):
        assert option in done.stdout
    done = subprocess.run([place.perfd, "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("haiprof-perfd 0.1.0, protocol 1")
