"""The trace of a run: a hash over all events in order. The same seed gives the same hash."""

import hashlib
import zlib
from collections import deque

LAST_EVENTS_KEPT = 200
ROUTINE_KINDS = (
    *("append", "create", "mkdir", "remove", "rename", "sync", "sync_directory", "truncate"),
    *("connect", "deliver", "eof", "reset"),
)
"""Kinds of events that are too frequent to be shown."""

LINES_PER_HASH = 500

Field = str | int | bytes


class Trace:
    """A hash of all events, and the latest notable events. The fields of an event are names, numbers and bytes. Memory
    addresses and other values that differ between runs are not allowed."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=16)
        self._unhashed: list[str] = []
        self.notable_events: deque[str] = deque(maxlen=LAST_EVENTS_KEPT)
        """The latest events that are not routine, with the time in seconds."""

    def add(self, time_ns: int, kind: str, *fields: Field) -> None:
        line = f"{time_ns} {kind} " + " ".join(
            [f"{len(field)}:{zlib.crc32(field):08x}" if isinstance(field, bytes) else str(field) for field in fields]
        )
        self._append(line)
        if kind not in ROUTINE_KINDS:
            self.notable_events.append(f"{time_ns / 1e9:10.3f} {line.partition(' ')[2]}")

    def add_step(self, time_ns: int, host: str, label: str) -> None:
        """Adds the execution of a callback, which is by far the most frequent event."""
        unhashed = self._unhashed
        unhashed.append(f"{time_ns} run {host} {label}")
        if len(unhashed) == LINES_PER_HASH:
            self._hash_lines()

    def _append(self, line: str) -> None:
        self._unhashed.append(line)
        if len(self._unhashed) == LINES_PER_HASH:
            self._hash_lines()

    def _hash_lines(self) -> None:
        if self._unhashed:
            self._hash.update("\n".join((*self._unhashed, "")).encode())
            self._unhashed.clear()

    @property
    def digest(self) -> str:
        self._hash_lines()
        return self._hash.hexdigest()
