"""kafka-python, unchanged: producing, consuming by assignment, and its admin client."""

import time
from collections.abc import Iterator
from typing import Any

import kafka.codec
import kafka.errors as errors
import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType

from support.topics import Topics, unique, wait_for_external_broker
from support.wire import stored_codec

DEADLINE_S = 20
HOUR_MS = 3_600_000
PACKAGES = {"gzip": "zlib", "snappy": "python-snappy", "lz4": "lz4", "zstd": "zstandard"}


@pytest.fixture
def admin(bootstrap: str) -> Iterator[KafkaAdminClient]:
    client = KafkaAdminClient(bootstrap_servers=bootstrap)
    yield client
    client.close()


def send(
    bootstrap: str, topic: str, values: list[bytes | None], more: dict[str, Any] | None = None, **settings: Any
) -> list[Any]:
    """Produces and waits for every acknowledgement; where the records went, in the order sent."""
    producer = KafkaProducer(bootstrap_servers=bootstrap, **settings)
    try:
        waiting = [producer.send(topic, value, **(more or {})) for value in values]
        return [future.get(DEADLINE_S) for future in waiting]
    finally:
        producer.close()


def read(consumer: KafkaConsumer, count: int) -> list[Any]:
    records: list[Any] = []
    deadline = time.monotonic() + DEADLINE_S
    while len(records) < count:
        assert time.monotonic() < deadline, f"{len(records)} of {count} records came"
        for batch in consumer.poll(timeout_ms=200, max_records=count - len(records)).values():
            records += batch
    return records


@pytest.fixture
def consumer(bootstrap: str) -> Iterator[KafkaConsumer]:
    client = KafkaConsumer(bootstrap_servers=bootstrap, group_id=None, auto_offset_reset="earliest")
    yield client
    client.close()


@pytest.mark.parametrize("codec", [None, "gzip", "snappy", "lz4", "zstd"])
def test_records_of_every_compression_are_read(
    bootstrap: str, topics: Topics, consumer: KafkaConsumer, codec: str | None
) -> None:
    if codec is not None and not getattr(kafka.codec, f"has_{codec}")():
        pytest.skip(f"kafka-python needs the package {PACKAGES[codec]} for {codec}")
    topic = topics.create()
    values = [b"%d " % number * 100 for number in range(200)]
    sent = send(bootstrap, topic, list(values), compression_type=codec, linger_ms=5)
    assert [each.offset for each in sent] == list(range(200))
    consumer.assign([TopicPartition(topic, 0)])
    assert [record.value for record in read(consumer, 200)] == values
    assert stored_codec(bootstrap, topic) == (codec or "none")


def test_keys_headers_timestamps_and_null_values_round_trip(
    bootstrap: str, topics: Topics, consumer: KafkaConsumer
) -> None:
    topic = topics.create()
    headers = [("trace", b"\x00\xff"), ("empty", b""), ("trace", b"again")]
    now = int(time.time() * 1000)
    send(bootstrap, topic, [b"value"], {"key": b"key", "headers": headers, "timestamp_ms": now})
    send(bootstrap, topic, [None], {"key": b"tombstone"})
    consumer.assign([TopicPartition(topic, 0)])
    full, tombstone = read(consumer, 2)
    assert (full.key, full.value, list(full.headers)) == (b"key", b"value", headers)
    assert (full.timestamp, full.timestamp_type) == (now, 0)
    assert (tombstone.key, tombstone.value) == (b"tombstone", None)


@pytest.mark.parametrize("acks", [1, "all"])
@pytest.mark.parametrize("idempotent", [True, False])
def test_acknowledged_records_carry_their_offsets(
    bootstrap: str, topics: Topics, acks: int | str, idempotent: bool
) -> None:
    if idempotent and acks != "all":
        pytest.skip("an idempotent producer needs acks=all")
    sent = send(bootstrap, topics.create(), [b"a", b"b"], acks=acks, enable_idempotence=idempotent)
    assert [each.offset for each in sent] == [0, 1]


def test_records_sent_without_acknowledgement_arrive(bootstrap: str, topics: Topics, consumer: KafkaConsumer) -> None:
    topic = topics.create()
    send(bootstrap, topic, [b"a", b"b"], acks=0, enable_idempotence=False)
    consumer.assign([TopicPartition(topic, 0)])
    assert [record.value for record in read(consumer, 2)] == [b"a", b"b"]


