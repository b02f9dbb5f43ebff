"""Where a recorder exports its figures to, as the option ``metrics`` says it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import urlsplit

#: Where it listens if no host is given: nobody else on the network sees it.
LOOPBACK: Final = "127.0.0.1"
_ADDRESS: Final = re.compile(r"(?P<host>\[[0-9A-Fa-f:.%\w]+\]|[\w.-]*):(?P<port>\d{1,5})")
_FORMS: Final = "HOST:PORT, :PORT, a path that ends in .prom, otlp, otlp:URL, host"
#: Asks for samples of the host and its GPUs, too.
_HOST: Final = "host"


class Targets(NamedTuple):
    """What is exported to.

    Attributes:
        addresses: hosts and ports to listen at for Prometheus.
        files: text files for node_exporter.
        urls: where to send OTLP to; empty: where OTEL_EXPORTER_OTLP_ENDPOINT says.
        samples: whether samples of the host and its GPUs are exported, too.
    """

    addresses: tuple[tuple[str, int], ...]
    files: tuple[str, ...]
    urls: tuple[str, ...]
    samples: bool = False


def targets_of(text: str) -> Targets:
    """Read the option.

    Raises:
        ValueError: it is something else; the message goes on after "must be".
    """
    addresses, files, urls = [], [], []
    words = list(filter(None, (word.strip() for word in text.split(","))))
    if words and set(words) == {_HOST}:
        raise ValueError(f"{_HOST} and where to export to, with a comma between them")
    for word in words:
        if word == _HOST:
            continue
        if word == "otlp" or word.startswith("otlp:"):
            urls.append(_url(word.removeprefix("otlp").removeprefix(":")))
        elif word.endswith(".prom"):
            files.append(_file(word))
        elif found := _ADDRESS.fullmatch(word):
            port = int(found["port"])
            if not 1 <= port <= 65535:
                raise ValueError(f"a port from 1 to 65535 in {word!r}")
            addresses.append((found["host"].strip("[]") or LOOPBACK, port))
        else:
            raise ValueError(f"some of {_FORMS}, with commas between them; {word!r} is none")
    return Targets(tuple(addresses), tuple(files), tuple(urls), _HOST in words)


def _url(text: str) -> str:
    try:
        parts = urlsplit(text)
        usable = not text or (parts.scheme in ("http", "https") and bool(parts.hostname))
        usable = usable and (parts.port is None or parts.port > 0)
    except ValueError:
        usable = False
    if not usable:
        raise ValueError(f"an http or https URL after otlp:, not {text!r}")
    return text


def _file(text: str) -> str:
    # The recorder's working folder is not the job's.
    if not Path(text).is_absolute() or "\0" in text:
        raise ValueError(f"an absolute path, not {text!r}")
    return text
