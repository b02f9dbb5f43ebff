"""``haiprof import``: reads traces once, so that they open at once from then on."""

from __future__ import annotations

import json
from pathlib import Path

from haiprof.cli.process.console import say
from haiprof.cli.process.interrupts import interruptible
from haiprof.cli.process.progress import bytes_read
from haiprof.common.printable import printable
from haiprof.errors import HaiprofError


def import_traces(path: str, out: Path | None) -> None:
    """Import the traces at ``path`` and print where the import is.

    What could not be read is listed on stderr, one line each.

    Args:
        path: a trace, a folder of them, a URL of fsspec, or a pipe with a trace of torch.profiler.
        out: the folder to write; beside the traces when None.

    Raises:
        HaiprofError: there are no traces, none can be read, or the import cannot be written.
    """
    from haiprof import schema
    from haiprof.sources.imports.formats import find
    from haiprof.sources.imports.kept import keep, place_of, why_not_fresh

    interruptible()
    found = find(path)
    if found is None:
        raise HaiprofError(f"{path}: no traces (*.json) in it: give a trace or a folder of traces")
    place = out or place_of(found)
    if place is None:
        raise HaiprofError(f"{path}: an import cannot be kept there: give a folder with --out")
    if why_not_fresh(found, place) is None:
        print(f"{printable(str(place))} (was up to date)")
    else:
        with bytes_read("reading traces", found.bytes) as on_bytes:
            keep(found, place, on_bytes=on_bytes)
        print(printable(str(place)))
    _keep_overview(place)
    for line in json.loads((place / schema.RUN_FILE).read_text("utf-8")).get("problems", []):
        say(line)


def _keep_overview(place: Path) -> None:
    """Keep the results that are usually asked for first, if there is room."""
    from haiprof.analyzer import Analyzer

    try:
        Analyzer(place).keep_overview()
    except OSError as error:
        say(f"{place}: its overview cannot be kept ({error.strerror or error})")
