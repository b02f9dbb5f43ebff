"""Adds haiprof to a Python that does not have it, if PYTHONPATH names this file's folder.

Its packages come last on the path: what the job has of its own stays in use. It may not fail: an
interpreter that does not start is worse than a job that is not profiled.
"""

import importlib.machinery
import importlib.util
import os
import site
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


def _add_haiprof() -> None:
    version = f"{sys.version_info[0]}.{sys.version_info[1]}{sys.abiflags}"
    folder = os.path.join(os.path.dirname(_HERE), "site", version)
    if os.path.isdir(folder):
        site.addsitedir(folder)  # its haiprof.pth does what HAIPROF_ENABLED asks for
    elif _asked_for() and importlib.util.find_spec("haiprof") is None:
        os.environ["HAIPROF_ENABLED"] = "0"  # once, not by each process that this one starts
        if sys.stderr is not None:
            print(
                f"haiprof: not recording: there is no {folder}; add it with deploy/tree/install.sh "
                f"and {sys.executable}. The job continues unprofiled",
                file=sys.stderr,
            )


def _asked_for() -> bool:
    value = os.environ.get("HAIPROF_ENABLED", "0").strip().lower()
    return value not in ("", "0", "false", "no", "off")


def _run_the_next() -> None:
    """Run the sitecustomize that this one stands before, as if it were the first."""
    others = [path for path in sys.path if os.path.abspath(path) != _HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


try:
    _add_haiprof()
except Exception as error:
    if sys.stderr is not None:
        print(f"haiprof: not recording: {error!r}. The job continues unprofiled", file=sys.stderr)
_run_the_next()
