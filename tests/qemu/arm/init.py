#!/usr/bin/python3.11
"""The first program of an emulated AArch64 machine: has code brought into others, and stacks read.

It also runs commands of an installed haiprof. How it went it prints, a thing a line; the tests of
tests/qemu read that. Then it turns the machine off.
"""

from __future__ import annotations

import base64
import ctypes
import json
import os
import subprocess
import sys
import traceback
from pathlib import Path

POWER_OFF = 0x4321FEDC
TIMES = 5
C = ctypes.CDLL(None)


def say(*words: object) -> None:
    print(*words, sep="\t", flush=True)


def test(program: str) -> None:
    done = subprocess.run([f"/{program}"], capture_output=True, text=True)
    say("test", program, done.returncode, " ".join((done.stdout + done.stderr).split()))


def inject(name: str, text: str) -> None:
    """Bring marks into a program; say whether what it does came out right, and the marks."""
    end = Path("/end")
    end.unlink(missing_ok=True)
    command = [sys.executable, "-u", "-c", text, str(end)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as job:
        assert job.stdout is not None
        assert job.stdout.readline() == "ready\n"
        said = []
        for i in range(TIMES):
            code = f"import sys; sys.modules['__main__'].marks.append({str(i)!r})"
            words = ["/inject", str(job.pid), code]
            said.append(subprocess.run(words, stdout=subprocess.PIPE, text=True).stdout.strip())
        end.touch()
        out, err = job.communicate(timeout=120)
    say("program", name, out.strip(), " ".join(err.split()), *said)


def read_stacks(text: str) -> None:
    """Read the stacks of a program, and say what it says of them itself."""
    environment = {**os.environ, "PYTHONPATH": "/job"}
    command = [sys.executable, "-c", text]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as job:
        assert job.stdout is not None
        layout = job.stdout.readline().strip()
        while line := job.stdout.readline().strip():
            say("said", line)
        words = ["/read_stacks", str(job.pid), layout]
        read = subprocess.run(words, stdout=subprocess.PIPE, text=True)
        for line in read.stdout.splitlines():
            say("read", line)
        say("reader", read.returncode)
        job.kill()


def command(words: list[str]) -> None:
    """Run a command; say what it printed, and how it ended."""
    done = subprocess.run(words, capture_output=True, text=True, cwd="/tmp")
    for line in (done.stdout + done.stderr).splitlines():
        say("printed", line)
    say("ended", done.returncode)


def bring_out(folder: Path) -> None:
    """Say all files of a folder, by their paths in it."""
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        text = base64.b64encode(path.read_bytes()).decode()
        say("file", path.relative_to(folder), text)


def main() -> None:
    os.environ["PATH"] = "/usr/bin"
    mounted = ("proc", "proc"), ("sys", "sysfs"), ("dev", "devtmpfs"), ("dev/shm", "tmpfs")
    for folder, kind in (*mounted, ("tmp", "tmpfs")):
        Path(f"/{folder}").mkdir(exist_ok=True)
        C.mount(kind.encode(), f"/{folder}".encode(), kind.encode(), 0, None)
    processor = Path("/proc/cpuinfo").read_text().splitlines()
    say("features", *next(line for line in processor if line.startswith("Features")).split()[2:])
    task = json.loads(Path("/task.json").read_text())
    for program in task["tests"]:
        test(program)
    for name, text in task["programs"].items():
        inject(name, text)
    for text in task["stacks"]:
        read_stacks(text)
    for words in task.get("commands", []):
        command(words)
    bring_out(Path(task.get("bring_out", "/nothing")))
    say("done")


try:
    main()
except BaseException:
    say("problem", " ".join(traceback.format_exc().split()))
finally:
    sys.stdout.flush()
    C.sync()
    C.reboot(POWER_OFF)
