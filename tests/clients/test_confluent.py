"""confluent-kafka (librdkafka), unchanged: producing and consuming by assignment."""

import time
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    OFFSET_END,
    TIMESTAMP_CREATE_TIME,
    TIMESTAMP_LOG_APPEND_TIME,
    Consumer,
    KafkaError,
    KafkaException,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import OffsetSpec

from support.topics import QUIET, Topics, unique
from support.wire import stored_codec

DEADLINE_S = 20
HOUR_MS = 3_600_000


def producer(bootstrap: str, **settings: Any) -> Producer:
    named = {key.replace("_", "."): value for key, value in settings.items()}
    return Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, **QUIET, **named})


def consumer(bootstrap: str, on_error: Callable[[KafkaError], None] | None = None, **settings: Any) -> Consumer:
    named = {key.replace("_", "."): value for key, value in settings.items()}
    if on_error is not None:
        named["error_cb"] = on_error
    base = {"bootstrap.servers": bootstrap, "group.id": "unused", "enable.auto.commit": False, **QUIET}
    return Consumer({**base, **named})


def send(sender: Producer, topic: str, values: list[bytes | None], **more: Any) -> list[Message]:
    """Produces and waits for every delivery; the messages as acknowledged, in order of acknowledgement."""
    delivered: list[Message] = []

    def report(error: KafkaError | None, message: Message) -> None:
        assert error is None, error
        delivered.append(message)

    for value in values:
        sender.produce(topic, value, on_delivery=report, **more)
    assert sender.flush(DEADLINE_S) == 0
    return delivered


def failure(sender: Producer, topic: str, value: bytes | None, **more: Any) -> KafkaError:
    """Produces one record that must fail; how it failed."""
    errors: list[KafkaError | None] = []
    sender.produce(topic, value, on_delivery=lambda error, _: errors.append(error), **more)
    assert sender.flush(DEADLINE_S) == 0
    (error,) = errors
    assert error is not None, "the record was accepted"
    return error


def read(receiver: Consumer, count: int) -> list[Message]:
    messages: list[Message] = []
    deadline = time.monotonic() + DEADLINE_S
    while len(messages) < count:
        assert time.monotonic() < deadline, f"{len(messages)} of {count} records came"
        for message in receiver.consume(count - len(messages), timeout=0.1):
            assert message.error() is None, message.error()
            messages.append(message)
    return messages


def read_from(
    bootstrap: str, topic: str, count: int, offset: int = OFFSET_BEGINNING, partition: int = 0
) -> list[Message]:
    receiver = consumer(bootstrap)
    try:
        receiver.assign([TopicPartition(topic, partition, offset)])
        return read(receiver, count)
    finally:
        receiver.close()


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_records_of_every_compression_are_read(bootstrap: str, topics: Topics, codec: str) -> None:
    topic = topics.create()
    values = [b"%d " % number * 200 for number in range(300)]
    sent = send(producer(bootstrap, compression_type=codec), topic, list(values))
    assert [message.offset() for message in sent] == list(range(300))
    assert [message.value() for message in read_from(bootstrap, topic, 300)] == values
    assert stored_codec(bootstrap, topic) == codec


def test_keys_headers_timestamps_and_null_values_round_trip(bootstrap: str, topics: Topics) -> None:
    topic = topics.create()
    headers = [("trace", b"\x00\xff"), ("empty", b""), ("null", None), ("trace", b"again")]
    now = int(time.time() * 1000)
    sender = producer(bootstrap)
    send(sender, topic, [b"value"], key=b"key", headers=headers, timestamp=now)
    send(sender, topic, [None], key=b"tombstone", timestamp=now + 1)
    send(sender, topic, [b""], key=b"", timestamp=now + 2)
    send(sender, topic, ["čau Vltavo".encode()], timestamp=now + 3)
    full, tombstone, empty, keyless = read_from(bootstrap, topic, 4)
    assert (full.key(), full.value(), full.headers()) == (b"key", b"value", headers)
    assert full.timestamp() == (TIMESTAMP_CREATE_TIME, now)
    assert (tombstone.key(), tombstone.value(), tombstone.headers()) == (b"tombstone", None, None)
    assert (empty.key(), empty.value()) == (b"", b"")
    assert (keyless.key(), keyless.value().decode()) == (None, "čau Vltavo")
    assert [message.offset() for message in (full, tombstone, empty, keyless)] == [0, 1, 2, 3]


