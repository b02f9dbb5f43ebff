"""The folder of this user's control sockets: what is one, and which are left by the dead.

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

#: A socket that is still being made after so long is a dead process's, s.
_PARTIAL_SECONDS: Final = 60.0


def is_socket(name: str) -> bool:
    """Say whether a file of that name is the socket of a process."""
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
    """Say whether nobody listens, as somebody does from its naming to the end of its process."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as knock:
        knock.setblocking(False)
        try:
            knock.connect(str(path))
        except ConnectionRefusedError:
            return True
        except OSError:
            pass
        return False
