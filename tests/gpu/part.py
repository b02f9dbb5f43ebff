"""One part of the GPU suite: a program that writes rows into a file as it finds them.

    python -m gpu.parts.NAME --device cuda --seconds 60 --out FILE      the part
    python -m gpu.parts.NAME --device cuda --child WHAT WORD …          a process that it needs

Rows that were written stay when a later step of the part hangs, fails or crashes. A row that is
written again under the same name replaces the earlier one.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import functools
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from gpu.estimates import Estimate, at_most

from gpu import jobs

#: A part leaves so much of its time, s, to Python's own end.
RESERVE = 2.0
NEEDS_GPU = "needs a GPU"
_PR_SET_PDEATHSIG = 1
_ERROR = re.compile(r"[A-Za-z_.]*(Error|Exception)\b")


class Skipped(Exception):
    """This part cannot measure anything on this machine; the text is why."""


class Part:
    """What a part measures with and writes to."""

    def __init__(self, module: str, device: str, seconds: float, out: Path, options: str) -> None:
        self.module = module
        self.device = device
        self.out = out
        #: What the suite gives this run of the part, such as the model.
        self.options = options.split(",") if options else []
        self._until = time.monotonic() + seconds - RESERVE

    def left(self) -> float:
        """How many seconds are left."""
        return max(0.0, self._until - time.monotonic())

    def spend(self, seconds: float) -> Callable[[], bool]:
        """Return a function that says whether these seconds, or the part's, are not over yet."""
        until = min(self._until, time.monotonic() + seconds)
        return lambda: time.monotonic() < until

    def rounds(self, seconds: float) -> Callable[[], bool]:
        """Return what ``spend`` does, for rounds that are repeated to measure more exactly.

        Without a GPU times mean nothing, and the fewest rounds suffice.
        """
        return self.spend(0.0 if self.device == "cpu" else seconds)

    def needs_gpu(self) -> None:
        """Raise Skipped where there is none."""
        if self.device == "cpu":
            raise Skipped(NEEDS_GPU)

    def needs_kernels(self) -> None:
        """Raise Skipped where neither a GPU nor a library that stands in for CUPTI has kernels."""
        if self.device == "cpu" and jobs.stand_in() is None:
            raise Skipped(NEEDS_GPU)

    def fact(self, name: str, value: Any) -> None:
        """Write something that is no measurement with a target."""
        self._write({"fact": name, "value": value})

    def row(
        self, what: str, found: Estimate | float, unit: str, *,
        target: str = "", met: bool | None = None, note: str = "",
    ) -> None:  # fmt: skip
        """Write one measurement.

        Args:
            what: what was measured.
            found: the value, alone or with its interval.
            unit: its unit.
            target: what is wanted, in words; with it, whether that is so.
            met: whether it is; None when that cannot be said.
            note: what a reader has to know.
        """
        estimate = found if isinstance(found, Estimate) else Estimate(found, None, None, 1)
        self._write({"row": what, **estimate._asdict(), "unit": unit, "target": target, "met": met,
                     "note": note})  # fmt: skip

    def limited(
        self, what: str, found: Estimate | float, unit: str, limit: float, note: str = ""
    ) -> None:
        """Write one measurement that should be at most ``limit``."""
        estimate = found if isinstance(found, Estimate) else Estimate(found, None, None, 1)
        self.row(
            what, estimate, unit, target=f"<= {limit:g}", met=at_most(estimate, limit), note=note
        )

    def round(self, values: dict[str, float]) -> None:
        """Write what was measured in one round, of which several runs can be pooled."""
        self._write({"round": values})

    def check(self, what: str, holds: bool, note: str = "") -> None:
        """Write that something is as it has to be, or not."""
        self.row(what, float(holds), "yes = 1", target="yes", met=holds, note=note)

    def failed(self, what: str, reason: str) -> None:
        """Write that a piece of the part could not be measured, and why; the rest goes on."""
        self._write({"failed": what, "reason": reason})

    def skipped(self, reason: str) -> None:
        """Write that the part cannot measure anything here, and why."""
        self._write({"skipped": reason})

    def piece(self, what: str, measure: Callable[..., None], *arguments: Any) -> None:
        """Measure a piece; when it fails, its reason is written and the rest goes on."""
        if self.left() <= 0:
            self.failed(what, "no time was left for it")
            return
        try:
            measure(*arguments)
        except Skipped:
            raise
        except Exception as error:
            self.failed(what, reason_of(error))

    def apart(self, pieces: dict[str, Callable[[], None]], seconds: float) -> None:
        """Measure pieces in parallel, each in a fork of this process, which has no CUDA yet.

        One that does not end in ``seconds`` is killed; what it has written stays.
        """
        forks = {
            _fork(functools.partial(self.piece, what, run)): what for what, run in pieces.items()
        }
        until = time.monotonic() + min(seconds, self.left())
        for ended, status in _waited(forks, until):
            if status != 0:
                self.failed(forks.pop(ended), f"ended by {_signal(status)}")
            else:
                forks.pop(ended)
        for pid, what in forks.items():
            os.kill(pid, signal.SIGKILL)
            self.failed(what, f"did not end in {seconds:.0f} s and was killed")
        # One that hangs in the driver is left alone.
        for _ in _waited(dict(forks), time.monotonic() + 2):
            pass

    def child(
        self, what: str, *words: str, seconds: float = 60, code: int | None = 0
    ) -> dict[str, Any]:
        """Run a process of this part to its end and return what it reported.

        It may take ``seconds``; without a GPU, where times mean nothing, all that is left.

        Raises:
            RuntimeError: it ended otherwise than with ``code`` (None: any), or told nothing, or
                not in time.
        """
        most = self.left() if self.device == "cpu" else min(seconds, self.left())
        return child(self.module, self.device, what, *words, seconds=most, code=code)

    def _write(self, entry: dict[str, Any]) -> None:
        with self.out.open("a") as file:
            file.write(json.dumps(entry) + "\n")


