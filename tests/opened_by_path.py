"""Finds what opens a file by its path where others can write its folder; ``make lint`` runs it.

haiprof/common/owned_files.py is the only way to open, create, replace or remove files there.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent / "haiprof"
#: The modules that deal with such folders.
CONCERNED = (
    "capture/session/*.py",
    "capture/socket/*.py",
    "capture/bundle.py",
    "common/process_life.py",
    "common/wait_status.py",
    "common/protocol.py",
    "control/*.py",
    "recorder/*.py",
    "recorder/metrics/*.py",
    "sources/follow.py",
    "sources/own.py",
    "sources/log_dirs.py",
    "sources/tables.py",
    "common/places.py",
    "recorder/run_folder.py",
    "show/page/all_runs.py",
    "show/report.py",
    "answers/kept_overview.py",
)
#: Ways to open, create, replace or remove a file by a path.
BY_PATH = {
    *("read_text", "read_bytes", "write_text", "write_bytes", "touch", "unlink"),
    *("symlink_to", "hardlink_to", "chmod", "chown", "mkfifo", "mkstemp", "mkdtemp", "rmtree"),
    *("copyfile", "copytree", "OSFile", "memory_map", "mkdir", "makedirs"),
}
#: Files of the kernel are nobody's to replace.
OF_THE_KERNEL = "/proc"
#: What may use a path, and why.
EXCEPTIONS = {
    # The folder above runs is where its user wants it, links and all.
    ("recorder/run_folder.py", "folder.parent.mkdir(parents=True, exist_ok=True)"),
    ("control/attach.py", "plan.log_dir.mkdir(parents=True, exist_ok=True)"),
    # Below a folder that is opened: see Folder.reached_at().
    ("recorder/loop.py", "path.unlink()"),
    ("recorder/recover.py", "ring.unlink(missing_ok=True)"),
    ("recorder/process.py", "self.ring.unlink(missing_ok=True)"),
    # Names that end a note or a socket of this process, or are gone: nothing is opened.
    ("recorder/outside.py", "note.rename(ended)"),
    ("recorder/outside.py", "ended.unlink()"),
    ("recorder/outside.py", "note.unlink(missing_ok=True)"),
    ("capture/socket/server.py", "path.unlink()"),
    ("capture/socket/server.py", "self._path.unlink()"),
    # The process reads what was put into its own /tmp.
    ("capture/bundle.py", "Path(path).read_bytes()"),
    ("capture/socket/entry.py", "Path(answer).open('r+', encoding='utf-8')"),
    ("control/attach_stub.py", "open(answer, 'r+', encoding='utf-8', errors='replace')"),
    # A folder of a name that nobody knows, with mode 0700; shutil.rmtree() follows no link.
    ("control/inject.py", "tempfile.mkdtemp(prefix='haiprof-', dir=parent)"),
    ("control/inject.py", "shutil.rmtree(path, ignore_errors=True)"),
    # In /proc, and in control groups where the kernel says that they are mounted.
    ("recorder/memory_kills.py", "file.read_text('utf-8', 'replace')"),
    # Files of haiprof itself.
    ("control/container_folder.py", "path.open('rb')"),
    ("answers/kept_overview.py", "file.read_bytes()"),
}


def _by_path(file: Path) -> Iterator[str]:
    """Yield the calls in a module that open a file by a path."""
    for call in ast.walk(ast.parse(file.read_text("utf-8"))):
        if not isinstance(call, ast.Call):
            continue
        text, function = ast.unparse(call), call.func
        if OF_THE_KERNEL in text or any(k.arg in ("dir_fd", "src_dir_fd") for k in call.keywords):
            continue
        if isinstance(function, ast.Name) and function.id == "open":
            yield text
        elif isinstance(function, ast.Attribute):
            of_os = ast.unparse(function.value) == "os"
            opens = function.attr == "open" and (of_os or _is_mode(call))
            # Folder.rename() takes two names.
            takes_one = of_os or len(call.args) == 1
            replaces = function.attr in ("replace", "rename") and takes_one
            if function.attr in BY_PATH or opens or replaces:
                yield text


def _is_mode(call: ast.Call) -> bool:
    first = call.args[0] if call.args else None
    return isinstance(first, ast.Constant) and isinstance(first.value, str) and len(first.value) < 4


def problems() -> list[str]:
    """Return a line for each call that should not be there, and for each exception that is not."""
    found = {
        (str(file.relative_to(PACKAGE)), text)
        for pattern in CONCERNED
        for file in PACKAGE.glob(pattern)
        for text in _by_path(file)
    }
    return [
        *(
            f"haiprof/{f}: {call}: open it with haiprof.common.owned_files"
            for f, call in found - EXCEPTIONS
        ),
        *(
            f"{__file__}: EXCEPTIONS: {f}: {call} is no longer there"
            for f, call in EXCEPTIONS - found
        ),
    ]


if __name__ == "__main__":
    sys.exit("\n".join(sorted(problems())) or None)
