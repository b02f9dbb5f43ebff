"""What a recording attaches to torch, Python and the GPU, and takes off again."""

from __future__ import annotations

import contextlib
from typing import Final

from haiprof import _core
from haiprof.imports import imported
from haiprof.launcher import placement
from haiprof.options import Options
from haiprof.session.lines import tell

#: How long CUPTI may take to hand over its last records, s.
_KERNELS_SECONDS: Final = 1.0


def install(options: Options) -> None:
    """Attach what these options ask for. What cannot be attached is told."""
    try:
        if options.hooks:
            from haiprof import hooks

            hooks.install(report)
    except Exception as error:  # a torch that we do not know
        tell(f"steps and phases are not found by themselves: {error!r}; use haiprof.step()")
    install_kernels(options)
    if options.traces:
        from haiprof import deep

        deep.arm(options)
    if options.flops and placement().rank == 0:
        from haiprof import flops

        flops.arm()


def install_kernels(options: Options) -> None:
    """Record the GPU as these options say."""
    if options.hooks or options.kernels != "off":
        from haiprof.hooks import cuda

        cuda.install(report, options)


def stop_kernels() -> None:
    """Take over what the GPU has done; the ring must still be open."""
    cuda = imported("haiprof.hooks.cuda")
    if cuda is not None:
        with contextlib.suppress(Exception):
            cuda.uninstall(_KERNELS_SECONDS)


def leave() -> None:
    """Take the hooks off again, but for those on the GPU, whose last records need the ring."""
    with contextlib.suppress(Exception):
        hooks = imported("haiprof.hooks")
        if hooks is not None:
            hooks.uninstall()
    flops = imported("haiprof.flops")
    if flops is not None:
        flops.disarm()


def finish_trace(why: str, seconds: float) -> None:
    """End a deep trace, if one is being made, while its events still have a ring."""
    deep = imported("haiprof.deep")
    if deep is not None:
        deep.finish(why, seconds)


def report(kind: str, text: str) -> None:
    """Record what became of it as an event, if a ring is open."""
    with contextlib.suppress(Exception):
        _core.event(kind, text)


def say_what_is_known() -> None:
    """Report what was found before there was a ring."""
    hooks = imported("haiprof.hooks")
    if hooks is not None:
        hooks.report_kept()
    workload = imported("haiprof.workload")
    if workload is not None:
        workload.say_again()
