"""`moldau outbox relay`: what consumers get, dead letters, standby relays, and the position in Kafka."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import psycopg
import pytest

from moldau.client import Admin, Consumer, ConsumerRecord, TopicPartition
from support.broker_process import BrokerProcess
from support.outbox import RelayProcess, backlog, install, moldau, wait_until, wait_until_sent
from support.topics import Topics, unique

pytestmark = pytest.mark.clients


def produce(url: str, *calls: tuple[Any, ...]) -> list[int]:
    """Calls `moldau.produce` with topic, key and value, each in its own transaction. Returns the ids."""
    with psycopg.connect(url, autocommit=True) as connection:
        found = [connection.execute("SELECT moldau.produce(%s, %s, %s)", each).fetchone() for each in calls]
    return [each[0] for each in found if each is not None]


def read(bootstrap: str, topic: str, count: int) -> list[tuple[Any, ...]]:
    """Returns key, value, headers and timestamp of all committed records, of which there must be `count`."""

    async def consume() -> list[tuple[Any, ...]]:
        async with Consumer(bootstrap, isolation_level="read_committed", auto_offset_reset="earliest") as consumer:
            consumer.assign([TopicPartition(topic, 0)])
            found: list[tuple[Any, ...]] = []
            async with asyncio.timeout(60):
                while len(found) < count:
                    found += [_parts(each) for each in await consumer.poll()]
            found += [_parts(each) for each in await consumer.poll(300)]
            return found

    return asyncio.run(consume())


def _parts(record: ConsumerRecord) -> tuple[Any, ...]:
    return record.key, record.value, list(record.headers), record.timestamp


def values(bootstrap: str, topic: str, count: int) -> list[bytes]:
    found = [each[1] for each in read(bootstrap, topic, count)]
    assert len(found) == count
    return found


def dead(url: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(url) as connection:
        return connection.execute("SELECT id, error FROM moldau.outbox_dead ORDER BY id").fetchall()


def test_a_record_has_what_was_produced(outbox: str, relay: RelayProcess, bootstrap: str) -> None:
    topic = unique()
    with psycopg.connect(outbox, autocommit=True) as connection:
        connection.execute(
            "SELECT moldau.produce(%s, '\\x01'::bytea, '\\xff'::bytea, '[[\"a\", \"1\"], [\"a\", null]]', 0, "
            "'2020-01-02 03:04:05.678Z')",
            (topic,),
        )
        connection.execute("SELECT moldau.produce(%s, NULL, NULL)", (topic,))
    relay.start()
    first, second = read(bootstrap, topic, 2)
    assert first == (b"\x01", b"\xff", [("a", b"1"), ("a", None)], 1577934245678)
    assert second[:3] == (None, None, [])
    assert abs(second[3] / 1000 - time.time()) < 60
    wait_until_sent(outbox, relay)
    assert relay.stop() == 0
    assert "The relay has stopped. It sent 2 events." in relay.output()


def test_an_event_that_appears_after_later_ones_were_sent_is_sent(
    outbox: str, relay: RelayProcess, bootstrap: str
) -> None:
    """Scans start after ids that cannot appear any more. Here no transaction after the open one has ended when the
    relay scans, so the xmax of its snapshot is the open transaction, and says nothing about the open one's ids."""
    topic = unique()
    relay.start()
    relay.wait_for_output("The relay is running")
    with psycopg.connect(outbox) as first, psycopg.connect(outbox) as second:
        first.execute("SELECT moldau.produce(%s, 'a', '1')", (topic,))
        second.execute("SELECT moldau.produce(%s, 'b', '2')", (topic,))
        first.commit()
        assert values(bootstrap, topic, 1) == [b"1"]
        wait_until_sent(outbox, relay)
        second.commit()
    # Long before the relay looks at the whole table again.
    wait_until(lambda: backlog(outbox) == 0, lambda: f"{backlog(outbox)} rows are left", 20)
    assert values(bootstrap, topic, 2) == [b"1", b"2"]


def test_a_long_writing_transaction_does_not_hold_back_others(outbox: str, relay: RelayProcess, bootstrap: str) -> None:
    topic = unique()
    relay.start()
    with psycopg.connect(outbox, application_name="batch job") as connection:
        connection.execute("SELECT moldau.produce(%s, 'k', 'first')", (topic,))
        produce(outbox, (topic, "other", "second"))
        assert values(bootstrap, topic, 1) == [b"second"]
        time.sleep(1.1)
        status = moldau("outbox", "status", outbox)
        assert "application batch job, idle in transaction" in status.stdout
        assert f"SELECT pg_terminate_backend({connection.info.backend_pid});" in status.stderr
        connection.commit()
    assert values(bootstrap, topic, 2) == [b"second", b"first"]


