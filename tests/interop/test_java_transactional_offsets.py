"""Java producers commit offsets of consumer groups in their transactions, with TV2."""

import pytest
from broker_under_test import Broker
from java_clients import JavaClients, JavaConsumer

from support.topics import Topics, unique


def offsets_reader(java: JavaClients, node: Broker, group: str, *partitions: str) -> JavaConsumer:
    """A consumer that returns the group's offsets. It commits none: a slow test would find its auto-commit."""
    settings = {"group_id": group, "enable_auto_commit": False}
    return java.consumer(node.bootstrap, "offsets", partitions=partitions, **settings)


@pytest.mark.parametrize("commit", [True, False])
def test_a_transaction_with_offsets_only(java: JavaClients, node: Broker, commit: bool) -> None:
    topic, group = Topics(node.bootstrap).create(partitions=2), unique()
    one, other = f"{topic}:0", f"{topic}:1"
    producer = java.transactional_producer(node.bootstrap, unique("tx"))
    for number in (1, 2):
        producer.begin()
        producer.send_offsets(group, {one: (number, "a note"), other: (number + 10, "")})
        producer.end(commit=commit)
    producer.close()
    reader = offsets_reader(java, node, group, one, other)
    expected = {one: [2, "a note"], other: [12, ""]} if commit else {one: None, other: None}
    assert reader.committed(one, other) == expected


def test_an_older_producer_is_fenced(java: JavaClients, node: Broker) -> None:
    topic, group, transactional_id = Topics(node.bootstrap).create(), unique(), unique("tx")
    old = java.transactional_producer(node.bootstrap, transactional_id)
    old.begin()
    old.send_offsets(group, {f"{topic}:0": (1, "")})
    new = java.transactional_producer(node.bootstrap, transactional_id)
    new.begin()
    new.send_offsets(group, {f"{topic}:0": (2, "")})
    new.end(commit=True)
    new.close()
    reader = offsets_reader(java, node, group, f"{topic}:0")
    assert reader.committed(f"{topic}:0") == {f"{topic}:0": [2, ""]}


def test_consume_transform_produce(java: JavaClients, node: Broker) -> None:
    """Every second transaction is aborted and repeated. Output and offsets agree."""
    topics, group = Topics(node.bootstrap), unique()
    source, target = topics.create(), topics.create()
    java.produce(node.bootstrap, source, [{"value": str(number)} for number in range(20)])
    producer = java.transactional_producer(node.bootstrap, unique("tx"))
    done = 0
    for attempt in range(8):
        producer.begin()
        producer.send(target, [{"value": f"{number} of {attempt}"} for number in range(done, done + 5)])
        producer.send_offsets(group, {f"{source}:0": (done + 5, "")})
        producer.end(commit=attempt % 2 == 1)
        done += 5 * (attempt % 2)
    producer.close()
    reader = java.consumer(node.bootstrap, "reader", target, group_id=unique(), isolation_level="read_committed")
    assert reader.wait_for_records(20) == [f"{number} of {2 * (number // 5) + 1}" for number in range(20)]
    committed = offsets_reader(java, node, group, f"{source}:0")
    assert committed.committed(f"{source}:0") == {f"{source}:0": [20, ""]}
