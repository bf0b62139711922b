"""What a check found."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Finding:
    severity: Literal["error", "warning"]
    """An error would keep the pipeline from running, or end it."""
    where: str
    """As in the file: `sources.orders.topic`."""
    message: str
    fix: str = ""
    """What to do about it."""


def error(where: str, message: str, fix: str = "") -> Finding:
    return Finding("error", where, message, fix)


def warning(where: str, message: str, fix: str = "") -> Finding:
    return Finding("warning", where, message, fix)