@pytest.mark.parametrize("acks", ["1", "all"])
def test_acknowledged_records_carry_their_offsets(bootstrap: str, topics: Topics, acks: str) -> None:
    topic = topics.create()
    sent = send(producer(bootstrap, acks=acks, enable_idempotence=False), topic, [b"a", b"b", b"c"])
    assert [message.offset() for message in sent] == [0, 1, 2]


def test_records_sent_without_acknowledgement_arrive(bootstrap: str, topics: Topics) -> None:
    topic = topics.create()
    send(producer(bootstrap, acks="0", enable_idempotence=False), topic, [b"a", b"b", b"c"])
    assert [message.value() for message in read_from(bootstrap, topic, 3)] == [b"a", b"b", b"c"]


def test_an_idempotent_producer_keeps_order_with_many_batches_in_flight(bootstrap: str, topics: Topics) -> None:
    topic = topics.create()
    sender = producer(bootstrap, enable_idempotence=True, linger_ms=0, batch_num_messages=7)
    values = [b"%d" % number for number in range(2000)]
    sent = send(sender, topic, list(values))
    assert [message.value() for message in sent] == values
    assert [message.value() for message in read_from(bootstrap, topic, 2000)] == values


def test_consuming_starts_at_the_given_position(bootstrap: str, topics: Topics) -> None:
    topic = topics.create()
    send(producer(bootstrap), topic, [b"%d" % number for number in range(10)])
    assert [message.offset() for message in read_from(bootstrap, topic, 3, offset=7)] == [7, 8, 9]

    receiver = consumer(bootstrap)
    receiver.assign([TopicPartition(topic, 0, 9)])
    assert [message.offset() for message in read(receiver, 1)] == [9]
    receiver.seek(TopicPartition(topic, 0, 2))
    assert [message.offset() for message in read(receiver, 2)] == [2, 3]
    receiver.assign([TopicPartition(topic, 0, OFFSET_END)])
    assert receiver.poll(0.5) is None
    # On a busy machine the consumer may look up the end only now, so later records have to follow.
    deadline = time.monotonic() + DEADLINE_S
    while (message := receiver.poll(1)) is None:
        assert time.monotonic() < deadline
        send(producer(bootstrap), topic, [b"new"])
    assert message.value() == b"new"
    receiver.close()


def test_offsets_are_found_by_timestamp(bootstrap: str, topics: Topics) -> None:
    topic = topics.create()
    sender = producer(bootstrap)
    start = int(time.time() * 1000) - HOUR_MS
    for number in range(10):
        send(sender, topic, [b"%d" % number], timestamp=start + number * 1000)
    receiver = consumer(bootstrap)

    def found(timestamp: int) -> int:
        (answer,) = receiver.offsets_for_times([TopicPartition(topic, 0, timestamp)], timeout=DEADLINE_S)
        assert answer.error is None
        return answer.offset

    assert found(0) == 0
    assert found(start + 3000) == 3
    assert found(start + 3001) == 4
    assert found(start + 9001) == OFFSET_END
    assert receiver.get_watermark_offsets(TopicPartition(topic, 0), timeout=DEADLINE_S) == (0, 10)
    receiver.close()


def test_offsets_are_listed_by_the_admin_client(bootstrap: str, topics: Topics) -> None:
    topic = topics.create()
    sender = producer(bootstrap)
    now = int(time.time() * 1000) - HOUR_MS
    for offset, timestamp in enumerate([now, now + 5000, now + 1000]):
        assert send(sender, topic, [b"x"], timestamp=timestamp)[0].offset() == offset
    partition = TopicPartition(topic, 0)
    answers = [
        topics.admin.list_offsets({partition: wanted})[partition].result(DEADLINE_S)
        for wanted in (OffsetSpec.earliest(), OffsetSpec.latest(), OffsetSpec.max_timestamp())
    ]
    assert [answer.offset for answer in answers] == [0, 3, 1]
    assert answers[2].timestamp == now + 5000


