"""What a command lacks: one line with what brings a package that is not installed.

A job and its node need pyarrow at most, which compresses files; what reads these needs more.
"""

from __future__ import annotations

from typing import Final

#: Packages beside the standard library that are imported when they are needed, and what brings
#: each.
_BRINGS: Final = {
    "pyarrow": "pyarrow",
    **dict.fromkeys(("isal", "numpy", "plotly", "polars"), "'haiprof[report]'"),
}


def lacking(what: str, error: BaseException) -> str:
    """Return what ``what`` lacks, in one line, if that can be installed; else nothing.

    Args:
        what: the command or the function that raised the error.
        error: any error.
    """
    if not isinstance(error, ModuleNotFoundError):
        return ""
    package = (error.name or "").partition(".")[0]
    brings = _BRINGS.get(package)
    return f"{what} needs {package}: pip install {brings}" if brings else ""
