"""Whether a process sleeps, or waits for its user, where no loop leads back to its training.

What goes wrong in training does so in its loop. A script that keeps its container alive, or asks
something, after its last step does so in a statement that runs once, or in a loop of nothing else.
"""

from __future__ import annotations

import io
import itertools
import keyword
import tokenize
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from haiprof.common.frame_texts import in_package
from haiprof.common.owned_files import open_regular
from haiprof.control.stacks import Frame, Thread

#: No script is larger, bytes.
_MOST: Final = 1 << 20
_CALLS: Final = ("sleep", "pause", "input")
_MODULES: Final = ("time", "signal")
_LOOPS: Final = ("for", "while", "async")
_FUNCTIONS: Final = ("def", "class")
#: What an endless loop of nothing else begins with.
_ENDLESS: Final = (["while", "True", ":"], ["while", "1", ":"])
_SKIPPED: Final = (tokenize.COMMENT, tokenize.NL, tokenize.ENCODING)


class Statement(NamedTuple):
    """A simple statement, or the header of a block: its lines, words, and the headers around it."""

    first: int
    last: int
    words: list[str]
    around: tuple[Statement, ...]


def rests(pid: int, thread: Thread) -> bool:
    """Say whether a thread sleeps, or waits for its user, outside of whatever is repeated.

    False where that is not known, as of a file that cannot be read.
    """
    own = [in_package(frame.function, frame.file) is None for frame in thread.frames]
    # Below a library's frames its loops may be the ones that matter.
    job = list(itertools.takewhile(lambda each: own[each], range(len(own))))
    if thread.cut or thread.state != "waiting" or not job or any(own[len(job) :]):
        return False
    return _rest([thread.frames[number] for number in job], lambda file: _source(pid, file))


def _rest(frames: Sequence[Frame], source: Callable[[str], str | None]) -> bool:
    for depth, frame in enumerate(frames):
        text = source(frame.file)
        if text is None:
            return False
        every = list(statements(text))
        at = next((each for each in every if each.first <= frame.line <= each.last), None)
        if at is None or (depth == 0 and not _waits(at)):
            return False
        if any(_repeats(one) and not _is_idle(one, every) for one in (at, *_inside(at))):
            return False
    return True


def _source(pid: int, file: str) -> str | None:
    """Return what a file of a process holds, which anybody may have written."""
    within = f"/proc/{pid}/root{file}" if file.startswith("/") else f"/proc/{pid}/cwd/{file}"
    try:
        with open_regular(Path(within)) as opened:
            read = opened.read(_MOST + 1)
        return read.decode() if len(read) <= _MOST else None
    except (OSError, ValueError):
        return None


def statements(text: str) -> Iterator[Statement]:
    """Yield the statements of a program, as far as it is one."""
    around: list[Statement] = []
    words: list[str] = []
    first, newest = 0, None
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.INDENT and newest is not None:
                around.append(newest)
            elif token.type == tokenize.DEDENT and around:
                around.pop()
            elif token.type == tokenize.NEWLINE and words:
                newest = Statement(first, token.start[0], words, tuple(around))
                words = []
                yield newest
            elif token.type not in _SKIPPED and token.string.strip():
                first = first if words else token.start[0]
                words.append(token.string)
    except (tokenize.TokenError, SyntaxError):
        return


def _inside(statement: Statement) -> list[Statement]:
    """Return the blocks that it is in, up to its function, the innermost first."""
    blocks = reversed(statement.around)
    return list(itertools.takewhile(lambda one: not set(_FUNCTIONS) & set(one.words[:2]), blocks))


def _waits(statement: Statement) -> bool:
    """Say whether it calls what sleeps, or waits for the user."""
    pairs = itertools.pairwise(statement.words)
    return any(word in _CALLS and after == "(" for word, after in pairs)


def _repeats(statement: Statement) -> bool:
    """Say whether it is a loop, or has one in it."""
    return any(word in _LOOPS for word in statement.words)


def _is_idle(loop: Statement, every: Sequence[Statement]) -> bool:
    """Say whether a loop never ends, and does nothing but wait."""
    if loop.words[:3] not in _ENDLESS:
        return False
    body = [each for each in every if any(one is loop for one in each.around)]
    if rest := loop.words[3:]:
        body.append(loop._replace(words=rest))
    return all(
        each.words == ["pass"] or (_waits(each) and _names(each) <= {*_MODULES, *_CALLS})
        for each in body
    )


def _names(statement: Statement) -> set[str]:
    words = statement.words
    return {word for word in words if word.isidentifier() and not keyword.iskeyword(word)}
