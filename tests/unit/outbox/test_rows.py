"""Rows of the outbox: headers, what is blocked by a failed row, and where a scan starts."""

import random

import pytest

from moldau.outbox.rows import OutboxRow, Scan, ScanStart, decode_headers, split_rows


def row(number: int, key: bytes | None = b"k", topic: str = "orders") -> OutboxRow:
    return OutboxRow(number, topic, None, key, b"value", None, 0)


def ids(rows: list[OutboxRow]) -> list[int]:
    return [each.id for each in rows]


def test_headers_are_text_bytes_or_null() -> None:
    assert decode_headers(None) == []
    assert decode_headers("null") == decode_headers("[]") == []
    assert decode_headers('[["a", "ä"], ["b", null], ["c", {"base64": "/w=="}], ["a", ""]]') == [
        ("a", "ä".encode()),
        ("b", None),
        ("c", b"\xff"),
        ("a", b""),
    ]


@pytest.mark.parametrize(
    "headers",
    [
        "5",
        '["a"]',
        '[["a"]]',
        '[[1, "b"]]',
        '[["a", 1]]',
        '[["a", {}]]',
        '[["a", {"base64": "?"}]]',
        '[["a", {"base64": 1}]]',
        f'[["a", {"9" * 5000}]]',
        "[" * 100_000 + "]" * 100_000,
    ],
)
def test_other_headers_are_an_error_of_their_row(headers: str) -> None:
    with pytest.raises(ValueError, match="invalid headers"):
        decode_headers(headers)


def test_later_rows_of_a_failed_key_wait_and_others_go_on() -> None:
    rows = [row(1), row(2, b"other"), row(3), row(4, None), row(5, None), row(6, topic="payments")]
    split = split_rows(rows, [1, 4], [])
    assert (ids(split.sendable), ids(split.failed), ids(split.waiting)) == ([2, 5, 6], [1, 4], [3])


def test_a_key_with_dead_rows_is_blocked() -> None:
    split = split_rows([row(7), row(8, b"other")], [7], [("orders", b"k")])
    assert (ids(split.sendable), ids(split.failed), ids(split.waiting)) == ([8], [], [7])


def scan(last_id: int, own_xid: int, xmin: int, rows: list[OutboxRow] | None = None, *, limited: bool = False) -> Scan:
    return Scan(rows or [], limited, last_id, own_xid, xmin)


def test_a_scan_starts_after_ids_of_ended_transactions() -> None:
    start = ScanStart()
    start.advance(scan(last_id=10, own_xid=100, xmin=90))
    assert start.id == 0
    start.advance(scan(last_id=20, own_xid=110, xmin=99))
    assert start.id == 0, "the transaction 99 may still show an id up to 10"
    start.advance(scan(last_id=30, own_xid=120, xmin=100))
    assert start.id == 11
    start.advance(scan(last_id=40, own_xid=130, xmin=119))
    assert start.id == 11
    start.reset()
    assert start.id == 0


def test_a_scan_starts_at_the_rows_that_a_limited_scan_has_left() -> None:
    start = ScanStart()
    start.advance(scan(last_id=1000, own_xid=100, xmin=100))
    start.advance(scan(last_id=1000, own_xid=110, xmin=110, rows=[row(5), row(17)], limited=True))
    assert start.id == 18


@pytest.mark.parametrize("seed", range(200))
def test_no_row_is_ever_below_the_start(seed: int) -> None:
    """Random transactions that get an id, take ids for rows, and end in any order, with scans at any time."""
    chance = random.Random(seed)
    start, next_xid, last_id = ScanStart(), 1, 0
    open_rows: dict[int, list[int]] = {}
    visible: set[int] = set()
    written, sent = 0, 0
    for _ in range(300):
        action = chance.random()
        if action < 0.25:
            open_rows[next_xid] = []
            next_xid += 1
        elif action < 0.55 and open_rows:
            last_id += 1
            open_rows[chance.choice(list(open_rows))].append(last_id)
        elif action < 0.75 and open_rows:
            rows = open_rows.pop(chance.choice(list(open_rows)))
            visible.update(rows)
            written += len(rows)
        elif action < 1:
            known, own_xid = last_id, next_xid
            next_xid += 1
            assert all(each >= start.id for each in visible)
            found = sorted(visible)
            taken = found[: chance.randint(1, 5)]
            visible.difference_update(taken)
            sent += len(taken)
            rows_taken = [row(each) for each in taken]
            xmin = min([*open_rows, own_xid])
            start.advance(scan(known, own_xid, xmin, rows_taken, limited=len(taken) < len(found)))
    assert sent + len(visible) == written
