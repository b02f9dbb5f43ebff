"""The source that a user names: a folder here, one of another host, or a URL.

Tests: tests/cli/test_collect.py.
"""

from __future__ import annotations

import re
from pathlib import Path

from haiprof.collect.shell import Shell
from haiprof.collect.source import Source
from haiprof.collect.url import Url
from haiprof.sources.found import is_url

#: ``[user@]host:folder``; an IPv6 address stands in brackets, as for scp.
_REMOTE = re.compile(r"(?P<user>[^@/:]+@)?(?:\[(?P<six>[^\]/]+)\]|(?P<host>[^:/]+)):(?P<dir>.*)")
#: A host that begins with a dash would be an option of ssh.
_HOST = re.compile(r"[A-Za-z0-9_][\w.:@%-]*")


def source(text: str) -> Source:
    """Return the source that ``HOST:DIR``, a folder, or a URL of fsspec names. Nothing is read yet.

    Raises:
        ValueError: the name is invalid; the text says why.
    """
    if "\n" in text or "\0" in text:
        raise ValueError(f"{text!r}: a folder with a line break in its name cannot be collected")
    if is_url(text):
        return Url(text)
    remote = _REMOTE.fullmatch(text)
    if remote is None:
        return Shell(text, None, str(Path(text).expanduser().absolute()))
    return on_host((remote["user"] or "") + (remote["six"] or remote["host"]), remote["dir"], text)


def on_host(host: str, folder: str, label: str = "") -> Source:
    """Return a folder of a host; a relative one is in the home of the user who logs in there.

    Raises:
        ValueError: the host name is invalid, or no folder is named.
    """
    label = label or f"{host}:{folder}"
    if not _HOST.fullmatch(host):
        raise ValueError(f"{label}: {host!r} is not a valid host name")
    if not folder:
        raise ValueError(f"{label}: missing folder: put it after the colon")
    # Must not begin like an option of cd or like what a shell expands.
    plain = folder if folder.startswith("/") else "./" + folder.removeprefix("~").lstrip("/")
    return Shell(label, host, plain)
