"""Do something right after a module has been imported for the first time."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any


def imported(name: str) -> ModuleType | None:
    """Return the module ``name`` if its import has finished, else None."""
    module = sys.modules.get(name)
    if module is None or getattr(getattr(module, "__spec__", None), "_initializing", False):
        return None
    return module


def importing(package: str) -> bool:
    """Whether a module of ``package`` is being imported, on any thread."""
    inside = f"{package}."
    return any(
        (name == package or name.startswith(inside))
        and getattr(getattr(module, "__spec__", None), "_initializing", False)
        for name, module in list(sys.modules.items())
    )


class AfterImport(importlib.abc.MetaPathFinder):
    """Calls ``then(module)`` once, right after ``name`` has been imported.

    It stands first in ``sys.meta_path``, lets the other finders find the module, and wraps the
    module's loader to add a second step. Loader and path are restored after the import.
    """

    def __init__(self, name: str, then: Callable[[ModuleType], None]) -> None:
        """Wait for the import of ``name``. ``then`` must not raise."""
        self.name = name
        self._then = then
        sys.meta_path.insert(0, self)

    def cancel(self) -> None:
        """Wait no longer. Idempotent."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Find ``name`` with the other finders; ignore other modules."""
        if name != self.name:
            return None
        finders = list(sys.meta_path)
        # Those before us have been asked; another AfterImport may wait for the same module.
        for finder in finders[finders.index(self) + 1 :] if self in finders else finders:
            find = getattr(finder, "find_spec", None)
            if find is None:
                continue
            spec: importlib.machinery.ModuleSpec | None = find(name, path, target)
            if spec is not None:
                if spec.loader is not None and hasattr(spec.loader, "exec_module"):
                    spec.loader = _LoaderWithSequel(spec.loader, self._imported)
                return spec
        return None

    def _imported(self, module: ModuleType) -> None:
        # A finder that asks all finders again makes us wrap the loader twice.
        if self not in sys.meta_path:
            return
        self.cancel()
        self._then(module)


class _LoaderWithSequel(importlib.abc.Loader):
    """A loader with a second step; otherwise the same as the one it wraps."""

    def __init__(self, loader: importlib.abc.Loader, sequel: Callable[[ModuleType], None]) -> None:
        self._loader = loader
        self._sequel = sequel

    def __getattr__(self, name: str) -> Any:
        return getattr(object.__getattribute__(self, "_loader"), name)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._sequel(module)
