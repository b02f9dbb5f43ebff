"""Callbacks after an import."""

from __future__ import annotations

import copy
import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from haiprof.capture.after_import import AfterImport


class AsksAllOnceMore:
    """A finder as wrapt has one: it lets all finders find the module, itself left out."""

    def __init__(self) -> None:
        self.busy = False

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if self.busy or name != "awaited":
            return None
        self.busy = True
        try:
            return importlib.util.find_spec(name)
        finally:
            self.busy = False


@pytest.fixture
def awaited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[ModuleType]:
    """The calls made after the import of ``awaited``; nothing is awaited yet."""
    (tmp_path / "awaited.py").write_text("there = True\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.delitem(sys.modules, "awaited", raising=False)
    return []


def test_called_once_when_another_finder_asks_all_once_more(awaited: list[ModuleType]) -> None:
    sys.meta_path.insert(0, AsksAllOnceMore())
    AfterImport("awaited", awaited.append)
    module = importlib.import_module("awaited")
    assert awaited == [module]
    assert module.there


def test_not_called_after_cancel(awaited: list[ModuleType]) -> None:
    AfterImport("awaited", awaited.append).cancel()
    importlib.import_module("awaited")
    assert awaited == []


def test_two_may_wait_for_one_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "awaited_twice.py").write_text("x = 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    seen: list[str] = []
    waiting = [
        AfterImport("awaited_twice", lambda module, n=n: seen.append(f"{n} {module.x}"))  # type: ignore[misc]
        for n in ("first", "second")
    ]
    module = importlib.import_module("awaited_twice")
    assert sorted(seen) == ["first 1", "second 1"]
    assert not any(w in sys.meta_path for w in waiting)
    assert type(module.__loader__).__name__ == "SourceFileLoader"
    del sys.modules["awaited_twice"]


def test_the_loader_of_a_module_that_is_waited_for_answers_as_its_own(
    awaited: list[ModuleType], tmp_path: Path
) -> None:
    AfterImport("awaited", awaited.append)
    spec = importlib.util.find_spec("awaited")
    assert spec is not None
    loader: Any = spec.loader
    assert loader.path == loader.get_filename("awaited") == str(tmp_path / "awaited.py")
    assert loader.get_source("awaited") == "there = True\n"
    assert loader.is_package("awaited") is False
    assert not hasattr(loader, "nothing_of_the_kind")
    assert copy.copy(loader).path == loader.path
    assert awaited == []
