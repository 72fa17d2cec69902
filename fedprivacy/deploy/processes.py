"""Long-lived processes that must not outlive their owner.

A `Supervisor` starts processes, each in a process group of its own with a log file, waits until they are ready, and
stops all of them when its `with` block ends: normally, by an exception, or by SIGINT, SIGTERM or SIGHUP. "All of them"
includes what they started in turn, even if it moved to a session of its own, as Flower's SuperLink does with its
SuperExec: every process inherits a mark in its environment, and on Linux whatever carries the mark is stopped.
On other systems the process groups are stopped.

    >>> import sys, tempfile
    >>> with tempfile.TemporaryDirectory() as logs, Supervisor(Path(logs)) as supervisor:
    ...     process = supervisor.start("sleeper", [sys.executable, "-c", "import time; time.sleep(60)"])
    ...     process.running
    True
    >>> process.running
    False

What a process prints goes to its log file as it is, or as events of one form, and then the file's size is limited.

A `Relay` makes such events of what Flower's programs print, each in a form of its own (`fedprivacy._support.logs`). A
program's children, such as the apps, inherit its pipe. Of a line that is an event already, nothing changes. Flower's
lines lose their colours and get a time; what is none of these, such as a `print`, becomes an event of the logger
`output`. A traceback belongs to the event before it, or is one of its own.

    >>> reading, writing = os.pipe()
    >>> _ = os.write(writing, b"\\x1b[92mINFO \\x1b[0m:      Starting Flower SuperLink\\nInstalled.\\n")
    >>> os.close(writing)
    >>> Relay(reading, lambda event: print(event.levelname, event.name, event.msg)).run()
    INFO flwr Starting Flower SuperLink
    INFO output Installed.
    >>> os.close(reading)
"""

from __future__ import annotations

import json
import logging
import os
import re
import secrets
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from types import FrameType, TracebackType
from typing import BinaryIO, Self

from fedprivacy._support.logs import LogSettings, plain
from fedprivacy.flower.unpublished import LOG_LINE

UNBUFFERED = {"PYTHONUNBUFFERED": "1"}
"""Environment in which a Python program prints a line when it has one, and not when its buffer is full."""

QUIET = 0.2
"""Seconds of silence after which an event is complete."""

LONGEST = 1 << 20
"""Bytes of a line, and characters of an event's traceback, after which the rest is another one: memory is limited."""

DRAIN = 2.0
"""Seconds for which the pipe of a program that has ended is still read, if its children keep it open."""

_FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_EVENT = re.compile(
    r"(?P<time>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z) (?P<level>[A-Z]+) \[(?P<logger>[^]]+)] (?P<rest>.*)"
)
_UVICORN = re.compile(r"(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL): +(?P<rest>.*)")
_WARNING = re.compile(r"\S+:\d+: \w*Warning: ")
_TRACEBACK = "Traceback (most recent call last):"
_CHAINED = ("During handling of the above exception", "The above exception was the direct cause")
_QUERY = re.compile(r"\?\S*")


class Relay:
    """Reader of a pipe that processes print to.

    Args:
        source: file descriptor of the pipe's end.
        emit: function that receives every event.
    """

    def __init__(self, source: int, emit: Callable[[logging.LogRecord], object]) -> None:
        self._source, self._emit = source, emit
        self._open: logging.LogRecord | None = None

    def run(self) -> None:
        """Read until nobody can print any more."""
        rest = b""
        with selectors.DefaultSelector() as selector:
            selector.register(self._source, selectors.EVENT_READ)
            while True:
                if not selector.select(QUIET if self._open else None):
                    self._finish()
                    continue
                if not (chunk := os.read(self._source, 1 << 16)):
                    break
                *lines, rest = (rest + chunk).split(b"\n")
                if len(rest) > LONGEST:
                    lines, rest = [*lines, rest], b""
                for line in lines:
                    self._take(line)
        if rest:
            self._take(rest)
        self._finish()

    def _take(self, raw: bytes) -> None:
        line = plain(raw.decode(errors="replace")).rstrip("\r").rpartition("\r")[2]
        if (event := _event_of(line)) is not None:
            self._finish()
            self._open = event
        elif self._open is not None and _goes_on(self._open, line):
            self._open.exc_text = f"{self._open.exc_text}\n{line}" if self._open.exc_text else line
        elif line.strip():
            self._finish()
            begins = line.startswith(_TRACEBACK)
            self._open = _record("output", "ERROR" if begins else "INFO", "An error was printed." if begins else line)
            self._open.exc_text = line if begins else None

    def _finish(self) -> None:
        event, self._open = self._open, None
        if event is not None and (event.msg.strip() or event.exc_text):
            self._emit(event)


