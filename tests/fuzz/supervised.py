"""Runs numbered trials in a process of their own and goes on after one that ends it.

    X.py [--seed N] [--first N] [--runs N] [--seconds S]

A trial is found at fault that raises, crashes, uses more than five seconds of processor time or a
gigabyte of memory, or does not end. Each fault is printed with the number of its trial, which
``--first N --runs 1`` repeats; the exit status says whether there was one.
"""

from __future__ import annotations

import argparse
import collections
import faulthandler
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

MOST_SECONDS = 5.0
_NO_END = 300.0
_MOST_BYTES = 1 << 30
#: What one process may map: what forged sizes ask for then fails, and does not slow the machine.
_ROOM = 24 << 30

#: Does the trial of a number in an empty folder; says what is wrong there, each in a line.
Trial = Callable[[str, int, Path], list[str]]


def main(trial: Trial) -> None:
    """Run trials as the command line says, and exit."""
    given = argparse.ArgumentParser()
    given.add_argument("--seed", default="1")
    given.add_argument("--first", type=int, default=0)
    given.add_argument("--runs", type=int, default=1 << 62)
    given.add_argument("--seconds", type=float, default=1e9)
    given.add_argument("--inside", action="store_true")
    wanted = given.parse_args()
    if wanted.inside:
        _inside(trial, wanted)
    else:
        sys.exit(_outside(wanted))


def _outside(wanted: argparse.Namespace) -> int:
    until = time.monotonic() + wanted.seconds
    number, last = wanted.first, wanted.first + wanted.runs
    runs = 0
    kinds: collections.Counter[str] = collections.Counter()
    while number < last and time.monotonic() < until:
        command = [sys.executable, sys.argv[0], "--inside", "--seed", wanted.seed]
        left = until - time.monotonic()
        command += ["--first", str(number), "--runs", str(last - number), "--seconds", str(left)]
        with tempfile.TemporaryFile("w+") as said:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=said, text=True)
            assert process.stdout is not None
            try:
                for line in process.stdout:
                    message = json.loads(line)
                    number = message["number"]
                    for fault in message.get("faults", ()):
                        _report(number, fault, kinds)
                    if "faults" in message:
                        runs += 1
                        number += 1
                        if runs % 100 == 0:
                            print(f"{runs} runs, {kinds.total()} faults", file=sys.stderr)
                code = process.wait()
            finally:
                process.kill()
                process.wait()
            if code:
                said.seek(0)
                how = f"signal {-code}" if code < 0 else f"exit {code}, no end"
                _report(number, f"{how}\n{said.read()[-3000:]}", kinds)
                runs += 1
                number += 1
            elif code == 0:
                break
    for kind, count in kinds.most_common():
        print(f"{count} x {kind}", file=sys.stderr)
    print(f"{runs} runs, {kinds.total()} faults")
    return 1 if kinds else 0


def _report(number: int, fault: str, kinds: collections.Counter[str]) -> None:
    first = fault.splitlines()[0]
    kinds[first] += 1
    if kinds[first] <= 3:
        print(f"run {number}: {fault}", file=sys.stderr, flush=True)


def _inside(trial: Trial, wanted: argparse.Namespace) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (_ROOM, _ROOM))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    faulthandler.enable()
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    until = time.monotonic() + wanted.seconds
    number = wanted.first
    peak = _peak()
    while number < wanted.first + wanted.runs and time.monotonic() < until:
        print(json.dumps({"number": number}), file=out, flush=True)
        faulthandler.dump_traceback_later(_NO_END, exit=True)
        began = time.process_time()
        with tempfile.TemporaryDirectory(prefix="haiprof-fuzz-") as folder:
            faults = trial(wanted.seed, number, Path(folder))
        took = time.process_time() - began
        faulthandler.cancel_dump_traceback_later()
        if took > MOST_SECONDS and number > wanted.first:
            faults.append(f"slow: more than {MOST_SECONDS} s\n{took:.1f} s")
        if number > wanted.first and _peak() > peak + _MOST_BYTES:
            faults.append(f"large: more than a gigabyte\n{(_peak() - peak) >> 20} MiB")
        peak = _peak()
        print(json.dumps({"number": number, "faults": faults}), file=out, flush=True)
        number += 1


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


def fault_of(what: str, error: BaseException) -> str:
    """Say where an exception came from: first its kind and the innermost line of ours."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [f for f in frames if "/haiprof/" in f.filename and "/tests/" not in f.filename]
    where = ours[-1] if ours else frames[-1]
    place = f"{'/'.join(where.filename.split('/')[-2:])}:{where.lineno}"
    text = (str(error).splitlines() or [""])[0][:200]
    stack = " < ".join(f"{Path(f.filename).name}:{f.lineno}" for f in reversed(ours[-8:]))
    return f"{type(error).__name__} at {place}\n{what}: {text}\n{stack}"
