"""Transactions of Java's producer: consumers read what was committed. It adds partitions with Produce (TV2), or before
it (TV1) if transaction.version is below 2."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from broker_under_test import AGAINST_KAFKA, Broker, broker
from command_line import Tools
from java_clients import JavaClients, JavaConsumer, JavaError, partitions_of, poll_until
from moldau_cluster import FEATURES, three_nodes

from support.broker_process_cluster import BrokerProcessCluster
from support.topics import Topics, unique
from support.wire import WireClient, end_offset

TRANSACTIONS = 30
PARTITIONS = 3
RECORDS = 4
"""Records per transaction and partition."""


def transactions(topic: str, name: str) -> list[dict[str, Any]]:
    """Transactions in all partitions, every third aborted."""
    return [
        {
            "commit": number % 3 != 1,
            "records": [
                {"topic": topic, "partition": index % PARTITIONS, "value": f"{name}-{number}-{index}"}
                for index in range(RECORDS * PARTITIONS)
            ],
        }
        for number in range(TRANSACTIONS)
    ]


def values_in(*runs: list[dict[str, Any]], committed: bool) -> list[str]:
    return sorted(
        record["value"]
        for run in runs
        for transaction in run
        if transaction["commit"] or not committed
        for record in transaction["records"]
    )


def check_isolation(java: JavaClients, bootstrap: str) -> None:
    """Two producers in turn, the second with the transactional id of the first."""
    topic, id_ = Topics(bootstrap).create(partitions=PARTITIONS), unique("tx")
    runs = [transactions(topic, name) for name in ("first", "second")]
    for run in runs:
        offsets = java.transactions(bootstrap, id_, run)
        assert all(each >= 0 for found in offsets for each in found)
    for isolation, committed in (("read_committed", True), ("read_uncommitted", False)):
        expected = values_in(*runs, committed=committed)
        reader = java.consumer(
            bootstrap, isolation, partitions=[*partitions_of(topic, PARTITIONS)], isolation_level=isolation
        )
        assert read_to_end(reader, topic) == expected


def read_to_end(reader: JavaConsumer, topic: str) -> list[str]:
    """Returns the sorted values after the reader has passed the last markers, so that no record can follow."""
    end = 2 * TRANSACTIONS * (RECORDS + 1)
    for partition in partitions_of(topic, PARTITIONS):
        poll_until(partial(is_at, reader, partition, end), f"{reader.name} is at the end of {partition}")
    return sorted(reader.values)


def is_at(reader: JavaConsumer, partition: str, offset: int) -> bool:
    return reader.position(partition) == offset


def test_consumers_read_committed_transactions(java: JavaClients, node: Broker) -> None:
    check_isolation(java, node.bootstrap)


def test_an_open_transaction_is_aborted_by_the_next_producer(java: JavaClients, node: Broker) -> None:
    topic, id_ = Topics(node.bootstrap).create(), unique("tx")
    aborted = {"commit": False, "records": [{"topic": topic, "value": "aborted"}]}
    committed = {"commit": True, "records": [{"topic": topic, "value": "committed"}]}
    java.transactions(node.bootstrap, id_, [aborted, committed])
    # The broker rejects the second record, and the producer ends without an abort.
    failing = {"commit": True, "records": [{"topic": topic, "value": value} for value in ("open", "x" * 2_000_000)]}
    with pytest.raises(JavaError):
        java.transactions(node.bootstrap, id_, [failing], max_request_size=10_000_000, linger_ms=0)
    java.transactions(node.bootstrap, id_, [committed])
    reader = java.consumer(node.bootstrap, "reader", partitions=[f"{topic}:0"], isolation_level="read_committed")
    assert reader.wait_for_records(2) == ["committed", "committed"]
    with WireClient(node.bootstrap) as wire:
        end = end_offset(wire, topic)
    poll_until(partial(is_at, reader, f"{topic}:0", end), "no transaction is open")
    assert reader.values == ["committed", "committed"]


@pytest.fixture
def changing_node(jvm: JavaClients, tmp_path: Path) -> Iterator[Broker]:
    """A node of its own, because the test changes a feature of the cluster."""
    with broker(tmp_path / "data") as started:
        yield started


def test_producers_continue_while_transaction_version_changes(
    changing_node: Broker, java: JavaClients, tools: Tools
) -> None:
    """A producer that stays open, and new ones, at every level of the feature."""
    bootstrap = changing_node.bootstrap
    topic, group = Topics(bootstrap).create(), unique()
    partition = f"{topic}:0"
    old = java.transactional_producer(bootstrap, unique("old"))
    expected = []
    # At level 0 Kafka's coordinator refuses producers that had transactions at level 2, with UNSUPPORTED_VERSION.
    levels = (2, 1, 2) if AGAINST_KAFKA else (2, 1, 0, 2, 0, 1, 2)
    for number, level in enumerate(levels):
        if number:
            change = "upgrade" if level > levels[number - 1] else "downgrade"
            tools.run(FEATURES, "--bootstrap-server", bootstrap, change, "--feature", f"transaction.version={level}")
        new = java.transactional_producer(bootstrap, unique("new"))
        for name, producer in (("old", old), ("new", new)):
            for attempt, commit in enumerate((True, False, True)):
                value = f"{name} {number} {attempt}"
                producer.begin()
                producer.send(topic, [{"value": value}])
                producer.send_offsets(group, {partition: (len(expected) + 1, "")})
                producer.end(commit=commit)
                expected += [value] * commit
        new.close()
    old.close()
    reader = java.consumer(bootstrap, "reader", topic, group_id=unique(), isolation_level="read_committed")
    assert reader.wait_for_records(len(expected)) == expected
    # An auto-commit would replace the offset of the last transaction.
    settings = {"group_id": group, "enable_auto_commit": False}
    committed = java.consumer(bootstrap, "group", partitions=[partition], **settings)
    assert committed.committed(partition) == {partition: [len(expected), ""]}


@pytest.fixture(scope="module")
def cluster(jvm: JavaClients, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcessCluster]:
    if AGAINST_KAFKA:
        pytest.skip("a cluster of Moldau nodes")
    with three_nodes(tmp_path_factory.mktemp("transactions")) as served:
        yield served


def test_consumers_of_a_cluster_read_committed_transactions(java: JavaClients, cluster: BrokerProcessCluster) -> None:
    for _ in range(3):
        # Other transactional ids have other coordinators.
        check_isolation(java, cluster.bootstrap)
        java.close_consumers()
