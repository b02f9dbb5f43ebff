"""Runs in the process that is attached to, as text: control/attach.py appends a call of ``start``.

The process may have no haiprof of its own, may be patched by gevent, and may be in the middle of
any import in its main thread, which runs this. So all but ``sys`` is imported on a thread.

Tests: tests/control/test_attach.py.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any


def begin(
    path: str,
    modules: Sequence[str],
    lacking: str,
    options: dict[str, Any],
    answer: str,
    python: tuple[str, list[str]] | None,
    bundle: str,
) -> None:
    """Import haiprof and begin to record; on failure write the reason into ``answer``.

    Args:
        path: where haiprof is; empty: where the process itself finds it.
        modules: those that the process must find itself.
        lacking: what the answer starts with if it does not find haiprof.
        options: options, as of ``haiprof.start``.
        answer: a file that exists.
        python: the Python of the recorder; None: the process has its own.
        bundle: a bundle of haiprof's modules, or empty.
    """
    import contextlib
    import importlib.util
    import os.path

    def is_there(name: str) -> bool:
        spec = importlib.util.find_spec(name)
        # Few imports: each costs the job, and pathlib has many.
        return bool(spec and spec.origin and os.path.exists(spec.origin))  # noqa: PTH110

    def report(text: str) -> None:
        with open(answer, "r+", encoding="utf-8", errors="replace") as file:  # noqa: PTH123
            file.write(text)

    try:
        lacks = [name for name in modules if not is_there(name)]
        if "haiprof" in lacks:
            report(lacking + " ".join(lacks))
            return
        if path and "haiprof" not in sys.modules:
            # The job must not find what else is beside our package.
            sys.path.insert(0, path)
            try:
                import haiprof  # noqa: F401
            finally:
                sys.path.remove(path)
        from haiprof.capture.socket import entry
    except BaseException as error:
        with contextlib.suppress(OSError):  # the caller has disappeared
            report(f"haiprof cannot be imported there ({str(error)[:900]})")
    else:
        entry.begin(options, answer, python, bundle)


def start(rest: float, arguments: dict[str, Any]) -> None:
    """Call ``begin`` on a thread of its own; the job's own threads run first.

    Args:
        rest: how long they run before it begins, s.
        arguments: those of ``begin``.
    """
    monkey = sys.modules.get("gevent.monkey")

    def unpatched(module: str, name: str) -> Any:
        return monkey.get_original(module, name) if monkey else getattr(__import__(module), name)

    # Both functions are deleted before the thread has rested: see _code() of control/attach.py.
    sleep, after_rest = unpatched("time", "sleep"), begin

    def rest_and_begin() -> None:
        sleep(rest)
        after_rest(**arguments)

    unpatched("_thread", "start_new_thread")(rest_and_begin, ())
