"""Which tools' traces can be read, and which of them a path holds."""

from __future__ import annotations

from collections.abc import Callable

from haiprof.sources import found as tools
from haiprof.sources.found import Found, Source
from haiprof.sources.imports.imported import Imported

#: Of a path, what it holds of a tool; None where it holds nothing of it.
Find = Callable[[str], Found | None]
Told = Callable[[int], None]


def find(path: str) -> Found | None:
    """Find the traces at ``path``; None where it is a folder that has none, nor has one in it.

    Args:
        path: a trace, a folder of them, a run of haiprof with deep traces, or (of torch.profiler)
            a URL of fsspec of a file or a folder.

    Raises:
        HaiprofError: there is nothing, it cannot be read, or several runs lie in the folder.
    """
    from haiprof.sources.ascend.find import find as ascend
    from haiprof.sources.kineto.find import find as kineto
    from haiprof.sources.megatron.find import find as megatron
    from haiprof.sources.nsys.find import find as nsys
    from haiprof.sources.paddle.find import find as paddle

    # That of torch.profiler comes last: it takes any JSON for its own.
    finders: tuple[Find, ...] = (ascend, nsys, paddle, megatron, kineto)
    return next((made for each in finders if (made := each(path)) is not None), None)


def import_source(
    source: Source, folder: str, compression: str | None, told: Told | None = None
) -> Imported:
    """Write the tables of the trace of one process as Arrow files.

    Args:
        source: the trace.
        folder: is made; the files go there.
        compression: of the files: ``zstd``, ``lz4``, or None.
        told: is called with the bytes that were read since its last call; what it raises ends the
            import.

    Returns:
        What it came to; an error that the trace or the disk has is in ``failed``.
    """
    if source.tool == tools.KINETO:
        from haiprof.sources.kineto.one_file import import_file

        return import_file(source, folder, compression, told)
    if source.tool == tools.NSYS:
        from haiprof.sources.nsys.one_file import import_process

        return import_process(source, folder, compression, told)
    if source.tool == tools.ASCEND:
        from haiprof.sources.ascend.one_process import import_file as import_ascend

        return import_ascend(source, folder, compression, told)
    if source.tool == tools.MEGATRON:
        from haiprof.sources.megatron.one_rank import import_rank

        return import_rank(source, folder, compression, told)
    if source.tool == tools.PADDLE:
        from haiprof.sources.paddle.one_file import import_file as import_log

        return import_log(source, folder, compression, told)
    raise AssertionError(source.tool)
