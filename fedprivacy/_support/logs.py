"""Logs of the processes that fedprivacy starts: one event a line, as text or as JSON, all of them in this one form.

    2026-11-27T04:55:25.420Z INFO [fedprivacy.server] The run ended before round 3: 2 rounds are enough. (run=8d1f)
    {"time": "2026-11-27T04:55:25.420Z", "level": "INFO", "logger": "fedprivacy.server", "message": ..., "run": "8d1f"}

Times are UTC, with milliseconds. Text is the form of the SuperLink's own HTTP log; what does not fit on a line, such as
a traceback, is indented below. In JSON it is in the field `error`. There are colours on a terminal alone, and none if
`NO_COLOR` is set.

A library configures no logging of its own accord: a command does, by `LogSettings.begin`, and the processes that Flower
starts in turn do, by `follow_environment`, if the environment variables that the command set are there.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from logging.handlers import RotatingFileHandler
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, TextIO

FORMAT, LEVEL = "FEDPRIVACY_LOG_FORMAT", "FEDPRIVACY_LOG_LEVEL"
"""Names of the environment variables that hold a `LogFormat` and a `LogLevel`."""

LARGEST_FILE, KEPT_FILES = 10_000_000, 5
"""Bytes after which a log file is renamed to `.1`, and how many renamed ones are kept: 60 MB in all."""

_HEARD = ("fedprivacy", "flwr", "uvicorn")
"""Loggers that the level is for. All others log from WARNING on: HTTP clients and databases tell too much."""

_UNWRITTEN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_COLOURS = {logging.WARNING: 33, logging.ERROR: 31, logging.CRITICAL: 31}
_ABOUT: ContextVar[Mapping[str, object]] = ContextVar("about", default=MappingProxyType({}))
_concealed: set[str] = set()


class LogFormat(StrEnum):
    """Form of an event."""

    TEXT = "text"
    JSON = "json"


class LogLevel(StrEnum):
    """Least level of an event that is written."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


def plain(text: str) -> str:
    """Return a text without colour codes."""
    return _COLOUR.sub("", text)


def conceal(secret: str) -> None:
    """Keep a secret out of every event of this process, whoever logs it."""
    _concealed.add(secret)


@contextmanager
def about(**fields: object) -> Iterator[None]:
    """Add fields to every event of the block, in this thread."""
    token = _ABOUT.set({**_ABOUT.get(), **fields})
    try:
        yield
    finally:
        _ABOUT.reset(token)


def also_about(**fields: object) -> None:
    """Add fields to the rest of the innermost block of `about`: they are known only now."""
    _ABOUT.set({**_ABOUT.get(), **fields})


class EventFormatter(logging.Formatter):
    """Formatter of one event; `fields` of a record are added to those of `about`.

    Args:
        form: text or JSON.
        colours: whether warnings and errors are coloured, in text.

    Attributes:
        form: the same.
    """

    def __init__(self, form: LogFormat, *, colours: bool = False) -> None:
        super().__init__()
        self.form, self._colours = form, colours

    def format(self, record: logging.LogRecord) -> str:
        """Return the event, without the end of its line."""
        fields = {name: _json_value(value) for name, value in {**_ABOUT.get(), **getattr(record, "fields", {})}.items()}
        message, error = _open_text(record.getMessage()), _open_text(self._error(record))
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        if self.form is LogFormat.JSON:
            event = {"time": time, "level": record.levelname, "logger": record.name, "message": message, **fields}
            return json.dumps(event | ({"error": error} if error else {}))
        values = f" ({', '.join(f'{name}={value}' for name, value in fields.items())})" if fields else ""
        lines = _indent(f"{message}{values}") + (_indent(f"\n{error}") if error else "")
        level = record.levelname
        if self._colours and record.levelno in _COLOURS:
            level = f"\x1b[{_COLOURS[record.levelno]}m{level}\x1b[0m"
        return f"{time} {level} [{record.name}] {lines}"

    def _error(self, record: logging.LogRecord) -> str:
        if record.exc_info and not record.exc_text:
            record.exc_text = self.formatException(record.exc_info)
        return "\n".join(filter(None, (record.exc_text, record.stack_info)))


