"""What ran on GPUs, and the host calls that launched it, as rows of haiprof's tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from haiprof.sources.nsys import words
from haiprof.sources.nsys.database import Database, Expression
from haiprof.sources.nsys.processes import Target

if TYPE_CHECKING:
    import polars as pl

_THREAD: Final[Expression] = ("globalTid & 16777215", ("globalTid",))
_OF_PROCESS: Final = ("globalPid", "{} = ?")
_OF_THREADS: Final = ("globalTid", "{} between ? and ?")
_INVALID: Final = 0xFFFFFFFF

#: Columns that any GPU activity may have: in the frame <- in the file.
_ACTIVITY: Final[Mapping[str, str | Expression]] = {
    "start": "start",
    "end": "end",
    "device": "deviceId",
    "stream": "streamId",
    "correlation": "correlationId",
}
_GRAPH: Final[Mapping[str, str | Expression]] = {"graph": "graphId", "graph_node": "graphNodeId"}
_KERNEL: Final[Mapping[str, str | Expression]] = {
    **_ACTIVITY,
    **_GRAPH,
    "demangled": "demangledName",
    "mangled": "mangledName",
    "short": "shortName",
    "grid_x": "gridX",
    "grid_y": "gridY",
    "grid_z": "gridZ",
    "block_x": "blockX",
    "block_y": "blockY",
    "block_z": "blockZ",
    "registers": "registersPerThread",
    "shared_memory": (
        "staticSharedMemory + dynamicSharedMemory",
        ("staticSharedMemory", "dynamicSharedMemory"),
    ),
}
_COPY: Final[Mapping[str, str | Expression]] = {
    **_ACTIVITY,
    **_GRAPH,
    "bytes": "bytes",
    "copied": "copyKind",
    "source": "srcKind",
    "target": "dstKind",
}
_SET: Final[Mapping[str, str | Expression]] = {
    **_ACTIVITY,
    **_GRAPH,
    "bytes": "bytes",
    "memory": "memKind",
}
_WAIT: Final[Mapping[str, str | Expression]] = {**_ACTIVITY, "waited": "syncType"}
_WHOLE_GRAPH: Final[Mapping[str, str | Expression]] = {**_ACTIVITY, "graph": "graphId"}
_CALL: Final[Mapping[str, str | Expression]] = {
    "start": "start",
    "end": "end",
    "thread": _THREAD,
    "correlation": "correlationId",
    "named": "nameId",
}

Frame = Callable[["pl.DataFrame"], "pl.DataFrame"]


class Activities:
    """Rows of one process of a file."""

    def __init__(self, db: Database, target: Target, multiprocessors: Mapping[int, int]) -> None:
        """Choose the process; ``multiprocessors`` are those of devices where known."""
        self._db = db
        self._target = target
        self._multiprocessors = dict(multiprocessors)
        self._strings: dict[int, str] = {}

    def kernels(self) -> Iterator[pl.DataFrame]:
        """Return frames of ``kernels``, with ``end`` for ``duration``."""
        for kind, table, wanted, finish in (
            ("kernel", "KERNEL", _KERNEL, self._kernel),
            ("kernel", "GRAPH_TRACE", _WHOLE_GRAPH, _whole_graph),
            ("memcpy", "MEMCPY", _COPY, _copy),
            ("memset", "MEMSET", _SET, _set),
            ("sync", "SYNCHRONIZATION", _WAIT, _wait),
        ):
            yield from self._of_gpu(kind, f"CUPTI_ACTIVITY_KIND_{table}", wanted, finish)

    def calls(self) -> Iterator[pl.DataFrame]:
        """Return frames of ``spans``: calls of CUDA, and the cost of tracing itself."""
        import polars as pl

        for category, table in (
            ("runtime", "CUPTI_ACTIVITY_KIND_RUNTIME"),
            ("overhead", "CUPTI_ACTIVITY_KIND_OVERHEAD"),
            ("overhead", "PROFILER_OVERHEAD"),
        ):
            # The overhead beside a call launches nothing.
            dropped = ("named",) if category == "runtime" else ("named", "correlation")
            for frame in self._db.frames(table, _CALL, _OF_THREADS, self._target.threads):
                name = self.named(frame["named"]).str.replace(words.API_VERSION, "")
                yield frame.with_columns(
                    pl.lit(category).alias("category"), name.fill_null("").alias("name")
                ).drop(dropped)

    def named(self, ids: pl.Series) -> pl.Series:
        """Return the texts with these ids."""
        import polars as pl

        known = ids.drop_nulls().unique().to_list()
        self._strings |= self._db.strings(set(known) - self._strings.keys())
        texts = [self._strings.get(number) for number in known]
        names: pl.Series = ids.replace_strict(known, texts, default=None, return_dtype=pl.String())
        return names

    def _of_gpu(
        self, kind: str, table: str, wanted: Mapping[str, str | Expression], finish: Frame
    ) -> Iterator[pl.DataFrame]:
        import polars as pl

        for frame in self._db.frames(table, wanted, _OF_PROCESS, (self._target.key,)):
            # No stream and no graph has these numbers: they mean that there is none.
            frame = frame.with_columns(
                pl.lit(kind).alias("kind"),
                pl.when(pl.col("stream") != _INVALID).then(pl.col("stream")),
            )
            if "graph_node" in frame.columns:
                node = pl.when(pl.col("graph_node") != 0).then(pl.col("graph_node"))
                frame = frame.with_columns(node)
            yield finish(frame)

    def _kernel(self, frame: pl.DataFrame) -> pl.DataFrame:
        import polars as pl

        names = [self.named(frame[name]) for name in ("demangled", "mangled", "short")]
        known = self._multiprocessors
        blocks = pl.col("grid_x") * pl.col("grid_y") * pl.col("grid_z")
        processors = pl.col("device").replace_strict(
            list(known), list(known.values()), default=None, return_dtype=pl.Float64()
        )
        return frame.with_columns(
            pl.coalesce(*names, pl.lit("")).alias("name"),
            (blocks / processors).alias("blocks_per_sm"),
        ).drop("demangled", "mangled", "short")


def _whole_graph(frame: pl.DataFrame) -> pl.DataFrame:
    import polars as pl

    number = pl.col("graph").cast(pl.String).fill_null("")
    return frame.with_columns(("CUDA graph " + number).str.strip_chars().alias("name"))


def _copy(frame: pl.DataFrame) -> pl.DataFrame:
    import polars as pl

    kinds = [words.COPY_KINDS.get(kind) for kind in frame["copied"].to_list()]
    return frame.with_columns(
        pl.Series("copy_kind", kinds, pl.String()),
        _texts(frame, words.copy_name, "copied", "source", "target"),
    ).drop("copied", "source", "target")


def _set(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.with_columns(_texts(frame, words.set_name, "memory")).drop("memory")


def _wait(frame: pl.DataFrame) -> pl.DataFrame:
    return frame.with_columns(
        _texts(frame, lambda waited: words.WAITS.get(waited, "Unknown Sync"), "waited")
    ).drop("waited")


def _texts(frame: pl.DataFrame, meaning: Callable[..., str], *columns: str) -> pl.Series:
    """Return ``name``: the meaning of these columns' values, computed once per combination."""
    import polars as pl

    rows: list[tuple[Any, ...]] = frame.select(columns).rows()
    known = {row: meaning(*row) for row in set(rows)}
    return pl.Series("name", [known[row] for row in rows], pl.String())
