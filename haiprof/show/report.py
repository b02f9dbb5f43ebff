"""The report: one HTML file that says how a run went, and works without a network."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from haiprof.common.owned_files import replace_or_fill
from haiprof.errors import HaiprofError
from haiprof.runs import Run
from haiprof.show.page.build import build
from haiprof.show.page.compare import compare
from haiprof.show.page.write import to_html

if TYPE_CHECKING:
    from haiprof.analyzer import Analyzer


def write(analyzer: Analyzer, path: Path, before: Analyzer | None = None) -> Path:
    """Write the report to ``path``; a file of that name is replaced only by a whole new one.

    So is a link in the folder of the run, which may be somebody else's.

    Args:
        analyzer: the run.
        path: the file to write.
        before: a run that is compared with it.

    Raises:
        HaiprofError: the file cannot be written, or these two cannot be compared.
    """
    page = _page(analyzer, before)
    # A path may hold bytes that are not UTF-8.
    content = page.encode("utf-8", "replace")
    try:
        replace_or_fill(path, content, through=not _is_in(analyzer.run, path))
    except (OSError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise HaiprofError(f"{path}: cannot be written ({reason}): choose another file") from None
    return path


def _page(analyzer: Analyzer, before: Analyzer | None) -> str:
    return to_html(build(analyzer) if before is None else compare(before, analyzer))


def _is_in(run: Run, path: Path) -> bool:
    folder = Path(run.source or run.folder)
    return folder.is_dir() and folder.samefile(path.parent)