def test_the_end_of_a_partition_is_reported(bootstrap: str, topics: Topics) -> None:
    topic = topics.create()
    send(producer(bootstrap), topic, [b"only"])
    receiver = consumer(bootstrap, enable_partition_eof=True)
    receiver.assign([TopicPartition(topic, 0, 0)])
    assert read(receiver, 1)[0].value() == b"only"
    end = receiver.poll(DEADLINE_S)
    assert end is not None
    assert end.error().code() == KafkaError._PARTITION_EOF
    assert end.offset() == 1
    receiver.close()


def test_an_offset_out_of_range_is_an_error_or_a_reset(bootstrap: str, topics: Topics) -> None:
    topic = topics.create()
    send(producer(bootstrap), topic, [b"only"])
    receiver = consumer(bootstrap, auto_offset_reset="error")
    receiver.assign([TopicPartition(topic, 0, 77)])
    message = receiver.poll(DEADLINE_S)
    assert message is not None
    assert message.error().code() == KafkaError._AUTO_OFFSET_RESET
    receiver.close()
    receiver = consumer(bootstrap, auto_offset_reset="earliest")
    receiver.assign([TopicPartition(topic, 0, 77)])
    assert read(receiver, 1)[0].offset() == 0
    receiver.close()


def test_assignment_works_without_a_group_coordinator(bootstrap: str, topics: Topics) -> None:
    """The constructor asks for a group.id, but a consumer that assigns and never commits needs no coordinator:
    it must read on quietly where none is served."""
    topic = topics.create()
    send(producer(bootstrap), topic, [b"a"])
    errors: list[KafkaError] = []
    receiver = consumer(bootstrap, on_error=errors.append)
    receiver.assign([TopicPartition(topic, 0, 0)])
    assert read(receiver, 1)[0].value() == b"a"
    for _ in range(5):
        assert receiver.poll(0.2) is None
    send(producer(bootstrap), topic, [b"b"])
    assert read(receiver, 1)[0].value() == b"b"
    assert errors == []
    receiver.close()


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_large_messages_round_trip(bootstrap: str, topics: Topics, codec: str) -> None:
    topic = topics.create(max_message_bytes=12_000_000)
    value = bytes(range(256)) * 40_000
    sender = producer(bootstrap, message_max_bytes=11_000_000, compression_type=codec)
    send(sender, topic, [value, b"small", value])
    receiver = consumer(bootstrap, fetch_message_max_bytes=1_000_000)
    receiver.assign([TopicPartition(topic, 0, 0)])
    assert [message.value() == value for message in read(receiver, 3)] == [True, False, True]
    receiver.close()


def test_a_message_above_max_message_bytes_is_rejected(bootstrap: str, topics: Topics) -> None:
    topic = topics.create(max_message_bytes=10_000)
    sender = producer(bootstrap)
    assert failure(sender, topic, bytes(20_000)).code() == KafkaError.MSG_SIZE_TOO_LARGE
    assert send(sender, topic, [b"small"])[0].offset() == 0


def test_an_unknown_topic_is_an_error_where_creation_is_not_allowed(bootstrap: str) -> None:
    topic = unique("missing")
    receiver = consumer(bootstrap, allow_auto_create_topics=False)
    for _ in range(2):
        error = receiver.list_topics(topic, DEADLINE_S).topics[topic].error
        assert error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART
    receiver.close()


def test_an_unknown_partition_is_an_error(bootstrap: str, topics: Topics) -> None:
    topic = topics.create(partitions=2)
    error = failure(producer(bootstrap, message_timeout_ms=5000), topic, b"x", partition=5)
    assert error.code() == KafkaError._UNKNOWN_PARTITION


def test_producing_to_an_unknown_topic_creates_it(bootstrap: str, topics: Topics) -> None:
    topic = unique("created-by-producing")
    assert send(producer(bootstrap), topic, [b"first"])[0].offset() == 0
    assert topic in topics.admin.list_topics(timeout=DEADLINE_S).topics


