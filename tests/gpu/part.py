"""One part of the GPU suite: a program that writes rows into a file as it finds them.

    python -m gpu.parts.NAME --device cuda --seconds 60 --out FILE      the part
    python -m gpu.parts.NAME --device cuda --child WHAT WORD …          a process that it needs

Rows that were written stay when a later step of the part hangs, fails or crashes.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gpu.estimates import Estimate, at_most

#: A part leaves so much of its time, s, to Python's own end.
RESERVE = 2.0


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
        told = found if isinstance(found, Estimate) else Estimate(found, None, None, 1)
        self._write({"row": what, **told._asdict(), "unit": unit, "target": target, "met": met,
                     "note": note})  # fmt: skip

    def limited(
        self, what: str, found: Estimate | float, unit: str, limit: float, note: str = ""
    ) -> None:
        """Write one measurement that should be at most ``limit``."""
        told = found if isinstance(found, Estimate) else Estimate(found, None, None, 1)
        self.row(what, told, unit, target=f"<= {limit:g}", met=at_most(told, limit), note=note)

    def check(self, what: str, holds: bool, note: str = "") -> None:
        """Write that something is as it has to be, or not."""
        self.row(what, float(holds), "yes = 1", target="yes", met=holds, note=note)

    def failed(self, what: str, reason: str) -> None:
        """Write that a piece of the part could not be measured, and why; the rest goes on."""
        self._write({"failed": what, "reason": reason})

    def piece(self, what: str, measure: Callable[..., None], *arguments: Any) -> None:
        """Measure a piece; when it fails, its reason is written and the rest goes on."""
        if self.left() <= 0:
            self.failed(what, "no time was left for it")
            return
        try:
            measure(*arguments)
        except Exception as error:
            self.failed(what, reason_of(error))

    def child(
        self, what: str, *words: str, seconds: float = 60, code: int | None = 0
    ) -> dict[str, Any]:
        """Run a process of this part to its end and return what it told.

        Raises:
            RuntimeError: it ended otherwise than with ``code`` (None: any), or told nothing, or
                not in time.
        """
        return child(self.module, self.device, what, *words,
                     seconds=min(seconds, self.left()), code=code)  # fmt: skip

    def _write(self, entry: dict[str, Any]) -> None:
        with self.out.open("a") as file:
            file.write(json.dumps(entry) + "\n")


def child(
    module: str, device: str, what: str, *words: str, seconds: float, code: int | None = 0
) -> dict[str, Any]:
    """Run ``module``'s process ``what``; see :meth:`Part.child`."""
    command = [sys.executable, "-m", module, "--device", device, "--child", what, *words]
    # In files: a grandchild that lives on, such as a recorder, must not hold a pipe open.
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = subprocess.Popen(command, stdout=out, stderr=err, stdin=subprocess.DEVNULL)
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
        told: dict[str, Any] = json.loads(lines[-1]) if lines else {}
        if not lines and code == 0:
            raise RuntimeError(f"{what} told nothing: {_tail(err)}")
        return {**told, "returncode": process.returncode, "stderr": _tail(err)}


def scratch() -> tempfile.TemporaryDirectory[str]:
    """Return a folder that goes away, also when a recorder that is late still writes into it."""
    return tempfile.TemporaryDirectory(ignore_cleanup_errors=True)


def _tail(file: Any) -> str:
    file.seek(0)
    lines = [line for line in file.read().splitlines() if line.strip()]
    return " | ".join(lines[-3:])[-600:]


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
    if given.child:
        print(json.dumps((children or {})[given.child[0]](given.device, given.child[1:])))
        return
    if given.out is None:
        parser.error("--out is wanted")
    spec = sys.modules["__main__"].__spec__
    assert spec is not None, "run it with python -m"
    try:
        measure(Part(spec.name, given.device, given.seconds, given.out, given.options))
    except Exception as error:
        # One line is what a reader wants first; the suite keeps the rest.
        print(reason_of(error), file=sys.stderr)
        raise
