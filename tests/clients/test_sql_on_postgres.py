"""A node, its views and an outbox in one schema: SQL shows what clients have written and committed."""

import subprocess
import sys
from pathlib import Path

import psycopg
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from support.broker_process import BrokerProcess, clean_environment
from support.postgres import PostgresServer
from support.topics import unique

pytestmark = [pytest.mark.clients, pytest.mark.usefixtures("only_moldau")]


def committed(bootstrap: str, group: str) -> dict[int, int]:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    try:
        found = consumer.committed([TopicPartition("orders", partition) for partition in (0, 1)], timeout=30)
        return {each.partition: each.offset for each in found if each.offset >= 0}
    finally:
        consumer.close()


def commit(bootstrap: str, group: str, offsets: dict[int, int]) -> None:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    try:
        positions = [TopicPartition("orders", partition, offset) for partition, offset in offsets.items()]
        consumer.commit(offsets=positions, asynchronous=False)
    finally:
        consumer.close()


def test_sql_shows_the_records_and_offsets_of_clients(postgres: PostgresServer, tmp_path: Path) -> None:
    schema = unique("sql").replace("-", "_")
    node = BrokerProcess(tmp_path / "data", "--store", postgres.url, "--postgres-schema", schema)
    with node, psycopg.connect(postgres.url, autocommit=True) as connection:

        def offsets(group: str) -> dict[int, int]:
            rows = connection.execute(
                f'select "partition", "offset" from {schema}.group_offsets where "group" = %s and topic = %s',
                (group, "orders"),
            )
            return dict(rows.fetchall())

        subprocess.run(
            [sys.executable, "-m", "moldau", "topic", "create", "orders", "--partitions", "2", "-b", node.bootstrap],
            env=clean_environment(),
            check=True,
        )
        producer = Producer({"bootstrap.servers": node.bootstrap})
        for number in range(100):
            producer.produce("orders", f"value {number}", key=f"key {number}", headers={"number": str(number)})
        producer.flush()
        rows = [
            row
            for partition in (0, 1)
            for row in connection.execute(
                f"select key_text, value_text, headers -> 0 ->> 'value' from {schema}.records('orders', %s)",
                (partition,),
            )
        ]
        assert sorted(rows) == sorted((f"key {number}", f"value {number}", str(number)) for number in range(100))
        topic = connection.execute(f"select partitions, records from {schema}.topics where topic = 'orders'").fetchone()
        assert topic == (2, 100)

        commit(node.bootstrap, "readers", {0: 7, 1: 9})
        commit(node.bootstrap, "readers", {1: 11})
        assert offsets("readers") == committed(node.bootstrap, "readers") == {0: 7, 1: 11}

        copier = Producer({"bootstrap.servers": node.bootstrap, "transactional.id": "copier"})
        copier.init_transactions()
        member = Consumer({"bootstrap.servers": node.bootstrap, "group.id": "copiers"})
        for offset, is_committed in ((1, True), (2, False)):
            copier.begin_transaction()
            copier.send_offsets_to_transaction([TopicPartition("orders", 0, offset)], member.consumer_group_metadata())
            assert offsets("copiers") == ({} if is_committed else {0: 1}), "the offsets of an open transaction"
            (copier.commit_transaction if is_committed else copier.abort_transaction)()
            # The next request waits until the coordinator has written the markers.
            assert committed(node.bootstrap, "copiers") == {0: 1}
            assert offsets("copiers") == {0: 1}
        member.close()


def test_an_outbox_may_be_in_the_schema_of_a_node(postgres: PostgresServer, tmp_path: Path) -> None:
    schema = unique("both").replace("-", "_")
    node = BrokerProcess(tmp_path / "data", "--store", postgres.url, "--postgres-schema", schema)
    install = [sys.executable, "-m", "moldau", "outbox", "install", postgres.url, "--schema", schema]
    with node:
        subprocess.run(install, env=clean_environment(), check=True)
        node.stop()
        node.start()
        with psycopg.connect(postgres.url, autocommit=True) as connection:
            connection.execute(f"select {schema}.produce('orders', 'ada', 'tea')")
            assert connection.execute(f"select count(*) from {schema}.outbox").fetchone() == (1,)
