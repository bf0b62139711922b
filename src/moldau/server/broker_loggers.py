"""The broker logger config resource: the log level of each module of this process.

`root` is the parent of all of Moldau's loggers. A changed level is not stored in the metadata log, so it is lost when
the process ends.
"""

import logging
from collections.abc import Sequence

from moldau.controller.requests import ConfigChange, ConfigOperation
from moldau.errors import InvalidConfigError, InvalidRequestError
from moldau.observe.logging import ROOT
from moldau.wire.messages import DescribeConfigsResponseResourceResult

KAFKA_ROOT = "root"
LOGGER_SOURCE = 6
LEVELS = {
    "FATAL": logging.CRITICAL,
    "ERROR": logging.ERROR,
    "WARN": logging.WARNING,
    "INFO": logging.INFO,
    "DEBUG": logging.DEBUG,
    "TRACE": logging.DEBUG,
}


def describe_loggers() -> list[DescribeConfigsResponseResourceResult]:
    return [
        {
            "name": name,
            "value": _level_name(logger.getEffectiveLevel()),
            "read_only": False,
            "config_source": LOGGER_SOURCE,
            "is_sensitive": False,
            "documentation": None,
        }
        for name, logger in _loggers().items()
    ]


def alter_loggers(changes: Sequence[ConfigChange], *, validate_only: bool) -> None:
    """Applies all changes, or raises an error and applies none."""
    loggers = _loggers()
    levels = {change.name: _parse_level(change, loggers) for change in changes}
    if not validate_only:
        for name, level in levels.items():
            loggers[name].setLevel(level)


def _loggers() -> dict[str, logging.Logger]:
    loggers = {KAFKA_ROOT: logging.getLogger(ROOT)}
    for name in sorted(logging.root.manager.loggerDict):
        logger = logging.root.manager.loggerDict[name]
        if name.startswith(f"{ROOT}.") and isinstance(logger, logging.Logger):
            loggers[name] = logger
    return loggers


def _level_name(level: int) -> str:
    """Returns the highest of Kafka's levels that is not above `level`."""
    return next((name for name, threshold in LEVELS.items() if level >= threshold), "TRACE")


def _parse_level(change: ConfigChange, loggers: dict[str, logging.Logger]) -> int:
    if change.operation not in (ConfigOperation.SET, ConfigOperation.DELETE):
        raise InvalidRequestError(f"{change.operation.name} is not allowed for broker loggers")
    if change.name not in loggers:
        raise InvalidConfigError(f"Logger {change.name} does not exist!")
    if change.operation is ConfigOperation.DELETE:
        if change.name == KAFKA_ROOT:
            raise InvalidRequestError(f"Removing the log level of the {KAFKA_ROOT} logger is not allowed")
        return logging.NOTSET
    if change.value not in LEVELS:
        raise InvalidConfigError(
            f"Cannot set the log level of {change.name} to {change.value}: it must be one of {', '.join(LEVELS)}"
        )
    return LEVELS[change.value]
