"""Rows that are too large to send never reach the relay's memory, and headers that Python cannot read are poison."""

import asyncio
from pathlib import Path

import psycopg
import pytest

from moldau.outbox.batches import FIELD_BYTES_MAX, NextBatch, OutboxBatches
from moldau.outbox.database import connect
from support.outbox import RelayProcess, moldau, read_topics, wait_until
from support.topics import unique

pytestmark = pytest.mark.clients

VALUE_BYTES = 300_000_000


def peak_memory_bytes(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_a_huge_value_is_a_dead_letter_and_never_in_memory(outbox: str, relay: RelayProcess, bootstrap: str) -> None:
    topic = unique()
    with psycopg.connect(outbox, autocommit=True) as connection:
        connection.execute("SELECT moldau.produce(%s, 'big', repeat('v', %s))", (topic, VALUE_BYTES))
        connection.execute("SELECT moldau.produce(%s, 'big', '{}')", (topic,))
        connection.execute("SELECT moldau.produce(%s, 'good', '{\"event\": 1}')", (topic,))
        relay.start()
        assert relay.process is not None
        wait_until(lambda: connection.execute("SELECT FROM moldau.outbox").fetchone() is None, lambda: relay.output())
        assert peak_memory_bytes(relay.process.pid) < VALUE_BYTES
        dead = connection.execute("SELECT octet_length(value), error FROM moldau.outbox_dead ORDER BY id").fetchall()
    assert dead[0] == (
        VALUE_BYTES,
        f"a key, value or headers of {VALUE_BYTES:,} bytes; at most {FIELD_BYTES_MAX:,} bytes can be sent",
    )
    assert dead[1] == (2, None)
    assert read_topics(bootstrap, (topic,)) == [{"event": 1}]
    assert "300,000,000" in moldau("outbox", "dead", outbox).stdout


@pytest.mark.parametrize(
    ("insert", "shown"),
    [
        # As text, each of these characters takes six bytes.
        ("SELECT moldau.produce('t', 'h', '{}', jsonb_build_object('h', repeat(chr(1), 190000000)))", "190,000"),
        # The largest jsonb: nothing can be appended to it.
        (
            """INSERT INTO moldau.outbox (topic, key, value, headers)
            VALUES ('t', 'h', '{}', jsonb_build_object('h', repeat('a', 268435442)))""",
            "268,435",
        ),
    ],
)
def test_headers_that_are_too_large_for_functions_of_postgres_are_a_dead_letter(
    outbox: str, insert: str, shown: str
) -> None:
    with psycopg.connect(outbox, autocommit=True) as connection:
        connection.execute(insert)
        connection.execute("SELECT moldau.produce('t', 'good', '{}')")

    async def next_batch() -> NextBatch:
        async with connect(outbox, "test") as connection:
            batches = OutboxBatches(connection, "moldau")
            await batches.prepare_session()
            await batches.begin("test")
            batch = await batches.next(10, FIELD_BYTES_MAX)
            return batch if batch.rows else await batches.next(10, FIELD_BYTES_MAX)

    assert [each.key for each in asyncio.run(next_batch()).rows] == [b"good"]
    assert shown in moldau("outbox", "dead", outbox).stdout


@pytest.mark.parametrize("field", ["key", "value", "headers"])
def test_a_large_field_is_not_fetched_and_a_smaller_one_is(outbox: str, field: str) -> None:
    columns = {"key": "convert_to({}, 'UTF8')", "value": "convert_to({}, 'UTF8')", "headers": "to_jsonb({}::text)"}
    quotes = 2 if field == "headers" else 0
    with psycopg.connect(outbox, autocommit=True) as connection:
        for size in (FIELD_BYTES_MAX - quotes, FIELD_BYTES_MAX - quotes + 1):
            text = columns[field].format(f"repeat('x', {size})")
            connection.execute(f"INSERT INTO moldau.outbox (topic, {field}) VALUES ('t', {text})".encode())

    async def next_rows() -> tuple[int, int]:
        async with connect(outbox, "test") as connection:
            batches = OutboxBatches(connection, "moldau")
            await batches.prepare_session()
            await batches.begin("test")
            first = await batches.next(10, FIELD_BYTES_MAX)
            second = await batches.next(10, FIELD_BYTES_MAX)
            return len(first.rows), first.newly_failed + second.newly_failed

    assert asyncio.run(next_rows()) == (1, 1)
    assert moldau("outbox", "dead", outbox).returncode == 0


def test_headers_with_a_huge_number_do_not_end_the_relay(outbox: str, relay: RelayProcess, bootstrap: str) -> None:
    topic = unique()
    with psycopg.connect(outbox, autocommit=True) as connection:
        # Only the owner can insert such a row; moldau.produce makes numbers texts.
        connection.execute(
            "INSERT INTO moldau.outbox (topic, key, headers) VALUES (%s, 'h', "
            "('[[\"a\", ' || repeat('9', 5000) || ']]')::jsonb)",
            (topic,),
        )
        connection.execute("SELECT moldau.produce(%s, 'good', '{\"event\": 1}')", (topic,))
        relay.start()
        wait_until(lambda: connection.execute("SELECT FROM moldau.outbox").fetchone() is None, relay.output)
        dead = connection.execute("SELECT error FROM moldau.outbox_dead").fetchall()
    assert len(dead) == 1
    assert "invalid headers" in dead[0][0]
    assert read_topics(bootstrap, (topic,)) == [{"event": 1}]