def _goes_on(event: logging.LogRecord, line: str) -> bool:
    """Return whether a line that begins no event belongs to the one before."""
    if event.exc_text and len(event.exc_text) > LONGEST:
        return False
    if not event.exc_text or _TRACEBACK not in event.exc_text:
        return line.startswith((" ", "\t", _TRACEBACK))
    return not line.startswith(_TRACEBACK) or event.exc_text.rstrip().rpartition("\n")[2].startswith(_CHAINED)


def _event_of(line: str) -> logging.LogRecord | None:
    """Return the event that begins with a line; None: none does."""
    if line.startswith("{"):
        return _from_json(line)
    if found := _EVENT.fullmatch(line):
        rest = found["rest"]
        if found["logger"] == "uvicorn.access":
            rest = _QUERY.sub("", rest)
        return _record(found["logger"], found["level"], rest, at=found["time"])
    if found := LOG_LINE.fullmatch(line):
        return _record("flwr", found["level"], found["rest"])
    if found := _UVICORN.fullmatch(line):
        return _record("uvicorn.error", found["level"], found["rest"])
    return _record("py.warnings", "WARNING", line) if _WARNING.match(line) else None


def _from_json(line: str) -> logging.LogRecord | None:
    try:
        event = json.loads(line)
        at, level, logger, message = (str(event.pop(name)) for name in ("time", "level", "logger", "message"))
        record = _record(logger, level, message, at=at)
    except (ValueError, KeyError):
        return None
    record.exc_text = str(event.pop("error", "")) or None
    record.fields = event
    return record


def _record(logger: str, level: str, message: str, *, at: str | None = None) -> logging.LogRecord:
    created = datetime.fromisoformat(at).timestamp() if at else time.time()
    number = logging.getLevelNamesMapping().get(level, logging.INFO)
    own = {"name": logger, "levelname": level, "levelno": number, "msg": message, "created": created}
    return logging.makeLogRecord(own)


def run_logged(command: Sequence[str], settings: LogSettings) -> int:
    """Run a program until it ends, and log what it and its children print; `settings` have begun in this process.

    SIGTERM, SIGINT and SIGHUP are forwarded to it. A signal that ends it ends this process, too: so a service manager
    takes a stop for a stop, and not for a failure.

    Returns:
        Its exit code.

    Raises:
        OSError: it cannot be started.
    """
    reading, writing = os.pipe()
    environment: Mapping[str, str] = os.environ | settings.environment | UNBUFFERED
    try:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=writing,
            stderr=writing,
            env=environment,
            start_new_session=True,  # a terminal's Ctrl-C is forwarded, and reaches it once
        )
    finally:
        os.close(writing)

    def forward(number: int, frame: FrameType | None) -> None:
        with suppress(ProcessLookupError):
            child.send_signal(number)

    for number in _FORWARDED:
        signal.signal(number, forward)
    relay = Relay(reading, lambda event: logging.getLogger(event.name).handle(event))
    thread = threading.Thread(target=relay.run, name="relay", daemon=True)
    thread.start()
    code = child.wait()
    thread.join(DRAIN)
    if code < 0:
        if -code not in {signal.SIGKILL, signal.SIGSTOP}:  # nobody can handle these
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


MARK = "FEDPRIVACY_SUPERVISOR"
"""Environment variable that every supervised process and its offspring carry."""

GRACE = 10.0
"""Seconds between SIGTERM and SIGKILL."""

