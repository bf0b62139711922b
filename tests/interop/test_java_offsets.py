"""Committed offsets of Java consumers, also across broker restarts, and the start position without any."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from broker_under_test import Broker, broker
from java_clients import JavaClients, JavaError, partitions_of, wait_until_shared

from support.broker_process import BrokerProcess
from support.topics import Topics, unique

HOUR_MS = 3_600_000
# Java clients drop all metadata when no broker is reachable, and a leader that fetches it again requests a rebalance.
# This setting prevents that, so that any move of partitions is the broker's doing.
KEEPS_METADATA = {"metadata_recovery_strategy": "none"}


@pytest.fixture
def own_broker(jvm: JavaClients, tmp_path: Path) -> Iterator[Broker]:
    """A broker that a test may stop."""
    with broker(tmp_path / "data") as started:
        yield started
        # Close consumers while the broker is up: they commit and leave.
        jvm.close_consumers()


def numbered(first: int, past: int, partitions: int = 1) -> list[dict[str, object]]:
    return [{"value": str(number), "partition": number % partitions} for number in range(first, past)]


def test_a_commit_with_metadata_can_be_fetched(java: JavaClients, node: Broker) -> None:
    topic, group = Topics(node.bootstrap).create(partitions=2), unique()
    java.produce(node.bootstrap, topic, numbered(0, 10, 2))
    one, other = f"{topic}:0", f"{topic}:1"
    reader = java.consumer(node.bootstrap, "reader", topic, group_id=group, enable_auto_commit=False)
    reader.wait_for_records(10)
    assert reader.committed(one, other) == {one: None, other: None}
    reader.commit({one: (3, "up to here")})
    assert reader.committed(one, other) == {one: [3, "up to here"], other: None}
    assert reader.wait_for("committed")["offsets"] == {one: [3, "up to here"]}
    reader.commit()
    assert reader.committed(one, other) == {one: [5, ""], other: [5, ""]}


def test_the_next_consumer_continues_at_the_committed_offset(java: JavaClients, node: Broker) -> None:
    topic, group = Topics(node.bootstrap).create(), unique()
    java.produce(node.bootstrap, topic, numbered(0, 10))
    settings = {"group_id": group, "enable_auto_commit": False}
    first = java.consumer(node.bootstrap, "first", topic, **settings)
    first.wait_for_records(10)
    first.commit({f"{topic}:0": (6, "")})
    first.close()
    second = java.consumer(node.bootstrap, "second", topic, **settings)
    assert second.wait_for_records(4) == ["6", "7", "8", "9"]
    second.seek(f"{topic}:0", 2)
    assert second.wait_for_records(12)[4:] == [str(number) for number in range(2, 10)]


def test_a_closing_consumer_commits_what_it_read(java: JavaClients, node: Broker) -> None:
    topic, group = Topics(node.bootstrap).create(), unique()
    java.produce(node.bootstrap, topic, numbered(0, 10))
    reader = java.consumer(node.bootstrap, "reader", topic, group_id=group, auto_commit_interval_ms=HOUR_MS)
    reader.wait_for_records(10)
    assert java.admin(node.bootstrap, "listGroupOffsets", group=group) == {}
    reader.close()
    assert java.admin(node.bootstrap, "listGroupOffsets", group=group) == {f"{topic}:0": [10, ""]}


def test_a_consumer_auto_commits(java: JavaClients, node: Broker) -> None:
    topic, group = Topics(node.bootstrap).create(), unique()
    java.produce(node.bootstrap, topic, numbered(0, 10))
    reader = java.consumer(node.bootstrap, "reader", topic, group_id=group, auto_commit_interval_ms=200)
    reader.wait_for_records(10)
    java.wait_until(
        lambda: any(each["offsets"].get(f"{topic}:0") == [10, ""] for each in reader.events_of("committed")),
        lambda: f"no commit of offset 10: {reader.events_of('committed')}",
    )
    assert java.admin(node.bootstrap, "listGroupOffsets", group=group) == {f"{topic}:0": [10, ""]}


def test_a_consumer_with_assigned_partitions_commits(java: JavaClients, node: Broker) -> None:
    topic, group = Topics(node.bootstrap).create(partitions=2), unique()
    java.produce(node.bootstrap, topic, numbered(0, 10, 2))
    settings = {"group_id": group, "enable_auto_commit": False}
    alone = java.consumer(node.bootstrap, "alone", partitions=[f"{topic}:1"], **settings)
    alone.wait_for_records(5)
    alone.commit({f"{topic}:1": (2, "mine")})
    described = java.admin(node.bootstrap, "describeGroup", group=group)
    assert (described["state"], described["simple"], described["members"]) == ("Empty", True, [])
    alone.close()
    again = java.consumer(node.bootstrap, "again", partitions=[f"{topic}:1"], **settings)
    assert again.wait_for_records(3) == ["5", "7", "9"]


def test_auto_offset_reset_applies_without_a_committed_offset(java: JavaClients, node: Broker) -> None:
    topic = Topics(node.bootstrap).create()
    java.produce(node.bootstrap, topic, numbered(0, 5))
    latest = java.consumer(node.bootstrap, "latest", topic, group_id=unique(), auto_offset_reset="latest")
    latest.wait_for("assigned")
    assert latest.position(f"{topic}:0") == 5
    earliest = java.consumer(node.bootstrap, "earliest", topic, group_id=unique())
    lost = java.consumer(node.bootstrap, "lost", topic, group_id=unique(), auto_offset_reset="none")
    assert lost.wait_for_error() == "NoOffsetForPartitionException"
    java.produce(node.bootstrap, topic, numbered(5, 7))
    assert latest.wait_for_records(2) == ["5", "6"]
    assert earliest.wait_for_records(7) == [str(number) for number in range(7)]


def test_an_offset_out_of_range_is_reset(java: JavaClients, node: Broker) -> None:
    topic, group = Topics(node.bootstrap).create(), unique()
    java.produce(node.bootstrap, topic, numbered(0, 10))
    java.admin(node.bootstrap, "alterGroupOffsets", group=group, offsets={f"{topic}:0": (2, "")})
    assert java.admin(node.bootstrap, "deleteRecords", partition=f"{topic}:0", before=7) == 7
    reader = java.consumer(node.bootstrap, "reader", topic, group_id=group)
    assert reader.wait_for_records(3) == ["7", "8", "9"]


def test_offsets_by_time_and_at_both_ends(java: JavaClients, node: Broker) -> None:
    topic = Topics(node.bootstrap).create(partitions=2)
    full, empty = f"{topic}:0", f"{topic}:1"
    times = [1_700_000_000_000 + 1000 * number for number in range(10)]
    records = [{"value": "x", "partition": 0, "timestamp": time} for time in times]
    java.produce(node.bootstrap, topic, records)
    assert java.admin(node.bootstrap, "deleteRecords", partition=full, before=2) == 2
    reader = java.consumer(node.bootstrap, "reader", partitions=[full, empty])
    assert reader.beginning(full, empty) == {full: 2, empty: 0}
    assert reader.end(full, empty) == {full: 10, empty: 0}
    assert reader.times({full: times[4], empty: times[4]}) == {full: [4, times[4]], empty: None}
    assert reader.times({full: times[4] + 1}) == {full: [5, times[5]]}
    assert reader.times({full: times[0]}) == {full: [2, times[2]]}
    assert reader.times({full: times[9] + 1}) == {full: None}


def test_commit_metadata_over_the_limit_is_rejected(java: JavaClients, node: Broker) -> None:
    topic, group = Topics(node.bootstrap).create(), unique()
    reader = java.consumer(node.bootstrap, "reader", topic, group_id=group, enable_auto_commit=False)
    reader.wait_for("assigned")
    with pytest.raises(JavaError) as refused:
        reader.commit({f"{topic}:0": (0, "x" * 4097)})
    assert refused.value.name == "OffsetMetadataTooLarge"
    reader.commit({f"{topic}:0": (0, "x" * 4096)})
    assert reader.committed(f"{topic}:0") == {f"{topic}:0": [0, "x" * 4096]}


def test_commits_and_members_survive_a_broker_restart(java: JavaClients, own_broker: Broker) -> None:
    topic, group = Topics(own_broker.bootstrap).create(partitions=2), unique()
    bootstrap = own_broker.bootstrap
    # They commit on request, at revocation and at close.
    settings = {"group_id": group, "auto_commit_interval_ms": HOUR_MS, **KEEPS_METADATA}
    members = [java.consumer(bootstrap, name, topic, **settings) for name in "ab"]
    wait_until_shared(members, partitions_of(topic, 2))
    java.produce(bootstrap, topic, numbered(0, 20, 2))
    for each in members:
        each.wait_for_records(10)
        each.commit()
    seen = [len(each.events) for each in members]
    own_broker.stop()
    own_broker.start()
    java.produce(bootstrap, topic, numbered(20, 40, 2))
    for each in members:
        each.wait_for_records(20)
    # A live group continues unchanged: no partition is revoked, lost or assigned.
    for each, before in zip(members, seen, strict=True):
        assert {event["event"] for event in each.events[before:]} == {"record"}
    assert sorted(int(value) for each in members for value in each.values) == list(range(40))
    for each in members:
        each.close()
    own_broker.stop()
    own_broker.start()
    java.produce(bootstrap, topic, numbered(40, 44, 2))
    fresh = java.consumer(bootstrap, "fresh", topic, **settings)
    assert sorted(fresh.wait_for_records(4)) == ["40", "41", "42", "43"]


def test_commits_survive_a_broker_kill(java: JavaClients, own_broker: Broker) -> None:
    if not isinstance(own_broker, BrokerProcess):
        pytest.skip("Apache Kafka acknowledges from the page cache: that is another promise")
    topic, group = Topics(own_broker.bootstrap).create(), unique()
    java.produce(own_broker.bootstrap, topic, numbered(0, 10))
    settings = {"group_id": group, "enable_auto_commit": False, **KEEPS_METADATA}
    reader = java.consumer(own_broker.bootstrap, "reader", topic, **settings)
    reader.wait_for_records(10)
    for offset in range(1, 8):
        reader.commit({f"{topic}:0": (offset, f"at {offset}")})
    own_broker.kill()
    own_broker.start()
    offsets = java.admin(own_broker.bootstrap, "listGroupOffsets", group=group)
    assert offsets == {f"{topic}:0": [7, "at 7"]}
    reader.commit({f"{topic}:0": (8, "at 8")})
    assert reader.committed(f"{topic}:0") == {f"{topic}:0": [8, "at 8"]}
