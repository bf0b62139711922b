"""Log lines a person can read: a message and its facts, `log.info("topic created", topic=name, count=3)`.

A thin layer on the standard library's logging, so that its filters and handlers work as ever. Nothing is
formatted for levels that are off, and the time of a line comes from the clock that `configure` is given.
"""

import json
import logging
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TextIO

ROOT = "moldau"
FIELDS = "moldau_facts"
COLOURS = {"DEBUG": "\x1b[2m", "INFO": "\x1b[32m", "WARNING": "\x1b[33m", "ERROR": "\x1b[31m"}
DIM, PLAIN = "\x1b[2m", "\x1b[0m"

WallClock = Callable[[], int]
"""Milliseconds since 1970, as `platform.clock.wall_ms`."""


class Logger:
    """What `get_logger` gives. Facts are keyword arguments."""

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
        """An error with the traceback of the exception being handled."""
        self._write(logging.ERROR, message, fields, traceback=True)

    def _write(self, level: int, message: str, fields: dict[str, Any], *, traceback: bool = False) -> None:
        if self._logger.isEnabledFor(level):
            # stacklevel: the caller of info(), not this file.
            self._logger.log(level, message, extra={FIELDS: fields}, exc_info=traceback or None, stacklevel=3)


def get_logger(name: str) -> Logger:
    """`get_logger("controller")` writes as `moldau.controller`."""
    return Logger(logging.getLogger(f"{ROOT}.{name.removeprefix(f'{ROOT}.')}"))


class TextFormatter(logging.Formatter):
    def __init__(self, clock: WallClock | None, *, colour: bool = False) -> None:
        super().__init__()
        self._clock = clock
        self._colour = colour

    def format(self, record: logging.LogRecord) -> str:
        time = "" if self._clock is None else f"{_to_datetime(self._clock()):%Y-%m-%d %H:%M:%S.%f}"[:23] + " "
        level = f"{record.levelname:<7}"
        fields = "".join(f" {name}={_format_field(value)}" for name, value in _fields(record).items())
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
            line["time"] = (
                _to_datetime(self._clock()).isoformat(timespec="milliseconds").replace("+00:00", "Z")
            )
        line |= {"level": record.levelname.lower(), "logger": record.name, "message": record.getMessage()}
        # Facts come last and never hide what every line has.
        line |= {f"{name}_" if name in line else name: value for name, value in _fields(record).items()}
        if traceback := _traceback(self, record):
            line["traceback"] = traceback
        return json.dumps(line, default=_to_text, ensure_ascii=False)


def configure(
    *, level: str = "info", style: str = "text", clock: WallClock | None = None, stream: TextIO | None = None
) -> None:
    """Sends all of Moldau's lines to one stream (stderr), replacing what an earlier call set up.

    Without a clock lines carry no time, which is what a simulation wants.
    """
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


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    fields: dict[str, Any] = getattr(record, FIELDS, {})
    return fields


def _traceback(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    return formatter.formatException(record.exc_info) if record.exc_info and record.exc_info[0] else ""


def _to_datetime(wall_ms: int) -> datetime:
    return datetime.fromtimestamp(wall_ms / 1000, UTC)


def _to_text(value: Any) -> str:
    """Without addresses: an object that has no text of its own is named by its type."""
    if isinstance(value, BaseException):
        return f"{type(value).__name__}: {value}" if str(value) else type(value).__name__
    kind: Any = type(value)
    if kind.__str__ is object.__str__ and kind.__repr__ is object.__repr__:
        return str(kind.__name__)
    return str(value)


def _format_field(value: Any) -> str:
    """A fact on a text line: quoted where it would not be one word."""
    if isinstance(value, bool | None):
        return json.dumps(value)
    text = _to_text(value)
    if text and text.isprintable() and not any(sign in text for sign in ' "='):
        return text
    return json.dumps(text, ensure_ascii=False)


def _escape_message(message: str) -> str:
    """What a client sent must not look like a line of its own."""
    return message if message.isprintable() else json.dumps(message, ensure_ascii=False)
