"""The modules that a process needs to begin to record, in one file that is read at once.

Each file that is opened there gives up the interpreter's lock a few times. Where the job's thread
keeps that for long, as in C code, importing module by module would take as many times as long.
"""

from __future__ import annotations

import contextlib
import functools
import marshal
import os
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import MAGIC_NUMBER, spec_from_file_location
from pathlib import Path
from types import CodeType, ModuleType
from typing import Final

import haiprof
from haiprof.capture.yielding import rest

#: The folders of the package with these modules.
_FOLDERS: Final = (
    *("", "capture", "capture/hooks", "capture/session", "capture/socket", "capture/trackers"),
    *("common", "recorder"),
)


@functools.cache
def bundle() -> bytes:
    """Return the bundle, for a Python of this very version.

    First the magic number of that version's code; then by name each module's path, whether it is a
    package, and its code. :class:`Bundled` reads it.
    """
    root = Path(haiprof.__file__).parent
    modules: dict[str, tuple[str, bool, bytes]] = {}
    for folder in _FOLDERS:
        for path in sorted((root / folder).glob("*.py")):
            package = path.stem == "__init__"
            parts = [*Path("haiprof", folder).parts, *([] if package else [path.stem])]
            name = ".".join(parts)
            with contextlib.suppress(ImportError, OSError, SyntaxError):
                code = SourceFileLoader(name, str(path)).get_code(name)
                modules[name] = (str(path), package, marshal.dumps(code))
    return MAGIC_NUMBER + marshal.dumps(modules)


@contextlib.contextmanager
def bundled(path: str) -> Iterator[None]:
    """Import modules from the bundle at ``path``, if it exists and has them."""
    finder = None
    with contextlib.suppress(OSError, ValueError, EOFError, TypeError):
        finder = Bundled(Path(path).read_bytes()) if path else None
    if finder is None:
        yield
        return
    sys.meta_path.insert(1, finder)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            sys.meta_path.remove(finder)


class Bundled:
    """Finds the modules of a bundle."""

    def __init__(self, content: bytes) -> None:
        """Read it.

        Raises:
            ValueError, EOFError, TypeError: it is for another Python, or not a bundle.
        """
        magic = len(MAGIC_NUMBER)
        if content[:magic] != MAGIC_NUMBER:
            raise ValueError("it is for another Python")
        self._modules: dict[str, tuple[str, bool, bytes]] = marshal.loads(content[magic:])

    def find_spec(self, name: str, *others: object) -> ModuleSpec | None:
        """Find a module of the bundle."""
        if name not in self._modules:
            return None
        path, package, code = self._modules[name]
        below = [str(Path(path).parent)] if package else None
        loader = _Loader(name, path, code)
        return spec_from_file_location(name, path, loader=loader, submodule_search_locations=below)


class _Loader(SourceFileLoader):
    """Has the code of a module in memory."""

    def __init__(self, name: str, path: str, code: bytes) -> None:
        super().__init__(name, path)
        self._code = code

    def get_code(self, fullname: str) -> CodeType | None:
        """Return the code without reading the file."""
        code: CodeType = marshal.loads(self._code)
        rest()
        return code

    def exec_module(self, module: ModuleType) -> None:
        """Run it."""
        super().exec_module(module)
        rest()


def _after_fork() -> None:
    """Undo it in a child, which nobody attaches to."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, Bundled)]


os.register_at_fork(after_in_child=_after_fork)
