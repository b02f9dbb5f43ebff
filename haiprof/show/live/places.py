"""Where the main thread of a process is, by its sampled stacks.

Tests: tests/show/test_live.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from haiprof import schema
from haiprof.common.frame_texts import frame_text, short_file
from haiprof.sources.follow import NO_TEXT, FolderFollower, Part, Wanted

#: Every node may be named again.
_FRAMES: Final = Wanted(schema.FRAMES, ("id", "parent", "function", "file", "line"), 1 << 20)
_STACKS: Final = Wanted(schema.STACKS, ("start", "duration", "process", "thread", "stack"), 8)
#: More than what CPython allows by default.
_DEEPEST: Final = 1024


class _Node(NamedTuple):
    parent: int
    function: str
    file: str
    line: int


class Places:
    """Follows the stacks of one process."""

    def __init__(self, folder: Path) -> None:
        """Read nothing yet."""
        self._follower = FolderFollower(folder, (_FRAMES, _STACKS))
        self._nodes: dict[int, _Node] = {}
        self._newest: tuple[int, int] | None = None

    def read(self) -> None:
        """Read what was written since the last call."""
        new: Mapping[str, Sequence[Part]] = self._follower.read()
        for part in new.get("frames", ()):
            self._nodes.update(_nodes(part))
        for part in new.get("stacks", ()):
            columns = part.columns
            main = columns["process"] == columns["thread"]
            for start, stack in zip(columns["start"][main], columns["stack"][main], strict=True):
                if self._newest is None or start >= self._newest[0]:
                    self._newest = int(start), int(stack)

    @property
    def text(self) -> str | None:
        """The job's own line that the main thread was at last, and what that had called.

        None: not known.
        """
        if self._newest is None or self._newest[1] not in self._nodes:
            return None
        innermost = node = self._nodes[self._newest[1]]
        for _ in range(_DEEPEST):
            if short_file(node.file) == node.file and not node.file.startswith("<"):
                break
            if node.parent not in self._nodes:
                node = innermost
                break
            node = self._nodes[node.parent]
        if node is innermost:
            return frame_text(innermost.function, Path(innermost.file).name, innermost.line)
        where = f"{Path(node.file).name}:{node.line}"
        return f"{where} in {frame_text(*innermost[1:])}"


def _nodes(part: Part) -> Iterable[tuple[int, _Node]]:
    columns = {name: values.tolist() for name, values in part.columns.items()}
    functions, files = part.texts["function"], part.texts["file"]
    for number, parent, function, file, line in zip(
        columns["id"], columns["parent"], columns["function"], columns["file"], columns["line"],
        strict=True,
    ):  # fmt: skip
        if function != NO_TEXT and file != NO_TEXT:
            yield number, _Node(parent, functions[function], files[file], max(line, 0))
