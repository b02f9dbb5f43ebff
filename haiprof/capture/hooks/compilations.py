"""Hook on torch.compile: when something was compiled, for how long, and why once more.

Each compilation is a span of category ``compile`` on the thread that waits for it, and an event
when it has ended. What is compiled within another compilation is a part of it. Nothing of the
compiler is imported here: it is watched from the moment that the job imports it.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from types import CodeType, ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, Final

from haiprof import _core
from haiprof.capture.after_import import AfterImport, imported
from haiprof.capture.hooks.facts import record, shortened
from haiprof.capture.hooks.replaced import Replaced

if TYPE_CHECKING:
    from collections.abc import Callable

#: The kind of the event.
KIND: Final = "compile"
#: ``ring::Category::compile``.
_CATEGORY: Final = 15
#: Compiles frames; it is imported with torch._dynamo.
_FRAMES: Final = "torch._dynamo.convert_frame"
#: Announces what is compiled later than its frame, as a backward pass often is.
_LATER: Final = "torch._dynamo.callback"
#: Names of the spans, by what the compiler says that it is about to compile.
_NAMES: Final = {
    "LAZY_BACKWARD": "compile.backward",
    "CUDAGRAPH_RECORDING": "compile.cuda_graph",
    "TRITON_AUTOTUNING": "compile.autotuning",
}
#: Events of a process at most; spans go on.
_MOST: Final = 500


class Compilations:
    """The compilations of this process."""

    name = "compilations"

    def __init__(self, trouble: Callable[[str], None]) -> None:
        """``trouble`` is called with the reason if they turn out not to be visible."""
        self._trouble = trouble
        self._waiting: AfterImport | None = None
        self._frames: Replaced | None = None
        self._later: _Contexts | None = None
        self._why_not: str | None = None
        self._here = threading.local()
        self._recorded = 0

    def attach(self) -> str:
        """Watch the compiler, or wait until the job imports it; return how."""
        module = imported(_FRAMES)
        if module is None:
            self._waiting = AfterImport(_FRAMES, self._imported)
            return "waiting: torch.compile has not been used"
        self._watch(module)
        return "on: torch._dynamo"

    def _imported(self, module: ModuleType) -> None:
        self._waiting = None
        try:
            self._watch(module)
        except Exception as error:  # an unknown version
            self._why_not = repr(error)
            self._trouble(f"compilations are not seen: {error!r}")

    def _watch(self, module: ModuleType) -> None:
        self._frames = Replaced(module, "_compile", around=self._frame)
        handler = getattr(imported(_LATER), "CompilationCallbackHandler", None)
        # Older versions of torch announce nothing.
        if isinstance(handler, type) and hasattr(handler, "install_callbacks"):
            self._later = _Contexts(handler, "install_callbacks", self._announced)

    def state(self) -> str | None:
        """Return what has changed since attach(), if anything."""
        if self._why_not is not None:
            return f"off: {self._why_not}"
        return "on: torch._dynamo" if self._frames is not None else None

    def detach(self) -> None:
        """Restore the compiler, and wait no longer."""
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None
        if self._later is not None:
            self._later.restore()
            self._later = None
        if self._frames is not None:
            self._frames.restore()
            self._frames = None

    def _frame(self, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        code = args[0] if args else keywords["code"]
        if not isinstance(code, CodeType):
            return contextlib.nullcontext()
        compile_id = keywords.get("compile_id")
        return _Compilation(self, "compile", code, None if compile_id is None else str(compile_id))

    def _announced(self, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        # Of a frame it is announced within _compile, which records it.
        given = [*args[1:], *keywords.values()]
        name = next((_NAMES[n] for g in given if (n := getattr(g, "name", None)) in _NAMES), None)
        compile_id = next((each for each in given if isinstance(each, str)), None)
        return _Compilation(self, name or "compile.other", None, compile_id)

    def enter(self) -> bool:
        """Whether what this thread begins to compile is no part of another compilation."""
        outermost = not getattr(self._here, "busy", False)
        self._here.busy = True
        return outermost

    def leave(self) -> None:
        """The outermost compilation of this thread has ended."""
        self._here.busy = False

    def report(self, facts: dict[str, Any]) -> None:
        """Record a compilation that has ended."""
        if self._recorded >= _MOST:
            return
        what = facts["function"] or "what follows a compiled function"
        again = f", again: {facts['reason']}" if facts["reason"] else ""
        seconds = facts["duration_ns"] / 1e9
        if record(KIND, f"{what} was compiled in {seconds:.3g} s{again}", facts):
            self._recorded += 1


class _Compilation:
    """The time of one compilation. It never raises."""

    def __init__(
        self, owner: Compilations, name: str, code: CodeType | None, compile_id: str | None
    ) -> None:
        self._owner, self._name, self._code, self._id = owner, name, code, compile_id
        self._outermost = False
        self._span: _core.Span | None = None
        self._begun = 0

    def __enter__(self) -> None:
        with contextlib.suppress(Exception):
            self._outermost = self._owner.enter()
            if self._outermost:
                self._begun = time.time_ns()
                span = _core.Span(self._name, _CATEGORY)
                span.__enter__()
                self._span = span

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not self._outermost:
            return
        with contextlib.suppress(Exception):
            self._owner.leave()
            if self._span is not None:
                self._span.__exit__(None, None, None)
            ended = time.time_ns()
            self._owner.report(self._facts(ended, None if kind is None else kind.__qualname__))

    def _facts(self, ended: int, raised: str | None) -> dict[str, Any]:
        code = self._code
        said = _said_about(code, self._id, self._begun) if code is not None else None

        def of(name: str) -> Any:
            return getattr(said, name, None)

        # "2/1": the second compilation of the third frame; "2/1_1" is its second attempt.
        frame, _, again = (self._id or "").partition("/")
        return {
            "what": self._name,
            "function": None if code is None else code.co_name,
            "file": None if code is None else code.co_filename,
            "line": None if code is None else code.co_firstlineno,
            "compile_id": self._id,
            "frame": int(frame) if frame.isdecimal() else None,
            "recompiles": int(count) if (count := again.partition("_")[0]).isdecimal() else None,
            "reason": shortened(of("recompile_reason")),
            "begun_ns": self._begun,
            "duration_ns": ended - self._begun,
            "operators": of("graph_op_count"),
            "failed": of("fail_type") or raised,
            "failure": shortened(of("fail_reason")),
        }


def _said_about(code: CodeType, compile_id: str | None, begun: int) -> Any:
    """Return what the compiler's own records say about the frame that was compiled last."""
    utils = imported("torch._dynamo.utils")
    kept = getattr(utils, "_compilation_metrics", None)
    last = kept[-1] if kept else None
    if getattr(last, "co_name", None) != code.co_name:
        return None
    if compile_id is not None and str(getattr(last, "compile_id", compile_id)) != compile_id:
        return None
    started = getattr(last, "start_time", None)  # s
    if started is not None and started < begun / 1e9 - 1e-3:
        return None
    return last


class _Contexts:
    """A method that returns a context, replaced by one that returns it within ours."""

    def __init__(self, owner: type, name: str, ours: Callable[..., _Compilation]) -> None:
        self._owner, self._name = owner, name
        original = self._original = vars(owner)[name]
        on = self._on = [True]

        @functools.wraps(original)
        def wrapped(*args: Any, **keywords: Any) -> Any:
            theirs = original(*args, **keywords)
            if on:
                with contextlib.suppress(Exception):
                    return _within(ours(args, keywords), theirs)
            return theirs

        self._wrapped = wrapped
        setattr(owner, name, wrapped)

    def restore(self) -> None:
        """Restore the original. Inside somebody else's wrapper ours stays and does nothing."""
        self._on.clear()
        if vars(self._owner).get(self._name) is self._wrapped:
            setattr(self._owner, self._name, self._original)


@contextlib.contextmanager
def _within(ours: _Compilation, theirs: Any) -> Any:
    with ours, theirs as given:
        yield given