_PROC = Path("/proc/self/environ")
_POLL = 0.05
_Handler = Callable[[int, FrameType | None], object] | int | signal.Handlers | None
_ENDING_SIGNALS = (signal.SIGTERM, signal.SIGHUP)


class ProcessError(RuntimeError):
    """A process failed, was not ready in time, or could not be stopped; the message ends with the tail of its log."""


@dataclass(frozen=True, slots=True)
class SupervisedProcess:
    """A process that a `Supervisor` started.

    Attributes:
        name: what messages call it.
        log: file that holds its stdout and stderr, after those of earlier processes of the same name.
    """

    name: str
    log: Path
    _popen: subprocess.Popen[bytes] = field(repr=False)
    _log_start: int = field(repr=False)
    _relay: threading.Thread | None = field(repr=False)

    @property
    def running(self) -> bool:
        """True if it has not ended yet."""
        return self._popen.poll() is None

    @property
    def pid(self) -> int:
        """Process id, which is also the id of its process group."""
        return self._popen.pid

    def output(self) -> str:
        """The text that it has printed so far, without colours."""
        if self._relay and not self.running:
            self._relay.join(DRAIN)
        try:
            with self.log.open("rb") as log:
                end = log.seek(0, os.SEEK_END)
                log.seek(self._log_start if self._log_start <= end else 0)  # a file that was full has begun anew
                return plain(log.read().decode(errors="replace"))
        except FileNotFoundError:  # it was full, and the new one is not there yet
            return ""

    def tail(self, lines: int = 20) -> str:
        """The last lines of its output."""
        return "\n".join(self.output().splitlines()[-lines:])

    def failure(self, event: str) -> ProcessError:
        """An error that says what happened to this process and shows the end of its log."""
        return ProcessError(f"{self.name} {event}. The end of {self.log}:\n{self.tail()}")


class Supervisor:
    """Owns processes for the duration of a `with` block; usable once.

    Args:
        logs: folder for the log files, one for each process; made if missing.
    """

    def __init__(self, logs: Path) -> None:
        self.logs = logs
        self._mark = secrets.token_hex(16)
        self._processes: list[SupervisedProcess] = []
        self._previous_handlers: dict[int, _Handler] = {}

    def __enter__(self) -> Self:
        self.logs.mkdir(parents=True, exist_ok=True)
        if threading.current_thread() is threading.main_thread():  # Python allows handlers there only
            heeded = [number for number in _ENDING_SIGNALS if signal.getsignal(number) != signal.SIG_IGN]
            self._previous_handlers = {number: signal.signal(number, _exit_on_signal) for number in heeded}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            with _signals_ignored():
                self.stop()
        finally:
            _restore(self._previous_handlers)

    def start(
        self,
        name: str,
        command: Sequence[str | Path],
        *,
        environment: Mapping[str, str] | None = None,
        directory: Path | None = None,
        events: LogSettings | None = None,
    ) -> SupervisedProcess:
        """Start a process.

        Args:
            name: what messages and the log file call it; one name may be started again, its log is then continued.
            command: program and arguments.
            environment: added to this process's own.
            directory: working directory; None: this process's own.
            events: form of the events that its output becomes; None: its output is kept as it is, however long.

        Raises:
            ProcessError: the program does not exist.
        """
        log = self.logs / f"{name}.log"
        own = {**events.environment, **UNBUFFERED} if events else {}
        with log.open("ab") as file:
            log_start = file.tell()
            relay, output = _relay(log, events) if events else (None, file)
            with output:
                try:
                    popen = subprocess.Popen(
                        [str(part) for part in command],
                        stdin=subprocess.DEVNULL,
                        stdout=output,
                        stderr=subprocess.STDOUT,
                        env={**os.environ, **own, **(environment or {}), MARK: self._mark},
                        cwd=directory,
                        start_new_session=True,
                    )
                except FileNotFoundError as error:
                    raise ProcessError(f"{name} cannot be started: {error.strerror}: {error.filename}.") from error
        process = SupervisedProcess(name, log, popen, log_start, relay)
        self._processes.append(process)
        return process

    def wait_until_ready(self, process: SupervisedProcess, ready: Callable[[], bool], timeout: float) -> None:
        """Wait until `ready()` is true.

        Args:
            process: must stay alive meanwhile.
            ready: a quick test, called about twenty times a second.
            timeout: seconds.

        Raises:
            ProcessError: the process ended, or `timeout` passed.
        """
        deadline = time.monotonic() + timeout
        while not ready():
            if not process.running:
                raise process.failure(f"ended with exit code {process._popen.poll()} before it was ready")
            if time.monotonic() > deadline:
                raise process.failure(f"was not ready within {timeout:g} seconds")
            time.sleep(_POLL)

    def wait(self, process: SupervisedProcess, timeout: float) -> int:
        """Wait for a process to end by itself, and return its exit code.

        Raises:
            ProcessError: it is still running after `timeout` seconds.
        """
        try:
            return process._popen.wait(timeout)
        except subprocess.TimeoutExpired:
            raise process.failure(f"was still running after {timeout:g} seconds") from None

    def stop(self) -> None:
        """Stop every process and its offspring: SIGTERM, then SIGKILL to what is left after `GRACE` seconds.

        Raises:
            ProcessError: something survived SIGKILL for `GRACE` seconds.
        """
        started = time.monotonic()
        asked: set[int] = set()
        empty_scans = 0
        while empty_scans < 2:  # a process that is just starting another program shows no environment for a moment
            living = self._living()
            empty_scans = 0 if living else empty_scans + 1
            waited = time.monotonic() - started
            if living and waited > 2 * GRACE:
                raise ProcessError(f"Processes {sorted(living)} survived SIGKILL; end them by hand.")
            if waited > GRACE:
                _send(living, signal.SIGKILL)
            else:
                _send(living - asked, signal.SIGTERM)  # once each: a second one could cut their own clean-up short
                asked |= living
            time.sleep(_POLL)

    def _living(self) -> set[int]:
        """Ids of the processes that are left of ours; where there is no /proc, of their process groups."""
        # Asking reaps: a process that ended stays a zombie until its parent asks.
        started = {process.pid for process in self._processes if process.running}
        if _PROC.exists():
            return started.union(_marked_processes(self._mark))  # nginx, for one, overwrites its environment
        return {process.pid for process in self._processes if _group_exists(process.pid)}


