"""The folder of this user's control sockets: recognises them, and removes those of dead processes.

Tests: tests/capture/socket/test_server.py.
"""

from __future__ import annotations

import contextlib
import socket
import time
from pathlib import Path
from typing import Final

from haiprof.common.owned_files import private_folder
from haiprof.common.places import PARTIAL_SUFFIX

#: A socket that is still unfinished after this long is a dead process's, s.
_PARTIAL_SECONDS: Final = 60.0


def is_socket(name: str) -> bool:
    """Say whether this is the name of a process's socket."""
    return name.partition("@")[0].isdecimal() and not name.endswith(PARTIAL_SUFFIX)


def remove_dead(folder: Path) -> None:
    """Remove the sockets of processes that have ended, and the folder with the last. Never raises.

    Args:
        folder: of sockets, all of one user.
    """
    with contextlib.suppress(OSError):
        here = private_folder(folder, above=private_folder(folder.parent))
        for name in here.names():
            if name.endswith(PARTIAL_SUFFIX):
                if time.time() - here.stat(name).st_mtime > _PARTIAL_SECONDS:
                    here.remove(name)
            elif is_socket(name) and _refuses(here.reached_at() / name):
                here.remove(name)
        folder.rmdir()


def _refuses(path: Path) -> bool:
    """Say whether nobody listens; a live process listens as long as its socket has its name."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.setblocking(False)
        try:
            client.connect(str(path))
        except ConnectionRefusedError:
            return True
        except OSError:
            pass
        return False
