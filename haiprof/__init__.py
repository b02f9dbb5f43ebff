"""haiprof: the profiler that every PyTorch training job runs with, all the time.

>>> import haiprof
>>> session = haiprof.start(log_dir="logs")     # in the job; or `haiprof run train.py`
>>> with haiprof.range("load"):
...     ...
>>> haiprof.stop()

>>> run = haiprof.Analyzer("logs")              # anywhere, later
>>> run.show_overview()
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from haiprof.analyzer import Analyzer
    from haiprof.capture.calls import trace
    from haiprof.capture.model import model
    from haiprof.capture.session import Session, flush, start, stop
    from haiprof.capture.user import mark, range, step
    from haiprof.errors import HaiprofError

__version__ = "0.1.0"

__all__ = [
    "Analyzer",
    "HaiprofError",
    "Session",
    "flush",
    "mark",
    "model",
    "range",
    "start",
    "step",
    "stop",
    "trace",
]


def _refuse_source_tree(folder: str) -> None:
    """Raise in a checkout, where the compiled part is missing and answers would be wrong."""
    import os

    # Without pathlib, which takes longer to import than this package.
    if not os.path.isfile(f"{folder}/../CMakeLists.txt"):  # noqa: PTH113
        return
    names = os.listdir(folder)  # noqa: PTH208
    if not any(n.startswith("_core.") and n.endswith(".so") for n in names):
        raise ImportError(
            f"{folder} is haiprof's source tree, without its compiled part: "
            "`pip install` it, and start Python in another folder",
            name="haiprof",
        )


_refuse_source_tree(__path__[0])

# Capture and analysis live in different processes; each import costs only the half it needs.
_HOMES = {
    "Analyzer": "haiprof.analyzer",
    "HaiprofError": "haiprof.errors",
    "Session": "haiprof.capture.session",
    "flush": "haiprof.capture.session",
    "mark": "haiprof.capture.user",
    "model": "haiprof.capture.model",
    "range": "haiprof.capture.user",
    "start": "haiprof.capture.session",
    "step": "haiprof.capture.user",
    "stop": "haiprof.capture.session",
    "trace": "haiprof.capture.calls",
}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None and name != "_core":
        why = f"module 'haiprof' has no attribute {name!r}"
        if not name.startswith("_"):  # introspection asks for those
            from haiprof.common.choices import did_you_mean

            why = f"{why}: {hint}" if (hint := did_you_mean(name, __all__)) else why
        raise AttributeError(why)
    import importlib

    if home is None:
        return _compiled()
    try:
        value = getattr(importlib.import_module(home), name)
    except ModuleNotFoundError as error:
        from haiprof.common.extras import lacking

        if why := lacking(f"haiprof.{name}", error):
            raise ImportError(why, name=error.name) from None
        raise
    globals()[name] = value
    return value


def _compiled() -> Any:
    """Import the compiled module, which a zip file or a package for another Python lacks."""
    import importlib
    import sys

    try:
        return importlib.import_module("haiprof._core")
    except ModuleNotFoundError as error:
        if error.name != "haiprof._core":
            raise
        raise ImportError(
            f"there is no compiled module of haiprof for {sys.implementation.cache_tag}"
            f"{sys.abiflags} in {__path__[0]}, and none can be in a zip file: install haiprof with "
            "this Python's pip",
            name="haiprof._core",
        ) from None


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
