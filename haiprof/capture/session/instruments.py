"""Attaches a recording to torch, Python and the GPU, and detaches it.

Tests: tests/capture/session/test_session.py.
"""

from __future__ import annotations

import contextlib
from typing import Final

from haiprof import _core
from haiprof.capture.after_import import imported
from haiprof.capture.stderr import say_once
from haiprof.common.launcher import placement
from haiprof.options import Options

#: How long CUPTI may take to hand over its last records, s.
_KERNELS_SECONDS: Final = 1.0


def install(options: Options) -> None:
    """Attach what these options ask for. Failures are reported."""
    try:
        if options.hooks:
            from haiprof.capture import hooks

            hooks.install(report)
            if options.trackers:
                from haiprof.capture import trackers

                trackers.arm(options.trackers)
    except Exception as error:  # an unknown torch
        say_once(
            f"steps and phases cannot be detected automatically: {error!r}; use haiprof.step()"
        )
    install_kernels(options)
    if options.traces:
        from haiprof.capture import trace as deep_trace

        deep_trace.arm(options)
    if options.flops and placement().rank == 0:
        from haiprof.capture import flops

        flops.arm()


def install_kernels(options: Options) -> None:
    """Record the GPU as these options say."""
    if options.hooks or options.kernels != "off":
        from haiprof.capture.hooks import cuda

        cuda.install(report, options)


def stop_kernels() -> None:
    """Take over what the GPU has done; the ring must still be open."""
    cuda = imported("haiprof.capture.hooks.cuda")
    if cuda is not None:
        with contextlib.suppress(Exception):
            cuda.uninstall(_KERNELS_SECONDS)


def leave() -> None:
    """Detach the hooks, except those on the GPU, whose last records need the ring."""
    shown = imported("haiprof.capture.trackers")
    if shown is not None:
        shown.disarm()
    with contextlib.suppress(Exception):
        hooks = imported("haiprof.capture.hooks")
        if hooks is not None:
            hooks.uninstall()
    flops = imported("haiprof.capture.flops")
    if flops is not None:
        flops.disarm()


def finish_trace(why: str, seconds: float, *, process_ends: bool) -> None:
    """End a deep trace, if one is being made, while its events still have a ring."""
    deep_trace = imported("haiprof.capture.trace")
    if deep_trace is not None:
        deep_trace.finish(why, seconds, process_ends=process_ends)


def wait_for_trace(seconds: float) -> None:
    """Wait for the file of a deep trace that has ended."""
    deep_trace = imported("haiprof.capture.trace")
    if deep_trace is not None:
        deep_trace.wait_written(seconds)


def report(kind: str, text: str) -> None:
    """Record an event, if a ring is open."""
    with contextlib.suppress(Exception):
        _core.event(kind, text)


def report_what_is_known() -> None:
    """Report what was found before there was a ring."""
    hooks = imported("haiprof.capture.hooks")
    if hooks is not None:
        hooks.report_kept()
    workload = imported("haiprof.capture.model")
    if workload is not None:
        workload.report_known()