def test_a_prepared_transaction_is_sent_when_it_is_committed(outbox: str, relay: RelayProcess, bootstrap: str) -> None:
    topic, prepared = unique(), unique("it's prepared")
    identifier = prepared.replace("'", "''")
    relay.start()
    with psycopg.connect(outbox) as connection:
        connection.execute("SELECT moldau.produce(%s, 'k', 'first')", (topic,))
        connection.execute(f"PREPARE TRANSACTION '{identifier}'".encode())
    produce(outbox, (topic, "other", "second"))
    assert values(bootstrap, topic, 1) == [b"second"]
    time.sleep(1.1)
    assert f"ROLLBACK PREPARED '{identifier}'" in moldau("outbox", "status", outbox).stderr
    with psycopg.connect(outbox, autocommit=True) as connection:
        connection.execute(f"COMMIT PREPARED '{identifier}'".encode())
    assert values(bootstrap, topic, 2) == [b"second", b"first"]


def test_rows_that_cannot_be_sent_do_not_block_other_keys(outbox: str, relay: RelayProcess, bootstrap: str) -> None:
    topic = Topics(bootstrap).create(max_message_bytes=1000)
    with psycopg.connect(outbox, autocommit=True) as connection:
        # Only the owner can insert such rows; moldau.produce refuses them.
        connection.execute("INSERT INTO moldau.outbox (topic, key, value) VALUES ('a b', 'k', 'v')")
        connection.execute("INSERT INTO moldau.outbox (topic, key, headers) VALUES (%s, 'h', '[1]')", (topic,))
        connection.execute("SELECT moldau.produce(%s, 'p', 'v', partition => 7)", (topic,))
    produce(
        outbox, (topic, "a", "1"), (topic, "b", "x" * 5000), (topic, "b", "2"), (topic, "a", "3"), (topic, "b", "4")
    )
    relay.start()
    assert sorted(values(bootstrap, topic, 2)) == [b"1", b"3"]
    wait_until(lambda: len(dead(outbox)) == 6)
    errors = dict(dead(outbox))
    assert "'a b'" in errors[1]
    assert "invalid headers" in errors[2]
    assert "there is no partition 7" in errors[3]
    assert "MESSAGE_TOO_LARGE" in errors[5]
    assert (errors[6], errors[8]) == (None, None), "later rows of the key wait"
    wait_until_sent(outbox, relay)

    listed = moldau("outbox", "dead", outbox)
    assert listed.returncode == 0
    assert "MESSAGE_TOO_LARGE" in listed.stdout
    assert moldau("outbox", "discard", outbox, "1", "2", "3", "--yes").stdout == "3 events deleted.\n"

    # A new event of the key waits, too. After the limit is raised, all return in their order.
    produce(outbox, (topic, "b", "5"))
    wait_until(lambda: len(dead(outbox)) == 4)
    asyncio.run(raise_limit(bootstrap, topic))
    assert moldau("outbox", "retry", outbox, "--all").stdout == "4 events returned to the outbox.\n"
    assert values(bootstrap, topic, 6)[2:] == [b"x" * 5000, b"2", b"4", b"5"]
    assert dead(outbox) == []


async def raise_limit(bootstrap: str, topic: str) -> None:
    async with Admin(bootstrap) as admin:
        await admin.alter_topic_configs(topic, {"max.message.bytes": "100000"})


def test_an_event_of_a_missing_topic_is_sent_when_the_topic_exists(
    outbox: str, tmp_path: Path, only_moldau: None
) -> None:
    with BrokerProcess(tmp_path / "data", "--no-auto-create-topics-enable") as node:
        known = Topics(node.bootstrap).create()
        missing = unique()
        produce(outbox, (missing, "k", "1"), (known, "k", "2"), (missing, "k", "3"))
        with RelayProcess(outbox, node.bootstrap, tmp_path / "relay.out"):
            assert values(node.bootstrap, known, 1) == [b"2"]
            (first, error), (second, waits) = dead(outbox)
            assert (first, second, waits) == (1, 3, None)
            assert "UNKNOWN_TOPIC_OR_PARTITION" in error
            asyncio.run(create(node.bootstrap, missing))
            assert moldau("outbox", "retry", outbox, "1").stdout == "2 events returned to the outbox.\n"
            assert values(node.bootstrap, missing, 2) == [b"1", b"3"]


async def create(bootstrap: str, topic: str) -> None:
    async with Admin(bootstrap) as admin:
        await admin.create_topic(topic)


def test_a_discarded_event_lets_its_key_go_on(outbox: str, relay: RelayProcess, bootstrap: str) -> None:
    topic = Topics(bootstrap).create(max_message_bytes=1000)
    failed, *_ = produce(outbox, (topic, "k", "x" * 5000), (topic, "k", "1"), (topic, "k", "2"))
    relay.start()
    wait_until(lambda: len(dead(outbox)) == 3)
    assert moldau("outbox", "discard", outbox, str(failed), "--yes").stdout == "1 event deleted.\n"
    assert values(bootstrap, topic, 2) == [b"1", b"2"]


