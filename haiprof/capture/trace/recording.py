"""One deep trace from its first step to its file.

torch's profiler belongs to the thread that starts it, so all calls to it are made there:
where a step ends, or in between when the main thread is asked to (see ``watch``); and it neither
begins nor ends in a backward pass (see ``boundaries``).

Tests: tests/capture/trace/test_trace.py.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from haiprof import _core
from haiprof.capture.after_import import importing
from haiprof.capture.trace.boundaries import Boundaries, in_backward
from haiprof.capture.trace.files import TraceFile
from haiprof.capture.trace.memory import EventMemory, give_memory_back
from haiprof.capture.trace.own_time import own_time
from haiprof.capture.trace.plan import Plan
from haiprof.capture.trace.profiler import OtherUsers, Profiler
from haiprof.capture.trace.watch import Watch, of_signal_handler, soon_on_main_thread
from haiprof.capture.where import recorded
from haiprof.common.launcher import placement

WAITING: Final = "waiting"
RECORDING: Final = "recording"
WRITING: Final = "writing"
DONE: Final = "done"
OFF: Final = "off"

_COMPLETE: Final = "it is complete"
#: For tools that leave out the last step.
_ONE_MORE: Final = 1
#: Steps before the trace whose mean duration its own are compared with.
_COMPARED: Final = 20
#: How long the job's own profiler waits for ours to end on another thread, s.
_GIVE_WAY_SECONDS: Final = 10.0
#: From then on a step may be too large for itself, s: before its end, what the job needs within a
#: step looks like events.
_LONG_STEP: Final = 0.25
#: How much the process may grow by, for each byte that events may take: holes between them, and
#: what ending the trace takes anyway.
_PROCESS_RATIO: Final = 10
#: Bytes in torch's file for each byte of its events in memory, at most: 1.1 to 1.4 were measured,
#: and 2.4 with call stacks of eight functions.
_FILE_RATIO: Final = 2
_WITH_CALLSTACKS: Final = 8


class Recording:
    """A deep trace: waiting, recording, writing, done; or off, because of ``why``."""

    def __init__(self, plan: Plan) -> None:
        """Nothing is touched yet."""
        self.state = WAITING
        self.why = ""
        self.file: Path | None = None
        self._plan = plan
        self._finished = threading.Event()
        # Never waited for: whoever finds it locked came while the state changes, maybe on the
        # very thread that changes it.
        self._changing = threading.Lock()
        self._changed_by: int | None = None
        self._owner: int | None = None
        self._boundaries: Boundaries | None = None
        self._others: OtherUsers | None = None
        self._watch: Watch | None = None
        self._profiler: Profiler | None = None
        self._prepared = False
        #: torch records for us.
        self._runs = False
        #: A step has ended in a backward pass, right after which it is to begin.
        self._due = False
        self._postponed = False
        self._last_chance = False
        self._wanted_end = ""
        #: When it may begin, and how many steps of the warm-up have passed.
        self._begin_at: float | None = None
        self._passed = 0
        self._begun_ns = 0
        self._begun = 0.0
        self._start_seconds = 0.0
        self._memory: EventMemory | None = None
        self._first_number = 0
        self._number = 0
        self._boundary: float | None = None
        self._before: deque[float] = deque(maxlen=_COMPARED)
        self._during: list[float] = []

    @property
    def live(self) -> bool:
        """Whether something is still to come."""
        return self.state in (WAITING, RECORDING, WRITING)

    def wait(self, seconds: float) -> Path | None:
        """Wait until it is over; return the file, None when there is none by then."""
        self._finished.wait(seconds)
        return self.file

    # -- its beginning ----------------------------------------------------------------------------

    def begin_here(self) -> None:
        """Begin on this thread: now, or after the warm-up."""
        self._owner = threading.get_ident()
        with self._turn() as mine:
            if not mine or not self._attach():
                return
            if self._others_record():
                self.refuse("no deep trace: the job's own torch.profiler is recording")
                return
            self._begin_at = time.monotonic() + self._plan.warmup_seconds
            self._boundary = time.perf_counter()
            if self._plan.warmup_steps:
                self._warm_up(None)  # its first step begins at this call
            elif not self._plan.warmup_seconds:
                self._due = in_backward()
                if not self._due:
                    self._start(_core.current_step())
            self._look_after()

    def begin_when_it_trains(self) -> None:
        """Begin on the thread that trains, once it does."""
        with self._turn() as mine:
            if mine and self._attach():
                self._look_after()

    def _attach(self) -> bool:
        try:
            self._others = OtherUsers(self._give_way)
        except Exception as error:
            self.refuse(f"no deep trace: torch.profiler is not available: {error!r}")
            return False
        try:
            self._boundaries = Boundaries(self._step_ended)
        except Exception as error:
            _report("hook", f"steps of the deep trace end at haiprof.step() only: {error!r}")
        return True

    def _look_after(self) -> None:
        if self.state not in (WAITING, RECORDING):
            return
        try:
            self._watch = Watch(self._look)
        except RuntimeError as error:  # the process may have no more threads
            _report("hook", f"the deep trace begins and ends at the end of a step only: {error}")

    def _others_record(self) -> bool:
        return self._others is not None and self._others.recording

    @contextlib.contextmanager
    def _turn(self) -> Iterator[bool]:
        """Whether the state may be changed inside.

        Only the user's Ctrl-C and exceptions of the job's signal handlers get out.
        """
        mine = self._changing.acquire(blocking=False)
        try:
            if mine:
                self._changed_by = threading.get_ident()
            yield mine
        except BaseException as error:
            self.refuse(f"no deep trace: {error!r}")
            if not isinstance(error, Exception) or of_signal_handler(error):
                raise
        finally:
            if mine:
                self._changed_by = None
                self._changing.release()

    # -- at the end of a step ---------------------------------------------------------------------

    def _step_ended(self, number: int | None) -> None:
        """Take the next turn. ``number``: of the step that begins here, where it is known."""
        with self._turn() as mine:
            if not mine or not self._on_its_thread():
                return
            if self.state == OFF:
                self._drop()
                return
            now = time.perf_counter()
            before, self._boundary = self._boundary, now
            took = now - before if before is not None else None
            if self.state == RECORDING:
                self._next_step(took, number)
            elif self.state == WAITING and _core.ring_open():
                if took is not None and not self._prepared:
                    self._before.append(took)
                self._warm_up(number)

    def _on_its_thread(self) -> bool:
        if self._owner is not None:
            return self._owner == threading.get_ident()
        # Not on a thread of the autograd engine.
        return not isinstance(threading.current_thread(), threading._DummyThread)

    def _warm_up(self, number: int | None) -> None:
        if not self._plan.steps and not self._time_to_begin():
            return
        self._due = in_backward()
        if self._due:
            return
        if self._others_record():
            self._postpone()
            return
        to_go = self._plan.warmup_steps - self._passed
        self._passed += 1
        if to_go == 1:
            self._prepare()
        elif to_go <= 0:
            self._start(number)

    def _postpone(self) -> None:
        self._passed = 0
        self._prepared = False
        self._profiler = None
        if not self._postponed:
            self._postponed = True
            _report("trace", "the deep trace waits for the job's own torch.profiler", state=WAITING)

    @own_time()
    def _prepare(self) -> None:
        assert self._others is not None
        self._owner = threading.get_ident()
        self._profiler = Profiler(self._plan)
        # Memory that the job has freed would absorb events unnoticed.
        give_memory_back()
        with self._others:
            self._profiler.prepare()
        self._prepared = True

    @own_time()
    def _start(self, number: int | None) -> None:
        assert self._others is not None
        called = time.perf_counter()
        if not self._prepared:
            self._prepare()
        assert self._profiler is not None
        with self._others:
            self._profiler.start()
        self._runs = True
        if self.state == OFF:  # given up meanwhile, by a thread that could not end it
            self._drop()
            return
        self._begun_ns, self._begun = time.time_ns(), time.perf_counter()
        self._start_seconds = self._begun - called
        self.state = RECORDING
        self._memory = EventMemory()
        self._number = self._first_number = number or 0
        self._boundary = self._begun
        self._profiler.begin_step(self._number)
        length = [f"{self._plan.steps} steps"] if self._plan.steps else []
        length += [f"{self._plan.seconds:g} s"] if self._plan.seconds else []
        _report("trace", f"a deep trace of {' or '.join(length)} begins", state=RECORDING)

    def _next_step(self, took: float | None, number: int | None) -> None:
        assert self._profiler is not None
        self._profiler.end_step()
        self._during.append(took or 0.0)
        assert self._memory is not None
        self._memory.step_ended()
        why = self._wanted_end or self._why_now(self._memory.would_take())
        if self._plan.steps and len(self._during) >= self._plan.steps + _ONE_MORE:
            why = _COMPLETE
        if why and not in_backward():
            self._end(why, cut=False)
            return
        if why:
            self._wanted_end = why
        self._number = max(self._number + 1, number or 0)
        self._profiler.begin_step(self._number)

    def _why_now(self, taken: int) -> str:
        """Return why it ends if its events take this many bytes; empty if it goes on."""
        if taken > self._plan.mib << 20:
            return f"its events would take more than {self._plan.mib} MiB (trace_mib)"
        most = _PROCESS_RATIO * self._plan.mib
        if self._memory is not None and self._memory.process_grown() > most << 20:
            return f"the process grew by more than {most} MiB ({_PROCESS_RATIO} times trace_mib)"
        if self._plan.seconds and time.perf_counter() - self._begun >= self._plan.seconds:
            return _COMPLETE
        return ""

    # -- in the middle of a step ------------------------------------------------------------------

    def _look(self) -> bool | None:
        """Have the main thread act if it must not wait for a step's end. On the watch's thread."""
        if self.state == RECORDING:
            if self._wanted_end or self._why_now(self._grown()):
                self._ask_main_thread()
            return True
        if self.state == WAITING:
            if self._due or (
                not self._plan.steps and self._time_to_begin() and not self._others_record()
            ):
                self._ask_main_thread()
            return False
        if self.state == OFF and self._runs:
            self._ask_main_thread()
            return True
        return None

    def _grown(self) -> int:
        """Return what the events take where the end of a step does not tell."""
        since = time.perf_counter() - (self._boundary or 0.0)
        if self._memory is None or since < _LONG_STEP:
            return 0
        return self._memory.grown()

    def _time_to_begin(self) -> bool:
        if not _core.ring_open() or _core.awaits_work():
            return False
        if self._begin_at is None:
            self._begin_at = time.monotonic() + self._plan.warmup_seconds
        return time.monotonic() >= self._begin_at

    def _ask_main_thread(self) -> None:
        if self._owner in (None, threading.main_thread().ident):
            soon_on_main_thread(self._act)

    def _act(self) -> None:
        """Begin or end. On the main thread."""
        with self._turn() as mine:
            if not mine or in_backward():
                return
            if self._owner is None and _core.trained_elsewhere():
                return  # that thread begins it, at its next step
            if self.state == WAITING and importing("torch"):
                return  # the profiler would meet a module of torch that is only half there
            if self.state == OFF:
                self._drop()
            elif self.state == RECORDING:
                why = self._wanted_end or self._why_now(self._grown())
                if why:
                    self._end(why, cut=True)
            elif self.state == WAITING and self._due:
                self._warm_up(_core.current_step())
            elif self.state == WAITING and not self._plan.steps and self._time_to_begin():
                if self._others_record():
                    self._postpone()
                else:
                    self._start(_core.current_step())

    # -- its end ----------------------------------------------------------------------------------

    def stop(self, why: str) -> None:
        """End it: here if this is its thread, else as soon as that one can."""
        if self.state not in (WAITING, RECORDING):
            return
        self._wanted_end = self._wanted_end or why
        if self.state == RECORDING and self._owner != threading.get_ident():
            self._ask_main_thread()
            return
        with self._turn() as mine:
            if mine and self.state == RECORDING and not in_backward():
                self._end(why, cut=True)
            elif mine and self.state == WAITING:
                self.refuse(f"no deep trace: {why} before it had begun")

    def _give_way(self) -> None:
        """The job's own profiler begins: end before it does, with what there is."""
        if self.state == WAITING and self._prepared:
            self._postpone()
        self.stop_for("the job's own torch.profiler began", _GIVE_WAY_SECONDS)

    def stop_for(self, why: str, seconds: float) -> None:
        """End a trace that records; if another thread has to, wait up to ``seconds`` for it."""
        if self.state != RECORDING:
            return
        self.stop(why)
        if self._owner == threading.get_ident():
            return  # in a backward pass, which does not end while we wait
        until = time.monotonic() + seconds
        while self.state == RECORDING and time.monotonic() < until:
            time.sleep(0.01)

    def finish(self, why: str, seconds: float, *, process_ends: bool) -> None:
        """End it because the recording ends. It records no more afterwards.

        Its file is written by then if the process ends or if this is its thread; else by a thread
        in the background, see :meth:`wait`.

        Args:
            why: the recording ends.
            seconds: how long to wait where another thread has to end it, or has to write the file.
            process_ends: so does the process.
        """
        if self.live:
            self._finish(why, seconds, process_ends)
        if self.state == OFF and self._owner == threading.get_ident():
            self._drop()

    def _finish(self, why: str, seconds: float, process_ends: bool) -> None:
        self._last_chance = process_ends or self._owner == threading.get_ident()
        if self.state == WAITING and not _core.ring_open():
            self.forget()  # a process that recorded nothing at all
            return
        until = time.monotonic() + seconds
        self.stop(why)
        while self._begins_elsewhere() and time.monotonic() < until:
            time.sleep(0.01)
        if self.state == WAITING:
            self.stop(why)
        self.stop_for(why, until - time.monotonic())
        if self.state == WRITING and not process_ends:
            return
        if self.state == WRITING:
            self._finished.wait(seconds)
        if self.live:
            self.refuse(f"the deep trace is lost: {why}, and its thread did not end it")

    def _begins_elsewhere(self) -> bool:
        return self.state == WAITING and self._changed_by not in (None, threading.get_ident())

    def refuse(self, why: str) -> None:
        """Give it up, and say why."""
        from haiprof.capture.stderr import say_once

        self.why = why
        self.state = OFF
        if not self._runs:  # else once that has ended
            self._leave()
        say_once(why)
        _report("trace", why, state=OFF)
        self._finished.set()

    def decline(self, why: str) -> None:
        """Give it up before it is attached to anything, silently: only its handle says why."""
        self.why = why
        self.state = OFF
        self._finished.set()

    def forget(self) -> None:
        """Abandon it silently."""
        self.state = OFF
        self._runs = False
        self._leave()

    def forked(self) -> None:
        """In a forked child: abandon it."""
        self._changing = threading.Lock()
        self._changed_by = None
        # Its thread is not here, but may have locked something.
        self._watch = None
        self.forget()

    def _leave(self) -> None:
        for attached in (self._boundaries, self._others, self._watch):
            if attached is not None:
                with contextlib.suppress(Exception):
                    attached.leave()

    @own_time()
    def _drop(self) -> None:
        """Stop torch, which still records for a trace that is lost. On the trace's thread."""
        if not self._runs or in_backward():
            return
        assert self._profiler is not None
        assert self._others is not None
        profiler, self._profiler = self._profiler, None
        self._runs = False
        try:
            with contextlib.suppress(Exception), self._others:
                profiler.end_step()
                profiler.stop()
                profiler.discard()
        finally:
            self._leave()

    @own_time()
    def _end(self, why: str, *, cut: bool) -> None:
        """Stop torch's profiler and have its file written. On the trace's thread."""
        assert self._profiler is not None
        assert self._others is not None
        profiler, self._profiler = self._profiler, None
        self._runs = False
        profiler.end_step()
        if not profiler.records():
            self.refuse("the deep trace is lost: the job has ended torch's profiler")
            return
        self.why = why
        assert self._memory is not None
        memory = self._memory.at_end()
        document: dict[str, Any] = {
            "why": why,
            "steps": len(self._during),
            "first_step": self._first_number,
            "begin_ns": self._begun_ns,
            "end_ns": time.time_ns(),
        }
        profiler.add_metadata({"haiprof": document} | _distributed(profiler))
        active = recorded()  # who waits for this to end may end the recording then
        self.state = WRITING
        called = time.perf_counter()
        try:
            with self._others:
                profiler.stop()
        finally:
            self._leave()
        stopped = time.perf_counter()
        if active is None:
            raise RuntimeError("the recording ended first")
        file = TraceFile(active, self._begun_ns // 1_000_000)
        try:
            deep = "callstacks" in self._plan.contents
            size = file.save(profiler, memory * (_WITH_CALLSTACKS if deep else _FILE_RATIO))
        except OSError as error:
            if of_signal_handler(error):
                raise
            self.refuse(f"the deep trace is lost: {active.run_dir}: {error.strerror or error}")
            return
        finally:
            profiler.discard()
        document |= {
            "contents": sorted(self._plan.contents),
            "start_ms": _ms(self._start_seconds),
            "stop_ms": _ms(stopped - called),
            "save_ms": _ms(time.perf_counter() - stopped),
            "memory_bytes": memory,
            "json_bytes": size,
            **self._step_ms(),
        }
        # All steps in the file are whole, unless it has only one.
        unfinished = self._number if cut and self._during else None
        self._compress(file, unfinished, document)

    def _step_ms(self) -> dict[str, float]:
        means = {"step_ms": self._during, "step_before_ms": list(self._before)}
        return {name: _ms(sum(v) / len(v)) for name, v in means.items() if v}

    def _compress(self, file: TraceFile, cut: int | None, document: dict[str, Any]) -> None:
        def work() -> None:
            try:
                if threading.current_thread().name == _THREAD:
                    _lower_priority()
                give_memory_back()
                self.file = file.place(cut)
            except Exception as error:
                self.refuse(f"the deep trace is lost: {error!r}")
                return
            self._written(self.file, document)

        if not self._last_chance:
            with contextlib.suppress(RuntimeError):  # no more threads: do it here
                threading.Thread(target=work, name=_THREAD).start()
                return
        work()

    def _written(self, file: Path, document: dict[str, Any]) -> None:
        from haiprof.capture.stderr import say_once

        document |= {"file": f"{file.parent.name}/{file.name}", "file_bytes": file.stat().st_size}
        steps = document["steps"]
        text = f"a deep trace of {steps or 'no'} whole steps in {file.name}: {document['why']}"
        _report("trace", text, state=DONE, **document)
        if placement().rank == 0:
            stall = (document["stop_ms"] + document["save_ms"]) / 1000
            seconds = (document["end_ns"] - document["begin_ns"]) / 1e9
            what = f"{steps} steps" if steps else f"{seconds:.1f} s"
            early = "" if document["why"] == _COMPLETE else f" (it ended early: {document['why']})"
            say_once(f"deep trace of {what}{early}, ending it took {stall:.1f} s: {file}")
        self.state = DONE
        self._finished.set()


_THREAD: Final = "haiprof-trace-file"
#: A tenth of a CPU that the job keeps busy. With the lowest of all the job's end, which waits for
#: the file, took minutes on a node with more to do than CPUs.
_NICE: Final = 10


def _distributed(profiler: Profiler) -> dict[str, Any]:
    """Return the rank for the file if torch does not write it."""
    place = placement()
    if not place.launched or profiler.knows_its_rank():
        return {}
    distributed = {"backend": "", "rank": place.rank, "world_size": place.world_size or 1}
    return {"distributedInfo": distributed}


def _lower_priority() -> None:
    with contextlib.suppress(OSError, AttributeError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 3)


def _report(kind: str, text: str, **attributes: Any) -> None:
    with contextlib.suppress(Exception):
        _core.event(kind, text, json.dumps(attributes) if attributes else None)
