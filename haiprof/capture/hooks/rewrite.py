"""The code of a Python function, with a call before and a call after its body.

For Pythons without ``sys.monitoring``. The function object stays the same and only its ``__code__``
changes, so whoever compares the function (torch.compile does) sees the one it knows. While
torch.compile traces, the body runs as it was written.
"""

from __future__ import annotations

import ast
import functools
import inspect
import warnings
from collections.abc import Callable, Iterator
from types import CodeType, FunctionType
from typing import Any, Final

from haiprof.capture.yielding import rest

_ENTER: Final = "haiprof: enter"
_LEAVE: Final = "haiprof: leave"


def with_calls(
    function: FunctionType,
    argument: str,
    enter: Callable[..., object],
    leave: Callable[[], object],
    inner: tuple[str, ...] = (),
) -> CodeType:
    """Return code for ``function`` that calls ``enter(argument)`` before and ``leave()`` after.

    Args:
        function: a function whose source can be read; a global ``torch`` must be in its reach.
        argument: the name of the variable that ``enter`` is called with, or several, with commas.
        enter: called first.
        leave: called last, also when the body raises.
        inner: wrap the function of one of these names that is defined inside ``function`` instead.

    Raises:
        OSError: the source cannot be read, or is not that of the running function.
        LookupError: no function named in ``inner`` is defined inside.
    """
    return _rewritten(function, function.__code__, argument, enter, leave, inner)


# Cached, so that attaching again costs the job nothing noticeable: the source of torch takes
# ten ms to read and compile.
@functools.cache
def _rewritten(
    function: FunctionType,
    running: CodeType,
    argument: str,
    enter: Callable[..., object],
    leave: Callable[[], object],
    inner: tuple[str, ...],
) -> CodeType:
    source = _Source(function)
    rest()
    if not _same(source.compile(), running):
        raise OSError(f"the source of {function.__qualname__} is not what runs")
    body = source.definition if not inner else _inner(source.definition, inner)
    _wrap(body, argument)
    rest()
    code = source.compile()
    if code.co_freevars != running.co_freevars:
        raise OSError(f"{function.__qualname__} closes over other names than its source")
    return _with_constants(code, {_ENTER: enter, _LEAVE: leave})


class _Source:
    """The syntax of one function and what of its surroundings the compiler looks at."""

    def __init__(self, function: FunctionType) -> None:
        # Only the function is parsed: the syntax tree of a whole torch file takes megabytes, which
        # the allocator keeps.
        lines, start = inspect.findsource(function)
        rest()
        block = inspect.getblock(lines[start:])
        rest()
        self._function = function
        self._path = function.__qualname__.split(".")
        # What is imported is called in another way than what is not.
        self._imports = ast.parse("\n".join(_imports(lines))).body
        rest()
        # Under a condition its indentation, and so every column, stays what it is.
        module = ast.parse(
            "if True:\n" + "".join(block) if block[0][0].isspace() else "".join(block)
        )
        outer = module.body[0]
        found = outer.body[0] if isinstance(outer, ast.If) else outer
        if not isinstance(found, ast.FunctionDef) or found.name != self._path[-1]:
            raise OSError(f"the source of {function.__qualname__} is not where it should be")
        ast.increment_lineno(found, start - (1 if isinstance(outer, ast.If) else 0))
        found.decorator_list = []
        self.definition = found

    def compile(self) -> CodeType:
        # Inside classes of the same names, so that qualified and private names come out the same.
        outer: ast.stmt = self.definition
        for name in reversed(self._path[:-1]):
            inside = ast.parse(f"class {name}: pass").body[0]
            assert isinstance(inside, ast.ClassDef)
            inside.body = [outer]
            outer = inside
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a text that is called
            code = compile(
                ast.Module([*self._imports, outer], []),
                self._function.__code__.co_filename,
                "exec",
                dont_inherit=True,
            )
        for name in self._path:
            code = next(c for c in code.co_consts if isinstance(c, CodeType) and c.co_name == name)
        return code


def _imports(lines: list[str]) -> Iterator[str]:
    """Yield the import statements of a file that run when it is imported."""
    inside = False  # a function or class
    statement = ""
    for line in lines:
        words = line.split(None, 1)
        if statement:
            statement += line
        elif not words or words[0].startswith("#"):
            continue
        else:
            if not line[0].isspace():
                inside = words[0] in ("def", "class", "async") or words[0].startswith("@")
            if inside or words[0] not in ("import", "from"):
                continue
            statement = line
        if statement.count("(") <= statement.count(")") and not line.endswith("\\\n"):
            yield statement.strip()
            statement = ""


def _inner(function: ast.FunctionDef, names: tuple[str, ...]) -> ast.FunctionDef:
    for node in ast.walk(function):
        if isinstance(node, ast.FunctionDef) and node.name in names:
            return node
    raise LookupError(f"{function.name} defines none of {', '.join(names)}")


def _wrap(function: ast.FunctionDef, argument: str) -> None:
    line = function.body[0].lineno

    def statement(text: str) -> ast.stmt:
        tree = ast.parse(text).body[0]
        for node in ast.walk(tree):
            if isinstance(node, (ast.expr, ast.stmt)):
                node.lineno = node.end_lineno = line
                node.col_offset = node.end_col_offset = 0
        return tree

    traced = statement("if torch.compiler.is_dynamo_compiling(): pass")
    assert isinstance(traced, ast.If)
    # The same nodes twice: the compiler only reads them, and a copy takes longer than compiling.
    traced.body = [*function.body, statement("return")]
    guarded = statement(f"try: pass\nfinally: {_LEAVE!r}()")
    assert isinstance(guarded, ast.Try)
    # Inside, because a Ctrl-C comes right after a call: one that was entered is left, too.
    guarded.body = [statement(f"{_ENTER!r}({argument})"), *function.body]
    function.body = [traced, guarded]


def _same(a: CodeType, b: CodeType) -> bool:
    return a.co_code == b.co_code and a.co_names == b.co_names and a.co_freevars == b.co_freevars


def _with_constants(code: CodeType, values: dict[str, Any]) -> CodeType:
    constants = tuple(
        _with_constants(c, values)
        if isinstance(c, CodeType)
        else values[c]
        if isinstance(c, str) and c in values
        else c
        for c in code.co_consts
    )
    return code.replace(co_consts=constants)
