"""Leaves haiprof's own threads out of the file of a deep trace.

torch follows the Python functions of all threads that there are: those of ours only wait.

Tests: tests/capture/trace/test_files.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from haiprof.common.frame_texts import OUR_THREADS

EVENT_END: Final = b"\n  },"
_EVENT_BEGIN: Final = b"\n  {\n"
#: The function that a thread of ours begins with, which nobody else calls; torch leaves out of its
#: file what is in sys.path.
_FILE: Final = OUR_THREADS.removeprefix("/").encode()
_BEGIN: Final = re.compile(re.escape(_FILE) + rb'\(\d+\): _work"')
_TID: Final = re.compile(rb'"tid": (\d+),')
_CALL: Final = re.compile(rb'"Python parent id": (\w+), "Python id": (\d+)')
#: The thread of functions whose thread torch does not know.
_UNKNOWN: Final = b"0"
_CHUNK: Final = 1 << 20


class OwnThreads:
    """The threads in a trace that are haiprof's, and their calls so far."""

    def __init__(self, raw: Path) -> None:
        """Look for them in a whole, uncompressed file."""
        self._tids: set[bytes] = set()
        self._calls: set[bytes] = set()
        with raw.open("rb") as file:
            text = b""
            while chunk := file.read(_CHUNK):
                text += chunk
                for begin, end in _events(text, _FILE):
                    tid = _TID.search(text, begin, end)
                    if tid is not None and _BEGIN.search(text, begin, end) is not None:
                        self._tids.add(tid[1])
                text = text[text.rfind(_EVENT_BEGIN) :] if _EVENT_BEGIN in text else b""

    def left_out_of(self, text: bytes) -> bytes:
        """Return a part of the file, which ends where an event does, without their events.

        Parts are given in the order of the file: in it a call comes after its caller.
        """
        ours = sorted(
            event
            for tid in self._tids
            for event in _events(text, b'"tid": %b,' % tid)
            if tid != _UNKNOWN or self._is_ours(text[slice(*event)])
        )
        kept, last = [], 0
        for begin, end in ours:
            kept.append(text[last:begin])
            last = end
        return b"".join((*kept, text[last:]))

    def _is_ours(self, event: bytes) -> bool:
        call = _CALL.search(event)
        if call is None or (call[1] not in self._calls and _BEGIN.search(event) is None):
            return False
        self._calls.add(call[2])
        return True


def _events(text: bytes, part: bytes) -> Iterator[tuple[int, int]]:
    """Find the whole events with this part: where each begins, with the line break, and ends.

    A regular expression over all of a file would keep the GIL for a second.
    """
    place = text.find(part)
    while place >= 0:
        begin, end = text.rfind(_EVENT_BEGIN, 0, place), text.find(EVENT_END, place)
        if end < 0:
            return
        end += len(EVENT_END)
        if begin >= 0:
            yield begin, end
        place = text.find(part, end)