def test_a_producer_may_not_create_topics_with_illegal_names(bootstrap: str) -> None:
    error = failure(producer(bootstrap, message_timeout_ms=5000), "no spaces!", b"x")
    assert error.code() in (KafkaError.TOPIC_EXCEPTION, KafkaError._UNKNOWN_TOPIC)


def test_many_partitions_keep_their_own_offsets(bootstrap: str, topics: Topics) -> None:
    count = 64
    topic = topics.create(partitions=count)
    sender = producer(bootstrap)
    sent: list[Message] = []
    for number in range(count * 5):
        sender.produce(topic, b"%d" % number, partition=number % count, on_delivery=lambda _, m: sent.append(m))
    assert sender.flush(DEADLINE_S) == 0
    assert sorted((m.partition(), m.offset()) for m in sent) == [(p, o) for p in range(count) for o in range(5)]
    receiver = consumer(bootstrap)
    receiver.assign([TopicPartition(topic, partition, 0) for partition in range(count)])
    seen = read(receiver, count * 5)
    assert sorted((m.partition(), m.offset()) for m in seen) == [(p, o) for p in range(count) for o in range(5)]
    assert all(int(m.value()) % count == m.partition() for m in seen)
    receiver.close()


def test_records_of_a_log_append_time_topic_carry_the_brokers_time(bootstrap: str, topics: Topics) -> None:
    topic = topics.create(message_timestamp_type="LogAppendTime")
    before = int(time.time() * 1000)
    send(producer(bootstrap, compression_type="lz4"), topic, [b"a", b"b"], timestamp=before - HOUR_MS)
    after = int(time.time() * 1000)
    for message in read_from(bootstrap, topic, 2):
        kind, timestamp = message.timestamp()
        assert kind == TIMESTAMP_LOG_APPEND_TIME
        assert before <= timestamp <= after


@pytest.mark.parametrize("codec", ["none", "snappy"])
def test_a_compacted_topic_rejects_records_without_a_key(bootstrap: str, topics: Topics, codec: str) -> None:
    topic = topics.create(cleanup_policy="compact")
    sender = producer(bootstrap, compression_type=codec)
    assert failure(sender, topic, b"keyless").code() == KafkaError.INVALID_RECORD
    sender = producer(bootstrap, compression_type=codec)
    assert send(sender, topic, [b"keyed"], key=b"key")[0].offset() == 0


@pytest.mark.parametrize("stored", ["uncompressed", "gzip", "snappy", "lz4", "zstd"])
def test_a_topic_may_choose_its_own_compression(bootstrap: str, topics: Topics, stored: str) -> None:
    topic = topics.create(compression_type=stored)
    values = [b"%d" % number * 100 for number in range(50)]
    send(producer(bootstrap, compression_type="gzip"), topic, list(values), headers=[("h", b"v")])
    back = read_from(bootstrap, topic, 50)
    assert [message.value() for message in back] == values
    assert all(message.headers() == [("h", b"v")] for message in back)
    assert stored_codec(bootstrap, topic) == stored.replace("uncompressed", "none")


def test_a_timestamp_far_in_the_future_is_rejected(bootstrap: str, topics: Topics) -> None:
    topic = topics.create()
    error = failure(producer(bootstrap), topic, b"x", timestamp=int(time.time() * 1000) + 48 * HOUR_MS)
    assert error.code() == KafkaError.INVALID_TIMESTAMP


def test_a_transactional_producer_fences_its_predecessor(bootstrap: str) -> None:
    transactional_id = unique("tx")
    first, second = (producer(bootstrap, transactional_id=transactional_id) for _ in range(2))
    for sender in (first, second):
        sender.init_transactions(10)
        sender.begin_transaction()
        sender.abort_transaction(10)
    for sender in (second, first):
        sender.begin_transaction()
    reader = Consumer({"bootstrap.servers": bootstrap, "group.id": unique("group"), **QUIET})
    with pytest.raises(KafkaException) as fenced:
        first.send_offsets_to_transaction([TopicPartition("orders", 0, 5)], reader.consumer_group_metadata(), 10)
    reader.close()
    assert fenced.value.args[0].code() == KafkaError._FENCED
    second.commit_transaction(10)