def test_consuming_starts_at_the_given_position(bootstrap: str, topics: Topics, consumer: KafkaConsumer) -> None:
    topic = topics.create()
    send(bootstrap, topic, [b"%d" % number for number in range(10)])
    partition = TopicPartition(topic, 0)
    consumer.assign([partition])
    consumer.seek(partition, 7)
    assert [record.offset for record in read(consumer, 3)] == [7, 8, 9]
    assert consumer.position(partition) == 10
    consumer.seek_to_beginning(partition)
    assert [record.offset for record in read(consumer, 2)] == [0, 1]
    consumer.seek_to_end(partition)
    assert consumer.position(partition) == 10
    assert consumer.beginning_offsets([partition]) == {partition: 0}
    assert consumer.end_offsets([partition]) == {partition: 10}
    assert consumer.partitions_for_topic(topic) == {0}
    assert topic in consumer.topics()


def test_offsets_are_found_by_timestamp(bootstrap: str, topics: Topics, consumer: KafkaConsumer) -> None:
    topic = topics.create()
    start = int(time.time() * 1000) - HOUR_MS
    for number in range(5):
        send(bootstrap, topic, [b"x"], {"timestamp_ms": start + number * 1000})
    partition = TopicPartition(topic, 0)
    found = consumer.offsets_for_times({partition: start + 2500})[partition]
    assert (found.offset, found.timestamp) == (3, start + 3000)
    assert consumer.offsets_for_times({partition: start + HOUR_MS})[partition] is None


def test_an_offset_out_of_range_is_an_error_where_no_reset_is_set(bootstrap: str, topics: Topics) -> None:
    topic = topics.create()
    send(bootstrap, topic, [b"only"])
    partition = TopicPartition(topic, 0)
    strict = KafkaConsumer(bootstrap_servers=bootstrap, group_id=None, auto_offset_reset="none")
    strict.assign([partition])
    strict.seek(partition, 77)
    with pytest.raises(errors.OffsetOutOfRangeError):
        read(strict, 1)
    strict.close()


def test_a_message_above_max_message_bytes_is_rejected(bootstrap: str, topics: Topics) -> None:
    topic = topics.create(max_message_bytes=10_000)
    with pytest.raises(errors.MessageSizeTooLargeError):
        send(bootstrap, topic, [bytes(20_000)])
    assert send(bootstrap, topic, [b"small"])[0].offset == 0


def test_large_messages_round_trip(bootstrap: str, topics: Topics) -> None:
    topic = topics.create(max_message_bytes=12_000_000)
    value = bytes(range(256)) * 40_000
    send(bootstrap, topic, [value], max_request_size=11_000_000)
    receiver = KafkaConsumer(bootstrap_servers=bootstrap, group_id=None, auto_offset_reset="earliest")
    receiver.assign([TopicPartition(topic, 0)])
    assert read(receiver, 1)[0].value == value
    receiver.close()


def test_producing_to_an_unknown_topic_creates_it(bootstrap: str, admin: KafkaAdminClient) -> None:
    topic = unique("created-by-producing")
    assert send(bootstrap, topic, [b"first"])[0].offset == 0
    assert topic in admin.list_topics()


def test_a_compacted_topic_rejects_records_without_a_key(bootstrap: str, topics: Topics) -> None:
    with pytest.raises(errors.KafkaError) as refused:
        send(bootstrap, topics.create(cleanup_policy="compact"), [b"keyless"])
    assert refused.value.errno == 87


def test_records_of_a_log_append_time_topic_carry_the_brokers_time(
    bootstrap: str, topics: Topics, consumer: KafkaConsumer
) -> None:
    topic = topics.create(message_timestamp_type="LogAppendTime")
    before = int(time.time() * 1000)
    (sent,) = send(bootstrap, topic, [b"a"], {"timestamp_ms": before - HOUR_MS})
    consumer.assign([TopicPartition(topic, 0)])
    (record,) = read(consumer, 1)
    assert record.timestamp_type == 1
    assert before <= record.timestamp <= int(time.time() * 1000)
    assert sent.timestamp == record.timestamp


def test_a_topic_is_created_described_altered_and_deleted(topics: Topics, admin: KafkaAdminClient) -> None:
    name = unique()
    admin.create_topics({name: {"num_partitions": 2, "configs": {"retention.ms": "5000"}}})
    wait_for_external_broker()
    (described,) = admin.describe_topics([name])
    assert described["error_code"] == 0
    assert sorted(partition["partition_index"] for partition in described["partitions"]) == [0, 1]

    def value(key: str) -> str:
        resource = ConfigResource(ConfigResourceType.TOPIC, name, [key])
        found: str = admin.describe_configs([resource], config_filter="all")["topic"][name][key]["value"]
        return found

    assert value("retention.ms") == "5000"
    for incremental, wanted in ((True, "6000"), (False, "7000")):
        change = ConfigResource(ConfigResourceType.TOPIC, name, {"retention.ms": wanted})
        assert admin.alter_configs([change], incremental=incremental) == {"topic": {name: "OK"}}
        wait_for_external_broker()
        assert value("retention.ms") == wanted
    reset = ConfigResource(ConfigResourceType.TOPIC, name, {"retention.ms": None})
    assert admin.reset_configs([reset]) == {"topic": {name: "OK"}}
    wait_for_external_broker()
    assert value("retention.ms") == "604800000"

    admin.create_partitions({name: 4})
    wait_for_external_broker()
    assert len(admin.describe_topics([name])[0]["partitions"]) == 4
    admin.delete_topics([name])
    wait_for_external_broker()
    assert name not in admin.list_topics()
    with pytest.raises(errors.UnknownTopicOrPartitionError):
        admin.delete_topics([name])


