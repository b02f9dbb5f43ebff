"""The runs below one folder: what they are called there, and their analysis.

Nothing else can be opened: a run is named as the list has it, folders are opened one in the other
by descriptor, and no link is followed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from haiprof import schema
from haiprof.agents.texts import shown
from haiprof.analyzer import Analyzer
from haiprof.common.choices import did_you_mean, near_path, quoted
from haiprof.common.owned_files import Folder
from haiprof.common.printable import printable
from haiprof.errors import HaiprofError
from haiprof.sources.imports.formats import find
from haiprof.sources.imports.kept import why_not_fresh
from haiprof.sources.log_dirs import LogDir
from haiprof.sources.own import is_import

#: Folders within folders that are looked into.
_DEEPEST: Final = 8
#: More folders are no log directory.
_MOST_FOLDERS: Final = 100_000
#: Runs that stay open.
_OPEN: Final = 4
#: The folder itself, where that is a run.
HERE: Final = "."


class Place(NamedTuple):
    """Where a run is.

    Attributes:
        name: what it is called below the folder.
        folder: with its documents and tables.
        traces: that it was imported from; None: it was recorded.
    """

    name: str
    folder: Path
    traces: Path | None = None


class Below:
    """A log directory, a folder with such folders, or a run."""

    def __init__(self, folder: Path) -> None:
        """Nothing is opened yet."""
        self.folder = folder.absolute()
        self._open: OrderedDict[Path, tuple[str, Analyzer]] = OrderedDict()

    def places(self, toward: str | None = None) -> Iterator[Place]:
        """Yield the runs, in no order; with ``toward`` only those that may be called so.

        Raises:
            HaiprofError: the folder cannot be read, or is not one of runs.
        """
        try:
            top = Folder.at(self.folder)
        except FileNotFoundError:
            hint = near_path(self.folder) or "no run has been recorded there"
            raise HaiprofError(f"{self.folder}: no such folder: {hint}") from None
        except OSError as error:
            raise HaiprofError(f"{self.folder}: cannot be read ({error.strerror})") from None
        # Of each folder that is to be opened the one that it is in: as few are open as it is deep.
        waiting: list[tuple[str, Folder, str, int]] = [("", top, "", 0)]
        looked = 0
        while waiting:
            path, above, name, depth = waiting.pop()
            try:
                here = above.folder(name) if name else above
                names = here.names()
            except OSError:  # a file, a link, closed to us, or gone
                continue
            looked += 1
            if looked > _MOST_FOLDERS:
                raise HaiprofError(f"{self.folder}: has over {_MOST_FOLDERS} folders: give another")
            if here.has(schema.RUN_FILE):
                yield Place(path or HERE, here.path)
                continue
            for one in names:
                below = f"{path}/{one}" if path else one
                if is_import(one):
                    kept = below.removesuffix(schema.IMPORT_SUFFIX)
                    traces = here.path / one.removesuffix(schema.IMPORT_SUFFIX)
                    if one == schema.IMPORT_FOLDER:
                        kept, traces = path or HERE, here.path
                    if _has_run(here, one) and _may_be(kept, toward):
                        yield Place(kept, here.path / one, traces)
                elif not one.startswith(".") and depth < _DEEPEST and _may_be(below, toward):
                    waiting.append((below, here, one, depth + 1))

    def run(self, name: str) -> Analyzer:
        """Return the analysis of a run; of one that has changed since, it is made anew.

        Raises:
            HaiprofError: there is none of this name, or it cannot be read.
        """
        place = self.place(name)
        fingerprint = LogDir(place.folder.parent).written(place.folder.name)
        known, analyzer = self._open.pop(place.folder, ("", None))
        if analyzer is None or not fingerprint or known != fingerprint:
            analyzer = _opened(place)
        self._open[place.folder] = fingerprint, analyzer
        while len(self._open) > _OPEN:
            self._open.popitem(last=False)
        return analyzer

    def place(self, name: str) -> Place:
        """Return where the run of this name is.

        Raises:
            HaiprofError: there is none, or several are shown by this name.
        """
        found = [each for each in self.places(name) if shown(each.name) == name]
        if not found:
            hint = did_you_mean(name, (shown(each.name) for each in self.places()))
            raise HaiprofError(f"no run {quoted(name)}: {hint or 'the tool runs lists them'}")
        if len(found) > 1:
            raise HaiprofError(f"several runs are shown as {quoted(name)}: rename all but one")
        return found[0]


def _opened(place: Place) -> Analyzer:
    if place.traces is not None:
        found = find(str(place.traces))
        stale = None if found is None else why_not_fresh(found, place.folder)
        if stale is not None:
            raise HaiprofError(
                f"the import of {quoted(place.name)} {stale}: run haiprof import on its traces"
            )
    return Analyzer(place.folder)


def _has_run(folder: Folder, name: str) -> bool:
    try:
        return folder.folder(name).has(schema.RUN_FILE)
    except OSError:
        return False


def _may_be(path: str, toward: str | None) -> bool:
    """Say whether a path is shown by a name, or leads to what is."""
    if toward is None or toward.endswith("…"):
        return True
    so_far = printable(path)
    return toward == so_far or toward.startswith(f"{so_far}/") or path == HERE
