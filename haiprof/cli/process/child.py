"""A command that runs in our place: same terminal, same process group, every signal exactly once.

A signal that reaches us has often reached the command as well: Ctrl-C goes to the whole process
group, and so do the signals of schedulers and of a shell's ``kill %1``. Others are for us alone: a
``kill PID``, or the hang-up that a session leader gets. Neither si_code nor si_pid tells one from
the other, so a witness, a forked process that only listens, sits in the group: what it has heard
was for all, and only what it has not heard is passed on.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final, NoReturn

from haiprof.common.wait_status import Noted

#: What a fault of our own process raises, what cannot be caught, and what is about us alone.
_OURS: Final = {
    signal.SIGKILL,
    signal.SIGSTOP,
    signal.SIGCHLD,
    signal.SIGPIPE,
    signal.SIGSEGV,
    signal.SIGBUS,
    signal.SIGFPE,
    signal.SIGILL,
    signal.SIGABRT,
    signal.SIGTRAP,
    signal.SIGSYS,
    signal.SIGXCPU,
    signal.SIGXFSZ,
}
PASSED: Final = frozenset(signal.valid_signals()) - _OURS
#: By these somebody asks a process to end.
ASKING: Final = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
_STOPS: Final = frozenset({signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU})
#: A signal for a group reaches its members one after the other; by now, s, it has reached all.
_SETTLED: Final = 0.002
#: How often, each tenth of a second, the witness is waited for on a machine that is busy.
_PATIENCE: Final = 50
#: How often, s, what is to be done meanwhile is done.
_MEANWHILE: Final = 1.0
#: Ends an answer of the witness; no signal has this number.
_END: Final = 0


class _Witness:
    """Receives the signals that the process group receives."""

    def __init__(self) -> None:
        """Fork it. The signals must be blocked, so that it collects them."""
        questions, self._ask = os.pipe()
        self._answers, answer = os.pipe()
        self._unanswered = 0
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.close(self._ask)
                os.close(self._answers)
                _listen(questions, answer)
            finally:
                os._exit(0)
        os.close(questions)
        os.close(answer)

    def heard(self) -> set[int] | None:
        """Return the signals since the last question; None when the witness is gone or stopped."""
        heard: set[int] = set()
        patience = _PATIENCE
        poll = select.poll()
        poll.register(self._answers, select.POLLIN)
        try:
            os.write(self._ask, b"?")
            self._unanswered += 1
            while self._unanswered:
                if not poll.poll(100):
                    patience -= 1
                    if self._stopped() or not patience:
                        return None
                    continue
                answer = os.read(self._answers, 256)
                if not answer:
                    return None
                self._unanswered -= answer.count(_END)
                heard.update(answer)
        except OSError:
            return None
        return heard - {_END}

    def _stopped(self) -> bool:
        try:
            state = Path(f"/proc/{self.pid}/stat").read_bytes().rpartition(b")")[2].split()[0]
        except OSError:
            return True
        return state in (b"T", b"t", b"Z", b"X")

    def dismiss(self) -> None:
        """End it: it leaves when nobody can ask any more."""
        os.close(self._ask)
        os.close(self._answers)


def _listen(questions: int, answer: int) -> None:
    while os.read(questions, 1):
        heard = bytearray()
        while (info := signal.sigtimedwait(PASSED, 0)) is not None:
            heard.append(info.si_signo)
        heard.append(_END)
        os.write(answer, heard)


class Child:
    """The command, from its start to its end."""

    def __init__(self) -> None:
        """Get ready for its signals; from here to :meth:`wait`'s return they wait for us."""
        # An inherited SIG_IGN would let the kernel throw the exit code away.
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, {*PASSED, signal.SIGCHLD})
        self._witness: _Witness | None = None
        with contextlib.suppress(OSError):
            self._witness = _Witness()
        self._group: set[int] = set()
        #: The newest signal by which somebody asked the command to end; 0: none.
        self.asked = 0
        self._stops: set[int] = set()
        self.pid = 0

    def start(self, words: Sequence[str], environment: Mapping[str, str]) -> None:
        """Start the command.

        Raises:
            OSError: it cannot be started; ``errno`` says why.
        """
        try:
            self.pid = self._spawn(words, environment)
        except OSError as error:
            if error.errno == errno.ENOEXEC:  # a script without a first line, as shells take it
                self.pid = self._spawn(["/bin/sh", *words], environment)
                return
            self._release()
            raise

    def _spawn(self, words: Sequence[str], environment: Mapping[str, str]) -> int:
        return os.posix_spawnp(
            words[0],
            list(words),
            environment,
            setsigmask=self._mask,
            # Python ignores these for itself.
            setsigdef=[signal.SIGPIPE, signal.SIGXFSZ],
        )

    def wait(self, ended: Callable[[Noted], None], meanwhile: Callable[[], None]) -> int:
        """Pass signals on until the command ends; return its wait status.

        Args:
            ended: called at the end, while others can still read it from the kernel.
            meanwhile: called once a second until then.
        """
        awaited = {*PASSED, signal.SIGCHLD}
        while True:
            info = signal.sigtimedwait(awaited, _MEANWHILE)
            if info is None:
                meanwhile()
            elif info.si_signo == signal.SIGCHLD:
                self._report_end(ended)
                status = self._reap()
                if status is not None:
                    self._release()
                    return status
            else:
                self._pass_on(info)

    def _report_end(self, ended: Callable[[Noted], None]) -> None:
        with contextlib.suppress(ChildProcessError):
            info = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if info is not None:
                by_exit = info.si_code == os.CLD_EXITED
                ended(Noted(info.si_status << 8 if by_exit else info.si_status, self.asked))

    def _reap(self) -> int | None:
        """Return the command's status if it ended. As process 1 everybody's orphans are ours."""
        ended = None
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
                if pid == 0:
                    break
                if pid == self.pid:
                    if os.WIFSTOPPED(status):
                        self._stop_too(os.WSTOPSIG(status))
                    else:
                        ended = status
        return ended

    def _pass_on(self, info: signal.struct_siginfo) -> None:
        number = info.si_signo
        if number in ASKING:
            self.asked = number
        if number in _STOPS:
            self._stops.add(number)
        if not self._was_for_the_group(number, info.si_code):
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def _was_for_the_group(self, number: int, code: int) -> bool:
        time.sleep(_SETTLED)
        heard = self._witness.heard() if self._witness is not None else None
        if heard is None:
            # Nobody to ask: the terminal speaks to groups, processes mostly to one.
            return code > 0
        self._group |= heard
        if number not in self._group:
            return False
        self._group.discard(number)
        # Sent to us and to the group, as timeout(1) does, it is still one signal.
        while signal.sigtimedwait({number}, 0) is not None:
            pass
        return True

    def _stop_too(self, number: int) -> None:
        """Stop as the command did, if that was meant for both, so that the shell takes over."""
        if number not in self._stops and number not in signal.sigpending():
            return
        self._was_for_the_group(number, 0)
        self._stops.clear()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
        os.kill(os.getpid(), number)
        signal.pthread_sigmask(signal.SIG_BLOCK, {number})

    def _release(self) -> None:
        """Go back to taking signals for ourselves; those that came too late are forgotten."""
        if self._witness is not None:
            self._witness.dismiss()
        while signal.sigtimedwait({*PASSED, signal.SIGCHLD}, 0) is not None:
            pass
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)


def end_like(status: int) -> NoReturn:
    """End as the command with this wait status did: its exit code, or death by its signal."""
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        _die_by(number)
        os._exit(128 + number)  # as process 1 nothing kills us
    os._exit(os.WEXITSTATUS(status))


def _die_by(number: int) -> None:
    import ctypes

    with contextlib.suppress(Exception):
        # The core file to keep is the command's.
        ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE
    with contextlib.suppress(OSError, ValueError):  # SIGKILL has no handler
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    os.kill(os.getpid(), number)