def test_topics_that_cannot_be_created_are_rejected_by_name(topics: Topics, admin: KafkaAdminClient) -> None:
    with pytest.raises(errors.TopicAlreadyExistsError):
        admin.create_topics([topics.create()])
    with pytest.raises(errors.InvalidTopicError):
        admin.create_topics(["no spaces!"])
    with pytest.raises(errors.InvalidPartitionsError):
        admin.create_topics({unique(): {"num_partitions": 0}})
    with pytest.raises(errors.InvalidReplicationFactorError):
        admin.create_topics({unique(): {"num_partitions": 1, "replication_factor": 5}})
    with pytest.raises(errors.InvalidConfigurationError):
        admin.create_topics({unique(): {"configs": {"retention.ms": "soon"}}})


def test_the_cluster_is_described(bootstrap: str, admin: KafkaAdminClient) -> None:
    cluster = admin.describe_cluster()
    (broker,) = cluster["brokers"]
    assert f"{broker['host']}:{broker['port']}" == bootstrap
    assert cluster["controller_id"] == broker["broker_id"]
    assert len(cluster["cluster_id"]) == 22


def test_partitions_are_described_with_their_replicas(topics: Topics, admin: KafkaAdminClient) -> None:
    name = topics.create(partitions=3)
    answer = admin.describe_topic_partitions([name])
    (topic,) = answer["topics"]
    assert [partition["partition_index"] for partition in topic["partitions"]] == [0, 1, 2]
    assert all(partition["replica_nodes"] == partition["isr_nodes"] for partition in topic["partitions"])


def test_log_dirs_name_the_partitions_and_their_sizes(bootstrap: str, topics: Topics, admin: KafkaAdminClient) -> None:
    name = topics.create(partitions=2)
    send(bootstrap, name, [bytes(1000)], {"partition": 1})
    (broker,) = admin.describe_log_dirs([name])
    (directory,) = broker["log_dirs"]
    assert directory["error_code"] == 0
    # -1 says unknown, as for a store in memory.
    assert directory["total_bytes"] != 0
    (topic,) = directory["topics"]
    sizes = {partition["partition_index"]: partition["partition_size"] for partition in topic["partitions"]}
    assert sizes[0] == 0
    assert 1000 < sizes[1] < 1200


def test_active_producers_are_described(bootstrap: str, topics: Topics, admin: KafkaAdminClient) -> None:
    name = topics.create()
    partition = TopicPartition(name, 0)
    assert admin.describe_producers([partition])[partition].active_producers == []
    send(bootstrap, name, [b"a"], enable_idempotence=True)
    (producer,) = admin.describe_producers([partition])[partition].active_producers
    assert producer.last_sequence == 0


def test_config_resources_are_listed(topics: Topics, admin: KafkaAdminClient) -> None:
    name = topics.create()
    assert name in admin.list_config_resources(["TOPIC"])["topic"]
    assert set(admin.list_config_resources(["BROKER"])) == {"broker"}


def test_records_are_deleted_up_to_an_offset(
    bootstrap: str, topics: Topics, admin: KafkaAdminClient, consumer: KafkaConsumer
) -> None:
    name = topics.create()
    send(bootstrap, name, [b"%d" % number for number in range(5)])
    partition = TopicPartition(name, 0)
    admin.delete_records({partition: 3})
    assert consumer.beginning_offsets([partition]) == {partition: 3}
    with pytest.raises(errors.OffsetOutOfRangeError):
        admin.delete_records({partition: 100})


def test_a_transactional_producer_starts(bootstrap: str) -> None:
    producer = KafkaProducer(bootstrap_servers=bootstrap, transactional_id=unique("tx"), max_block_ms=20_000)
    producer.init_transactions()
    for end in (producer.commit_transaction, producer.abort_transaction):
        producer.begin_transaction()
        end()
    producer.close()


def test_an_admin_lists_and_describes_transactions(bootstrap: str) -> None:
    transactional_id = unique("tx")
    producer = KafkaProducer(bootstrap_servers=bootstrap, transactional_id=transactional_id, max_block_ms=20_000)
    producer.init_transactions()
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    assert transactional_id in str(admin.list_transactions())
    assert "Empty" in str(admin.describe_transactions([transactional_id]))
    admin.close()
    producer.close()
