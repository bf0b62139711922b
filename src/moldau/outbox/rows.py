"""Rows of the outbox as the relay sees them, and where its next scan starts. No I/O."""

import base64
import binascii
import json
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from moldau.records.record import Header


class OutboxRow(NamedTuple):
    id: int
    topic: str
    partition: int | None
    key: bytes | None
    value: bytes | None
    headers: str | None
    """Pairs of name and value as JSON: a value is text, null, or bytes as {"base64": …}."""
    timestamp_ms: int
    field_bytes_max: int = 0
    """The size of the largest of key, value and headers. They are None here if they are too large."""

    @property
    def order_key(self) -> tuple[str, bytes] | None:
        """Rows with the same order key are sent in the order of their ids; None if the order is free."""
        return None if self.key is None else (self.topic, self.key)


OrderKey = tuple[str, bytes]


def decode_headers(headers: str | None) -> list[Header]:
    """Returns the headers of a record. Raises ValueError for JSON that `moldau.produce` does not write."""
    decoded: list[Header] = []
    try:
        for name, value in json.loads(headers or "null") or ():
            if isinstance(value, dict):
                decoded.append((_text(name), base64.b64decode(value["base64"], validate=True)))
            else:
                decoded.append((_text(name), None if value is None else _text(value).encode()))
    except (TypeError, KeyError, ValueError, RecursionError, binascii.Error) as error:
        # A ValueError can also be of a number with too many digits, a RecursionError of nested arrays.
        raise ValueError(f"invalid headers: {error}") from None
    return decoded


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is not text")
    return value


class SplitRows(NamedTuple):
    sendable: list[OutboxRow]
    failed: list[OutboxRow]
    """Rows that cannot be sent."""
    waiting: list[OutboxRow]
    """Rows that could be sent if a row with the same key before them had not failed."""


def split_rows(rows: Iterable[OutboxRow], failed_ids: Iterable[int], blocked_keys: Iterable[OrderKey]) -> SplitRows:
    """Splits rows in the order of their ids. `blocked_keys` are keys that have failed rows already."""
    failed = set(failed_ids)
    blocked = set(blocked_keys)
    split = SplitRows([], [], [])
    for row in rows:
        key = row.order_key
        if key is not None and key in blocked:
            split.waiting.append(row)
        elif row.id in failed:
            split.failed.append(row)
            if key is not None:
                blocked.add(key)
        else:
            split.sendable.append(row)
    return split


class Scan(NamedTuple):
    """The result of one scan over the outbox."""

    rows: Sequence[OutboxRow]
    is_limited: bool
    """Whether more rows are visible after the last one."""
    last_id: int
    """The last id that was given to any row, read before `own_xid` was assigned."""
    own_xid: int
    """The transaction of the scan. Later transactions have only ids after `last_id`, because a transaction has its own
    id before it takes one for a row. The snapshot's xmax would not do: there are open transactions beyond it."""
    snapshot_xmin: int
    """Every transaction below has ended."""


class ScanStart:
    """The first id that a scan has to look at.

    Ids become visible out of order, so a scan cannot continue after the last row that was sent. But when all
    transactions of an earlier time have ended, no id from before that time can appear any more. Without this, each
    scan would read the index entries of all deleted rows that Postgres cannot clean up yet.
    """

    def __init__(self) -> None:
        self.id = 0
        self._boundary: tuple[int, int] | None = None
        """The last id at an earlier time, and the transaction below which all must end."""

    def reset(self) -> None:
        """Starts at the beginning again, because rows with old ids have returned."""
        self.id = 0
        self._boundary = None

    def advance(self, scan: Scan) -> None:
        """Records a scan whose rows are all taken."""
        if self._boundary is not None:
            last_id, xid = self._boundary
            if scan.snapshot_xmin < xid:
                return
            if scan.is_limited and scan.rows:
                last_id = min(last_id, scan.rows[-1].id)
            self.id = max(self.id, last_id + 1)
        self._boundary = (scan.last_id, scan.own_xid)
