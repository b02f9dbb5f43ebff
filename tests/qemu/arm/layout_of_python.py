"""Stands in for ``haiprof._core`` on an emulated machine: says where its Python keeps frames."""

from __future__ import annotations

import ctypes
import struct

_LIBRARY = ctypes.PyDLL("/libpython_layout.so")
_LIBRARY.haiprof_describe_python.restype = ctypes.c_char_p


def python_layout() -> bytes:
    """As ``haiprof._core`` has it."""
    layout = ctypes.create_string_buffer(1024)
    reason = _LIBRARY.haiprof_describe_python(layout)
    if reason:
        raise RuntimeError(reason.decode())
    (size,) = struct.unpack_from("I", layout, 4)
    return layout.raw[:size]