def _relay(log: Path, events: LogSettings) -> tuple[threading.Thread, BinaryIO]:
    """Write what comes through a pipe to a log file, in a thread that ends when nobody can print to it any more."""
    handler, (source, target) = events.handler(log), os.pipe()

    def emit(event: logging.LogRecord) -> None:
        if event.levelno >= handler.level:
            handler.handle(event)

    def run() -> None:
        Relay(source, emit).run()
        os.close(source)
        handler.close()

    thread = threading.Thread(target=run, name=f"relay to {log.name}", daemon=True)
    thread.start()
    return thread, os.fdopen(target, "wb")


def _send(targets: Iterable[int], number: signal.Signals) -> None:
    send = os.kill if _PROC.exists() else os.killpg
    for target in targets:
        with suppress(ProcessLookupError):
            send(target, number)


def _exit_on_signal(number: int, frame: FrameType | None) -> None:
    """Let `with` blocks end in order; 128 + number is the shell's exit code for a signal."""
    raise SystemExit(128 + number)


@contextmanager
def _signals_ignored() -> Iterator[None]:
    """Keep an impatient second Ctrl-C from cutting the clean-up short."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGINT, *_ENDING_SIGNALS)
    previous: dict[int, _Handler] = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    try:
        yield
    finally:
        _restore(previous)


def _restore(handlers: Mapping[int, _Handler]) -> None:
    for number, handler in handlers.items():
        signal.signal(number, handler or signal.SIG_DFL)  # None: the handler was not set by Python


def _marked_processes(mark: str) -> Iterator[int]:
    """Living processes that carry the mark. A zombie has no environment left and does not count."""
    needle = f"{MARK}={mark}".encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):  # it ended meanwhile, or belongs to another user
                if needle in (entry / "environ").read_bytes().split(b"\0"):
                    yield int(entry.name)


def _group_exists(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # macOS says so of a group that holds only zombies
        return False
    return True