class EventHandler(logging.StreamHandler[TextIO]):
    """Handler that writes to what is stderr at that moment: Flower copies what is written there to its run's log."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        """Stderr, wherever it leads now."""
        return sys.stderr


class LogFile(RotatingFileHandler):
    """Log file of limited size, for its owner's eyes alone; see `LARGEST_FILE`."""

    def __init__(self, file: Path) -> None:
        super().__init__(file, maxBytes=LARGEST_FILE, backupCount=KEPT_FILES, encoding="utf-8")

    def _open(self) -> Any:
        def private(path: str, flags: int) -> int:
            return os.open(path, flags, 0o600)

        return open(self.baseFilename, "a", encoding="utf-8", opener=private)


@dataclass(frozen=True, slots=True)
class LogSettings:
    """Choice of a log's form and of its least level."""

    form: LogFormat = LogFormat.TEXT
    level: LogLevel = LogLevel.INFO

    @classmethod
    def from_environment(cls) -> LogSettings | None:
        """Return what the environment chooses; None: nothing. A value that is none counts as not given."""
        given = {name: os.environ.get(name, "").lower() for name in (FORMAT, LEVEL)}
        if not any(given.values()):
            return None
        form, level = given[FORMAT], given[LEVEL]
        return cls(
            LogFormat(form) if form in list(LogFormat) else LogFormat.TEXT,
            LogLevel(level) if level in list(LogLevel) else LogLevel.INFO,
        )

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables with which processes that are started in turn log in the same way."""
        return {FORMAT: self.form, LEVEL: self.level}

    def handler(self, file: Path | None = None) -> EventHandler | LogFile:
        """Make a handler that writes events to a file, or to stderr."""
        handler = LogFile(file) if file else EventHandler()
        handler.setFormatter(EventFormatter(self.form, colours=file is None and _in_colour(sys.stderr)))
        handler.setLevel(self.level.upper())
        return handler

    def begin(self, file: Path | None = None) -> None:
        """Let this process log in this way: to a file, or to stderr.

        Python's warnings and errors that nobody catches become events, too. Flower's and uvicorn's own handlers are
        removed; their events come here.
        """
        handler, root = self.handler(file), logging.getLogger()
        for old in [old for old in root.handlers if isinstance(old, EventHandler | LogFile)]:
            root.removeHandler(old)
            old.close()
        root.addHandler(handler)
        for name in _HEARD:
            logging.getLogger(name).setLevel(self.level.upper())
        for name in ("flwr", "uvicorn"):
            logger = logging.getLogger(name)
            logger.handlers.clear()
            logger.propagate = True
        logging.captureWarnings(capture=True)
        sys.excepthook = _log_uncaught
        threading.excepthook = _log_uncaught_in_thread


def writes_json() -> bool:
    """Return whether this process logs in JSON: whatever it has to say is an event then."""
    formatters = (handler.formatter for handler in logging.getLogger().handlers)
    return any(isinstance(one, EventFormatter) and one.form is LogFormat.JSON for one in formatters)


def follow_environment() -> None:
    """Log as the environment chooses, if it does: in a process that another one of ours started."""
    if settings := LogSettings.from_environment():
        settings.begin()


def _log_uncaught(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if not issubclass(kind, Exception):  # Ctrl-C is no event
        sys.__excepthook__(kind, error, trace)
        return
    logging.getLogger("fedprivacy").critical("The process ends by an error.", exc_info=(kind, error, trace))


def _log_uncaught_in_thread(caught: threading.ExceptHookArgs) -> None:
    if caught.exc_value is not None and isinstance(caught.exc_value, Exception):
        logging.getLogger("fedprivacy").error(
            "A thread ended by an error.", exc_info=(caught.exc_type, caught.exc_value, caught.exc_traceback)
        )


def _in_colour(stream: TextIO) -> bool:
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _open_text(text: str) -> str:
    """Return a text without colours and without secrets."""
    text = plain(text)
    for secret in _concealed:
        text = text.replace(secret, "***")
    return text


def _json_value(value: object) -> object:
    """Return a field's value as JSON has it."""
    return value if isinstance(value, int | float | None) else _open_text(str(value))


def _indent(text: str) -> str:
    """Return a text for a log of lines: those after the first are indented, so that none can pass for an event."""
    return _UNWRITTEN.sub(lambda found: found[0].encode("unicode_escape").decode(), text).replace("\n", "\n    ")
