"""Relay of what Flower's programs print, each in a form of its own, as events of one form: `fedprivacy._support.logs`.

A program's children, such as the apps, inherit its pipe. Of a line that is an event already, nothing changes. Flower's
lines lose their colours and get a time; what is none of these, such as a `print`, becomes an event of the logger
`output`. A traceback belongs to the event before it, or is one of its own.

    >>> import os
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
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from types import FrameType

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
