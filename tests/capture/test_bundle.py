"""Our modules in one file, for a process that they are brought into."""

from __future__ import annotations

import marshal
import os
from pathlib import Path

import pytest
from recording import run_python

import haiprof
from haiprof.capture.bundle import Bundled, bundle


def test_it_is_for_this_version_only() -> None:
    with pytest.raises(ValueError, match="for another Python"):
        Bundled(b"????" + bundle()[4:])
    with pytest.raises((ValueError, EOFError, TypeError)):
        Bundled(bundle()[:100])


def test_it_finds_what_it_has_and_nothing_else() -> None:
    found = Bundled(bundle())
    assert found.find_spec("haiprof.cli.main") is None
    assert found.find_spec("json") is None
    assert found.find_spec("haiprof.capture.trackers.sinks") is not None
    spec = found.find_spec("haiprof.capture.session")
    assert spec is not None
    root = Path(haiprof.__file__).parent
    assert spec.origin == str(root / "capture/session/__init__.py")
    assert spec.submodule_search_locations == [str(root / "capture/session")]


def test_modules_of_it_are_what_they_are_from_their_files(tmp_path: Path) -> None:
    (tmp_path / "bundle").write_bytes(bundle())
    program = """
        import inspect, sys
        from haiprof.capture.bundle import Bundled
        opened = []
        sys.addaudithook(lambda event, given: opened.append(given[0]) if event == "open" else None)
        sys.meta_path.insert(0, Bundled(open(sys.argv[1], "rb").read()))
        opened.clear()
        from haiprof.recorder import launch
        from haiprof.capture import session
        assert not [name for name in opened if "haiprof" in str(name)], opened
        names = (session.__name__, session.__package__)
        assert names == ("haiprof.capture.session", "haiprof.capture.session")
        assert session.recording.__file__.endswith("haiprof/capture/session/recording.py")
        assert "def start_recorder(" in inspect.getsource(launch)
        print(type(session.recording.__spec__.loader).__name__)
    """
    assert run_python(program, str(tmp_path / "bundle")) == "_Loader\n"


@pytest.mark.parametrize("content", [b"", b"????", bundle()[:4] + marshal.dumps([1])])
def test_what_is_no_bundle_is_done_without(shm: Path, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "bundle").write_bytes(content)
    (tmp_path / "answer").write_bytes(bytes(4096))
    program = """
        import sys
        from haiprof.capture.socket import entry
        given = {"run": "r", "log_dir": sys.argv[1] + "/logs"}
        entry.begin(given, sys.argv[1] + "/answer", None, sys.argv[1] + "/bundle")
        print(open(sys.argv[1] + "/answer").read().strip(chr(0)))
    """
    assert run_python(program, str(tmp_path), env={**os.environ}) == "ok\n"
