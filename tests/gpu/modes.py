"""haiprof in this process, on and off many times."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from types import TracebackType

from gpu.recorded import RUN
from recording import recorders

from gpu import jobs


class Haiprof:
    """A session that can be put on and off between two blocks of steps.

    Off, nothing of it runs: no hook is attached, no kernel recorded, and its recorder is stopped.
    As in any job, CUPTI is there before the first CUDA context.
    """

    def __init__(self, log_dir: Path, device: str) -> None:
        self._log_dir = log_dir
        self._device = device
        self._recorder = 0

    def __enter__(self) -> Haiprof:
        import haiprof
        from haiprof.options import Options

        self._options = Options()._replace(budget=0.0)
        haiprof.start(
            self._log_dir, run=RUN, hooks=False, kernels="all", budget=0.0, ring_mib=64
        )  # fmt: skip
        try:
            self._find_recorder(20)
            self.machine = jobs.Machine(self._device)
        except Exception:
            haiprof.stop()
            raise
        time.sleep(1.0)  # its imports are not what is measured
        self.off()
        return self

    def _find_recorder(self, seconds: float) -> None:
        shm = Path(os.environ["HAIPROF_SHM_DIR"])
        until = time.monotonic() + seconds
        while not self._recorder:
            for pid in recorders(shm):
                command = Path(f"/proc/{pid}/cmdline").read_bytes()
                if os.fsencode(self._log_dir) in command:
                    self._recorder = pid
            if not self._recorder and time.monotonic() > until:
                raise RuntimeError(f"haiprof has no recorder after {seconds:g} s")
            time.sleep(0.02)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        import haiprof

        os.kill(self._recorder, signal.SIGCONT)
        haiprof.stop()

    def on(self, kernels: str, period: float = 60.0, hooks: bool = True) -> None:
        """Do what ``haiprof.start(kernels=…)`` does, in the session that is there."""
        from haiprof.capture.session import instruments

        os.kill(self._recorder, signal.SIGCONT)
        instruments.install(
            self._options._replace(kernels=kernels, kernels_period=period, hooks=hooks)
        )

    def off(self) -> None:
        """Take it all back."""
        from haiprof.capture import hooks
        from haiprof.capture.session import instruments

        hooks.uninstall()
        instruments.stop_kernels()
        os.kill(self._recorder, signal.SIGSTOP)


#: Steps after which the first window begins; src/gpu/windows.cpp has the number.
SETTLED = 20


def open_first_window(machine: jobs.Machine, seconds: float = 20.0) -> None:
    """Take steps until kernels are recorded in windows; the last one, and the window, stay open.

    Raises:
        RuntimeError: none is recorded in time.
    """
    import torch

    import haiprof
    from haiprof import _core

    x = torch.zeros(32, device=machine.device)
    for _ in range(SETTLED + 1):
        haiprof.step()
        x.add_(1.0)
    until = time.monotonic() + seconds
    while not _core.gpu_counts()["kernels"]:
        if time.monotonic() > until:
            raise RuntimeError(f"no kernel is recorded {seconds:g} s after {SETTLED} steps")
        machine.pretend(1)
        x.add_(1.0)
        time.sleep(0.01)


def counts() -> dict[str, int]:
    """What haiprof has recorded and lost so far, once everything that has ended is taken over."""
    from haiprof import _core

    _core.gpu_flush(5.0)
    return dict(_core.gpu_counts())