def dying_with_us() -> Callable[[], None]:
    """Return what a child calls first, before exec too, to be killed when this process ends."""
    parent, prctl = os.getpid(), ctypes.CDLL(None).prctl

    def die_with_parent() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it ended before
            os.kill(os.getpid(), signal.SIGKILL)

    return die_with_parent


def _fork(run: Callable[[], None]) -> int:
    """Run something in a fork, which ends behind it; return its pid."""
    die_with_parent = dying_with_us()
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException):
            die_with_parent()
            run()
        os._exit(0)
    return pid


def _waited(pids: dict[int, str], until: float) -> Iterator[tuple[int, int]]:
    """Yield each process that ends until then, with its status."""
    waiting = list(pids)
    while waiting and time.monotonic() < until:
        for pid in list(waiting):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                waiting.remove(pid)
                yield pid, status
        time.sleep(0.01)


def _signal(status: int) -> str:
    code = os.waitstatus_to_exitcode(status)
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"


def child(
    module: str, device: str, what: str, *words: str, seconds: float, code: int | None = 0
) -> dict[str, Any]:
    """Run ``module``'s process ``what``; see :meth:`Part.child`."""
    command = [sys.executable, "-m", module, "--device", device, "--child", what, *words]
    # In files: a grandchild that lives on, such as a recorder, must not hold a pipe open.
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = subprocess.Popen(
            command, stdout=out, stderr=err, stdin=subprocess.DEVNULL, preexec_fn=dying_with_us()
        )
        try:
            process.wait(timeout=max(seconds, 0.1))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise RuntimeError(f"{what} took more than {seconds:.0f} s; {_tail(err)}") from None
        if code is not None and process.returncode != code:
            raise RuntimeError(f"{what} ended with {process.returncode}: {_tail(err)}")
        out.seek(0)
        lines = out.read().splitlines()
        result: dict[str, Any] = json.loads(lines[-1]) if lines else {}
        if not lines and code == 0:
            raise RuntimeError(f"{what} told nothing: {_tail(err)}")
        return {**result, "returncode": process.returncode, "stderr": _tail(err)}


def scratch() -> tempfile.TemporaryDirectory[str]:
    """Return a folder that goes away, also when a recorder that is late still writes into it."""
    return tempfile.TemporaryDirectory(ignore_cleanup_errors=True)


def _tail(file: Any) -> str:
    """The last error and what follows it, or else the last lines."""
    file.seek(0)
    lines = [line for line in file.read().splitlines() if line.strip()]
    errors = [at for at, line in enumerate(lines) if _ERROR.match(line)]
    return " | ".join(lines[errors[-1] :] if errors else lines[-3:])[:600]


def own_rings(folder: str, name: str) -> str:
    """Make a folder for the rings of one of several jobs that run in parallel; return it."""
    own = Path(folder, name)
    own.mkdir(exist_ok=True)
    return str(own)


def reason_of(error: BaseException) -> str:
    """One line about an exception."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}"[:1000]


def main(
    measure: Callable[[Part], None],
    children: dict[str, Callable[[str, Sequence[str]], dict[str, Any]]] | None = None,
) -> None:
    """Be the program of a part."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--options", default="")
    parser.add_argument("--child", nargs=argparse.REMAINDER)
    given = parser.parse_args()
    if given.device == "cpu":
        jobs.stand_in()  # before haiprof looks for a libcupti
    if given.child:
        print(json.dumps((children or {})[given.child[0]](given.device, given.child[1:])))
        return
    if given.out is None:
        parser.error("--out is wanted")
    spec = sys.modules["__main__"].__spec__
    assert spec is not None, "run it with python -m"
    part = Part(spec.name, given.device, given.seconds, given.out, given.options)
    try:
        measure(part)
    except Skipped as why:
        part.skipped(str(why))
    except Exception as error:
        # One line is what a reader wants first; the suite keeps the rest.
        print(reason_of(error), file=sys.stderr)
        raise