def test_another_relay_waits_and_takes_over(outbox: str, relay: RelayProcess, bootstrap: str, tmp_path: Path) -> None:
    topic = unique()
    relay.start()
    relay.wait_for_output("The relay is running")
    with RelayProcess(outbox, bootstrap, tmp_path / "second.out") as second:
        second.wait_for_output("Another relay is running")
        produce(outbox, (topic, "k", "1"))
        assert values(bootstrap, topic, 1) == [b"1"]
        assert "1 on standby" in moldau("outbox", "status", outbox).stdout
        relay.kill()
        produce(outbox, (topic, "k", "2"))
        assert values(bootstrap, topic, 2) == [b"1", b"2"]
        assert second.output().count("The relay is running") == 1


def test_a_restored_database_is_noticed(outbox: str, relay: RelayProcess, bootstrap: str) -> None:
    topic = unique()
    produce(outbox, (topic, "k", "1"))
    relay.start()
    assert values(bootstrap, topic, 1) == [b"1"]
    wait_until_sent(outbox, relay)
    assert relay.stop() == 0
    with psycopg.connect(outbox, autocommit=True) as connection:
        # As in a backup from before the event was sent.
        connection.execute("UPDATE moldau.outbox_state SET batch = 0, ids = '{}'")
        connection.execute("SELECT moldau.produce(%s, 'k', '1')", (topic,))
    refused = moldau("outbox", "relay", outbox, "-b", bootstrap)
    assert refused.returncode == 1
    assert "run the relay once with --reset-position" in refused.stderr
    with RelayProcess(outbox, bootstrap, relay.log_path, "--reset-position"):
        assert values(bootstrap, topic, 2) == [b"1", b"1"]


@pytest.mark.parametrize("is_sent", [True, False], ids=["sent", "not sent"])
def test_a_recorded_batch_is_sent_if_kafka_does_not_have_it(
    outbox: str, relay: RelayProcess, bootstrap: str, is_sent: bool
) -> None:
    """The two states that a killed relay can leave, made by hand."""
    topic = unique()
    produce(outbox, (topic, "k", "1"))
    relay.start()
    assert values(bootstrap, topic, 1) == [b"1"]
    wait_until_sent(outbox, relay)
    assert relay.stop() == 0
    (second,) = produce(outbox, (topic, "k", "2"))
    with psycopg.connect(outbox, autocommit=True) as connection:
        # Kafka has batch 1. It is the batch with the second event if that was sent.
        connection.execute("UPDATE moldau.outbox_state SET ids = %s", ([second],))
        if not is_sent:
            connection.execute(
                "UPDATE moldau.outbox_state SET batch = 2, token = gen_random_uuid(), sent_token = token"
            )
    relay.start()
    produce(outbox, (topic, "k", "3"))
    expected = [b"1", b"3"] if is_sent else [b"1", b"2", b"3"]
    assert values(bootstrap, topic, len(expected)) == expected
    wait_until_sent(outbox, relay)


def test_a_role_with_rights_runs_the_relay(outbox: str, bootstrap: str, tmp_path: Path) -> None:
    role, topic = unique("relay").replace("-", "_"), unique()
    with psycopg.connect(outbox, autocommit=True) as connection:
        connection.execute(f'CREATE ROLE "{role}" LOGIN'.encode())
        try:
            url = outbox.replace("moldau@", f"{role}@")
            refused = moldau("outbox", "relay", url, "-b", bootstrap)
            assert refused.returncode == 1
            assert "permission denied" in refused.stderr
            assert "--relay-role" in refused.stderr
            install(outbox, "--relay-role", role)
            produce(outbox, (topic, "k", "1"))
            with RelayProcess(url, bootstrap, tmp_path / "relay.out") as relay:
                assert values(bootstrap, topic, 1) == [b"1"]
                wait_until_sent(outbox, relay)
        finally:
            connection.execute(f'DROP OWNED BY "{role}"; DROP ROLE "{role}"'.encode())


def test_the_status_shows_backlog_and_relay_as_json(outbox: str, relay: RelayProcess, bootstrap: str) -> None:
    produce(outbox, ("status", "k", "1"), ("status", "k", "2"))
    with psycopg.connect(outbox, autocommit=True) as connection:
        # The time of a record is the caller's, and not that since which it waits.
        connection.execute("SELECT moldau.produce('status', 'k', '3', created_at => '2020-01-01')")
        connection.execute("SELECT moldau.produce('status', 'k', '4', created_at => '2220-01-01')")
    time.sleep(0.2)
    before = json.loads(moldau("outbox", "status", outbox, "--json").stdout)
    assert (before["backlog_rows"], before["failed_rows"], before["relay"]) == (4, 0, None)
    assert 0.2 <= before["backlog_seconds"] < 600
    relay.start()
    wait_until_sent(outbox, relay)
    after = json.loads(moldau("outbox", "status", outbox, "--json").stdout)
    assert (after["backlog_rows"], after["backlog_seconds"], after["standbys"]) == (0, 0, 0)
    assert relay.process is not None
    assert after["relay"]["name"].endswith(f":{relay.process.pid}")
