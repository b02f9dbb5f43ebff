"""The way to another host: ssh, or what ``HAIPROF_SSH_COMMAND`` says instead.

Tests: tests/cli/hosts/test_launch.py.
"""

from __future__ import annotations

import os
from typing import Final

SSH_VARIABLE: Final = "HAIPROF_SSH_COMMAND"
_SSH: Final = "ssh -T -o BatchMode=yes"
#: Where the command takes the host, if not after it: ``kubectl exec -i {host} -- sh -c``.
_HOST: Final = "{host}"
#: For what can be repeated: a host that does not answer is given up.
IMPATIENT: Final = "-o ConnectTimeout=20 -o ServerAliveInterval=15"


def way_to(host: str, program: str, options: str = "") -> list[str]:
    """Return the words that run a shell command line on a host.

    Args:
        host: its name or address, perhaps with ``user@``. The own name and ``localhost`` need no
            ssh.
        program: the line, as a shell of the other side reads it.
        options: of ssh, if ssh is used.
    """
    ssh = os.environ.get(SSH_VARIABLE)
    if not ssh and is_here(host):
        return ["sh", "-c", f"exec {program}"]
    # As in git: the command is for a shell, the words after it are not.
    if ssh and _HOST in ssh:
        text = ssh.replace(_HOST, '"$0"')
        return ["sh", "-c", f'{text} "$@"', host, f"exec {program}"]
    return ["sh", "-c", f'{ssh or f"{_SSH} {options}"} "$@"', "ssh", host, f"exec {program}"]


def is_here(host: str) -> bool:
    """Say whether it is this machine by its name."""
    return host in ("localhost", os.uname().nodename)
