"""Programs that are asked while they run: one that steps, one that trains, one that waits."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from recording import python
from warm_programs import Program

from haiprof.control.client import ask
from haiprof.control.sockets import socket_of

#: Steps until the file END is there, then says how many it made and ends as it should.
STEPS = """
    import os, sys, threading, time
    import haiprof
    haiprof.start(log_dir=sys.argv[1], run="r")
    steps = 0
    {before}
    while not os.path.exists("END"):
        haiprof.step()
        time.sleep(0.001)
        steps += 1
        if steps == 3:
            print("ready", flush=True)
        {each}
    os.write(1, b"%d\\n" % steps)  # in one piece: a forked child writes there, too
"""

#: The same with a small model, which it trains. Begins to record if it is given a folder.
TRAINS = """
    import os, sys, time
    import torch
    # Python's table of interned names takes its next 3.7 MiB now, not while memory is looked at.
    for number in range(90_000):
        sys.intern("name " + str(number))
    torch.set_num_threads(1)  # several wait for each other where there is more to do than cores
    if len(sys.argv) > 1:
        import haiprof
        haiprof.start(log_dir=sys.argv[1], run="r")
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    batch = torch.randn(16, 32)
    steps = 0
    {before}
    while not os.path.exists("END"):
        optimizer.zero_grad()
        model(batch).sum().backward()
        optimizer.step()
        time.sleep(0.01)
        steps += 1
        if steps == 3:
            print("ready", flush=True)
        {each}
    print(steps, flush=True)
"""

#: Does something again and again, and knows nothing of haiprof; where it was brought, it steps.
DOES = """
    import os, select, signal, sys, threading, time, zlib
    def step():
        session = sys.modules.get("haiprof.capture.session")
        if getattr(session, "active", lambda: None)() is not None:
            import haiprof
            haiprof.step()
    steps = 0
    {before}
    print("ready", flush=True)
    while not os.path.exists("END"):
        {each}
        step()
        steps += 1
    print(steps, flush=True)
"""


class Job:
    """A running program."""

    def __init__(self, process: subprocess.Popen[str] | Program, folder: Path) -> None:
        """Wait until it has made some steps."""
        self.process = process
        self.pid = process.pid
        self.steps = 0
        self.stderr = ""
        self._end = folder / "END"
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n", process.communicate()

    @property
    def socket(self) -> Path:
        """Where it is asked."""
        return socket_of(self.pid)

    def ask(self, request: str, timeout: float = 30.0, **arguments: Any) -> dict[str, Any]:
        """Ask it."""
        return ask(self.socket, request, arguments, timeout)

    def figure(self, name: str) -> int:
        """Return a number of ``/proc/<pid>/status``: VmRSS (KiB), Threads."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1])
        raise LookupError(name)

    def descriptors(self) -> int:
        """Return how many descriptors are open; one more while an answer is given."""
        return len(list(Path(f"/proc/{self.pid}/fd").iterdir()))

    def finish(self) -> None:
        """Have it end, as it must be able to whatever was done to it."""
        self._end.touch()
        out, self.stderr = self.process.communicate(timeout=60)
        assert self.process.returncode == 0, self.stderr
        self.steps = int(out.splitlines()[-1])


@contextlib.contextmanager
def job(
    program: str,
    folder: Path,
    *arguments: str,
    before: str = "",
    each: str = "",
    warm: bool = False,
) -> Iterator[Job]:
    """Run a program in ``folder``, and end it.

    Args:
        program: ``STEPS``, ``TRAINS`` or ``DOES``.
        folder: where it runs.
        arguments: of the program.
        before: a line of Python before the loop.
        each: a line of Python in each turn of it.
        warm: whether it begins with torch imported.
    """
    text = program.format(before=before, each=each)
    process = python(text, *arguments, cwd=folder, warm=warm)
    try:
        running = Job(process, folder)
        yield running
        if process.poll() is None:
            running.finish()
    finally:
        process.kill()
        process.wait()
