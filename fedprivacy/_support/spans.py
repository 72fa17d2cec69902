"""Named stretches of time, nested by thread; marking one does not require that anybody records.

A block is marked by `with span("averaging"):`, a function by `@spanned("averaging")`. While nobody records, either
costs a look at one name, a fraction of a microsecond. `recorded` records what is marked while its block runs, in every
thread of this process: of every name below another how often and how long, all of it; and the stretches themselves, of
which it keeps at most `MOST_SPANS`, so that memory is bounded.

Names are constants of the program: each is counted by itself, below the names that surround it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import wraps
from types import TracebackType
from typing import NamedTuple, ParamSpec, TypeVar

MOST_SPANS = 100_000
"""Maximum number of stretches kept whole: some 20 MB of memory, and 8 MB in a file."""

_OUTER = 3
"""Depth below which stretches are few and say the most: a tenth of the places is reserved for them."""

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

_NOTHING = nullcontext()
_recording: Recording | None = None


def span(name: str, number: int | None = None) -> AbstractContextManager[object]:
    """Mark a block: its time counts under `name`, below the mark that surrounds it in this thread.

    Args:
        name: a constant.
        number: distinguishes this stretch from others of its name, where it is kept whole; it is public.
    """
    recording = _recording
    return _NOTHING if recording is None else _Span(recording.thread(), name, number)


def spanned(name: str) -> Callable[[Callable[Arguments, Result]], Callable[Arguments, Result]]:
    """A decorator: every call of the function is marked, as by `span(name)`."""

    def decorated(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
        @wraps(function)
        def marked(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
            if _recording is None:
                return function(*args, **kwargs)
            with span(name):
                return function(*args, **kwargs)

        return marked

    return decorated


@contextmanager
def recorded(name: str, most: int = MOST_SPANS) -> Iterator[Recording]:
    """Record what is marked while the block runs; the block itself is the outermost stretch, `name`.

    Args:
        name: name of the outermost stretch.
        most: maximum number of stretches that are kept whole.

    Raises:
        RuntimeError: something is being recorded in this process already: its times would be those of both.
    """
    global _recording  # noqa: PLW0603 - what every mark looks at must be as near as can be
    recording = Recording(most)
    with _ALONE:
        if _recording is not None:
            raise RuntimeError("this process is being profiled already; profile one run at a time.")
        _recording = recording
    try:
        with span(name):
            yield recording
    finally:
        _recording = None


_ALONE = threading.Lock()


class Totals:
    """Totals of all stretches of one name below the same names.

    Attributes:
        name: name of the stretches.
        calls: number that have ended.
        own: nanoseconds outside any stretch marked inside them.
        inside: totals of the stretches inside them, by name, in the order of first appearance.
    """

    __slots__ = ("calls", "inside", "name", "own")

    def __init__(self, name: str) -> None:
        self.name, self.calls, self.own = name, 0, 0
        self.inside: dict[str, Totals] = {}

    @property
    def total(self) -> int:
        """Nanoseconds including the stretches inside."""
        return self.own + sum(each.total for each in self.inside.values())

    def below(self, name: str) -> Totals:
        """Return the totals of the stretches of a name inside; made if there are none yet."""
        found = self.inside.get(name)
        if found is None:
            found = self.inside[name] = Totals(name)
        return found


class Stretch(NamedTuple):
    """A stretch that is kept whole."""

    name: str
    number: int | None
    thread: int  # an index of `Recording.threads`
    began: int  # nanoseconds after the recording began
    lasted: int  # nanoseconds


class Recording:
    """Everything marked while this recording was active.

    Attributes:
        stretches: stretches kept whole, in the order of their ends.
        threads: totals by thread number; the first thread is the one that records.
    """

    def __init__(self, most: int) -> None:
        self.stretches: list[Stretch] = []
        self.threads: list[ThreadTotals] = []
        self.began = time.perf_counter_ns()
        self._most = most
        self._here = threading.local()
        self._adding = threading.Lock()
        self.thread()  # before another one can come

    @property
    def whole(self) -> Totals:
        """Totals of the recorded block."""
        (totals,) = self.threads[0].totals.inside.values()
        return totals

    @property
    def left_out(self) -> int:
        """Number of stretches that were not kept whole; totals include them."""
        return sum(thread.left_out for thread in self.threads)

    def thread(self) -> ThreadTotals:
        """Return the totals of the current thread."""
        found: ThreadTotals | None = getattr(self._here, "thread", None)
        if found is None:
            with self._adding:
                found = self._here.thread = ThreadTotals(self, len(self.threads), threading.current_thread().name)
                self.threads.append(found)
        return found

    def has_room(self, thread: int, around: int) -> bool:
        """Return whether a stretch of a thread, with so many around it, is kept whole; the outermost, which ends last,
        is.
        """
        if thread == 0 and around == 0:
            return True
        return len(self.stretches) < (self._most - 1 if around < _OUTER else self._most * 9 // 10)


class ThreadTotals:
    """Totals of the stretches of one thread.

    Attributes:
        recording: the recording of all threads.
        number: number of this thread.
        name: name of this thread.
        totals: root of the totals; it has no time of its own.
        left_out: number of stretches that were not kept whole.
    """

    def __init__(self, recording: Recording, number: int, name: str) -> None:
        self.recording, self.number, self.name = recording, number, name
        self.totals, self.left_out = Totals(""), 0
        self.innermost: _Span | None = None  # of those that are open
        self.open = 0


class _Span:
    """One stretch: it begins when the block is entered and counts when the block is left."""

    __slots__ = ("_around", "_began", "_inside", "_name", "_number", "_thread", "_totals")

    def __init__(self, thread: ThreadTotals, name: str, number: int | None) -> None:
        self._thread, self._name, self._number = thread, name, number
        self._inside = 0  # nanoseconds of those that were marked in this one

    def __enter__(self) -> None:
        thread = self._thread
        around = self._around = thread.innermost
        self._totals: Totals = (around._totals if around else thread.totals).below(self._name)
        thread.innermost = self
        thread.open += 1
        self._began = time.perf_counter_ns()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        lasted = time.perf_counter_ns() - self._began
        thread, recording = self._thread, self._thread.recording
        thread.innermost = self._around
        thread.open -= 1
        self._totals.calls += 1
        self._totals.own += lasted - self._inside
        if self._around is not None:
            self._around._inside += lasted
        if recording.has_room(thread.number, thread.open):
            began = self._began - recording.began
            recording.stretches.append(Stretch(self._name, self._number, thread.number, began, lasted))
        else:
            thread.left_out += 1
