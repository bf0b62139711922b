"""Structured logging: a message with fields, `log.info("topic created", topic=name, count=3)`.

This is a thin layer on the standard library's logging, so that filters and handlers keep working. Messages of disabled
levels are not formatted. Timestamps come from the clock passed to `configure`.
"""

import json
import logging
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TextIO

ROOT = "moldau"
FIELDS = "moldau_fields"
COLOURS = {"DEBUG": "\x1b[2m", "INFO": "\x1b[32m", "WARNING": "\x1b[33m", "ERROR": "\x1b[31m"}
DIM, PLAIN = "\x1b[2m", "\x1b[0m"

WallClock = Callable[[], int]
"""A function that returns milliseconds since 1970."""


class Logger:
    """A logger whose keyword arguments are fields of the log line."""

    __slots__ = ("_logger",)

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger

    def debug(self, message: str, **fields: Any) -> None:
        self._write(logging.DEBUG, message, fields)

    def info(self, message: str, **fields: Any) -> None:
        self._write(logging.INFO, message, fields)

    def warning(self, message: str, **fields: Any) -> None:
        self._write(logging.WARNING, message, fields)

    def error(self, message: str, **fields: Any) -> None:
        self._write(logging.ERROR, message, fields)

    def exception(self, message: str, **fields: Any) -> None:
        """Logs an error with the traceback of the current exception."""
        self._write(logging.ERROR, message, fields, traceback=True)

    def _write(self, level: int, message: str, fields: dict[str, Any], *, traceback: bool = False) -> None:
        if self._logger.isEnabledFor(level):
            # With this stack level, the caller of `info()` is the origin of the log line.
            self._logger.log(level, message, extra={FIELDS: fields}, exc_info=traceback or None, stacklevel=3)


def get_logger(name: str) -> Logger:
    """Returns the logger `moldau.<name>`."""
    return Logger(logging.getLogger(f"{ROOT}.{name.removeprefix(f'{ROOT}.')}"))


class TextFormatter(logging.Formatter):
    def __init__(self, clock: WallClock | None, *, colour: bool = False) -> None:
        super().__init__()
        self._clock = clock
        self._colour = colour

    def format(self, record: logging.LogRecord) -> str:
        time = "" if self._clock is None else f"{_to_datetime(self._clock()):%Y-%m-%d %H:%M:%S.%f}"[:23] + " "
        level = f"{record.levelname:<7}"
        fields = "".join(f" {name}={_format_field(value)}" for name, value in getattr(record, FIELDS, {}).items())
        message = _escape_message(record.getMessage())
        if self._colour:
            time = f"{DIM}{time}{PLAIN}"
            level = f"{COLOURS.get(record.levelname, '')}{level}{PLAIN}"
            fields = f"{DIM}{fields}{PLAIN}"
        traceback = _traceback(self, record)
        trace = f"\n{traceback}" if traceback else ""
        return f"{time}{level} {message}{fields}{trace}"


class JsonFormatter(logging.Formatter):
    def __init__(self, clock: WallClock | None) -> None:
        super().__init__()
        self._clock = clock

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {}
        if self._clock is not None:
            line["time"] = _to_datetime(self._clock()).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        line |= {"level": record.levelname.lower(), "logger": record.name, "message": record.getMessage()}
        # Add the fields last, and rename those that would replace a standard key.
        fields = getattr(record, FIELDS, {})
        line |= {f"{name}_" if name in line else name: value for name, value in fields.items()}
        if traceback := _traceback(self, record):
            line["traceback"] = traceback
        return json.dumps(line, default=_to_text, ensure_ascii=False)


def configure(
    *, level: str = "info", style: str = "text", clock: WallClock | None = None, stream: TextIO | None = None
) -> None:
    """Sends all log lines to one stream, by default stderr. Without a clock, lines have no timestamp."""
    target = sys.stderr if stream is None else stream
    handler = logging.StreamHandler(target)
    if style == "json":
        handler.setFormatter(JsonFormatter(clock))
    else:
        handler.setFormatter(TextFormatter(clock, colour=target.isatty()))
    root = logging.getLogger(ROOT)
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    root.propagate = False


def _traceback(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    return formatter.formatException(record.exc_info) if record.exc_info and record.exc_info[0] else ""


def _to_datetime(wall_ms: int) -> datetime:
    return datetime.fromtimestamp(wall_ms / 1000, UTC)


def _to_text(value: Any) -> str:
    """Returns the text of a value, or the type name if the text would contain a memory address."""
    if isinstance(value, BaseException):
        return f"{type(value).__name__}: {value}" if str(value) else type(value).__name__
    kind: Any = type(value)
    if kind.__str__ is object.__str__ and kind.__repr__ is object.__repr__:
        return str(kind.__name__)
    return str(value)


def _format_field(value: Any) -> str:
    """Returns the value of a field for a text line, in quotes unless it is one word."""
    if isinstance(value, bool | None):
        return json.dumps(value)
    text = _to_text(value)
    if text and text.isprintable() and not any(sign in text for sign in ' "='):
        return text
    return json.dumps(text, ensure_ascii=False)


def _escape_message(message: str) -> str:
    """Escapes newlines and control characters, so that data from clients cannot forge log lines."""
    return message if message.isprintable() else json.dumps(message, ensure_ascii=False)
