"""The driver's part of a read against a real broker, without Spark: planning, offsets, data loss and commits."""

import asyncio
import json
import logging
from collections.abc import Iterator
from concurrent.futures import wait
from pathlib import Path
from typing import Any

import pytest

from moldau.client.consumer.consumer import Consumer
from moldau.client.errors import RequestTimedOutError
from moldau.client.group.offsets import GroupOffsets
from moldau.client.net.cluster import Cluster
from moldau.client.record import TopicPartition
from moldau.spark.errors import DataLossError, OptionError, SparkSourceError, user_facing_errors
from moldau.spark.loop_thread import event_loop_thread
from moldau.spark.source import offset_committer, partition_catalog
from moldau.spark.source.offset_committer import OffsetCommitter
from moldau.spark.source.offset_ranges import OffsetRange, TriggerLimits
from moldau.spark.source.offsets import StreamPosition
from moldau.spark.source.options import SourceOptions, parse_source_options
from moldau.spark.source.planner import StreamPlanner, plan_batch
from moldau.testing import Broker
from moldau.wire.api_keys import ApiKey
from support.log_writer import LogWriter, ProducedRecord

NO_LIMITS: TriggerLimits | None = None


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(settings={"auto.create.topics.enable": "false"}) as running:
        yield running
        event_loop_thread().close()


@pytest.fixture
def written(broker: Broker) -> LogWriter:
    return LogWriter(broker.bootstrap)


def parsed(written: LogWriter, *, is_stream: bool = False, **options: str) -> SourceOptions:
    given = {
        "kafka.bootstrap.servers": written.bootstrap,
        "kafka.metadata.max.age.ms": "50",
        "fetchOffset.retryIntervalMs": "10",
        **options,
    }
    return parse_source_options(given, is_stream=is_stream)


def planned(written: LogWriter, **options: str) -> list[OffsetRange]:
    options_of_read = parsed(written, **options)
    with user_facing_errors(options_of_read.bootstrap):
        return event_loop_thread().run(plan_batch(options_of_read))


def sizes(ranges: list[OffsetRange]) -> dict[int, tuple[int, int]]:
    return {each.partition: (each.start, each.end) for each in ranges}


def at(topic: str, offsets: dict[int, int]) -> str:
    return json.dumps({topic: {str(partition): offset for partition, offset in offsets.items()}})


# Batches


def test_a_batch_reads_all_partitions_to_their_end(written: LogWriter) -> None:
    topic = written.create(partitions=3)
    written.spread(topic, {0: 5, 2: 2})
    written.delete_records(topic, 3)
    assert sizes(planned(written, subscribe=topic)) == {0: (3, 5), 1: (0, 0), 2: (0, 2)}


def test_a_batch_reads_several_topics_or_assigned_partitions(written: LogWriter) -> None:
    one, other = written.create("one", partitions=2), written.create("other")
    written.spread(one, {0: 1, 1: 2})
    written.spread(other, {0: 3})
    assert [str(each) for each in planned(written, subscribe=f"{one},{other}")] == [
        f"{one}-0 from 0 to 1",
        f"{one}-1 from 0 to 2",
        f"{other}-0 from 0 to 3",
    ]
    assert [str(each) for each in planned(written, assign=json.dumps({one: [1]}))] == [f"{one}-1 from 0 to 2"]


def test_a_pattern_matches_whole_names_and_no_internal_topics(written: LogWriter) -> None:
    name = written.create("fits")
    written.create("fits-not-quite")
    assert {each.topic for each in planned(written, subscribePattern=r"fits-\d+")} == {name}
    assert planned(written, subscribePattern="nothing is called so") == []
    assert not any(each.topic.startswith("__") for each in planned(written, subscribePattern=".*"))


def test_a_missing_topic_is_named_with_a_suggestion(written: LogWriter) -> None:
    topic = written.create("invoices")
    with pytest.raises(SparkSourceError, match=f"there is no topic 'invoces-.*'.*did you mean {topic}"):
        planned(written, subscribe=topic.replace("invoices", "invoces"))
    with pytest.raises(SparkSourceError, match="moldau topic create qqqqqqqq"):
        planned(written, subscribe="qqqqqqqq")


def test_a_missing_partition_is_named(written: LogWriter) -> None:
    topic = written.create(partitions=2)
    with pytest.raises(SparkSourceError, match=f"assign names {topic}-7.* has 2 partitions"):
        planned(written, assign=json.dumps({topic: [0, 7]}))


def test_a_broker_without_a_replica_is_refused(written: LogWriter) -> None:
    topic = written.create()
    refusal = f"replica is 7, and {topic}-0 at {written.bootstrap} has no replica there, but on the brokers 1"
    with pytest.raises(OptionError, match=refusal):
        planned(written, subscribe=topic, replica="7")
    assert len(planned(written, subscribe=topic, replica="1")) == 1


def test_a_stream_from_a_broker_without_a_replica_is_refused(written: LogWriter) -> None:
    topic = written.create()
    planner = StreamPlanner(parsed(written, is_stream=True, subscribe=topic, replica="7"))
    thread = event_loop_thread()
    position = thread.run(planner.initial_position())
    with pytest.raises(OptionError, match=f"{topic}-0 .* has no replica there"):
        thread.run(planner.ranges(position, position))
    thread.run(planner.stop())


def test_a_batch_between_offsets(written: LogWriter) -> None:
    topic = written.create(partitions=2)
    written.spread(topic, {0: 10, 1: 10})
    assert sizes(
        planned(
            written, subscribe=topic, startingOffsets=at(topic, {0: 2, 1: -2}), endingOffsets=at(topic, {0: 7, 1: -1})
        )
    ) == {0: (2, 7), 1: (0, 10)}


def test_explicit_offsets_must_name_all_partitions(written: LogWriter) -> None:
    topic = written.create(partitions=2)
    with pytest.raises(OptionError, match=f"startingOffsets must name every partition.*{topic}-1 is missing"):
        planned(written, subscribe=topic, startingOffsets=at(topic, {0: 0}))


def test_a_batch_between_times(written: LogWriter) -> None:
    topic = written.create(partitions=2, retention_ms="-1")
    written.send(topic, [ProducedRecord(b"", partition=each % 2, timestamp_ms=1000 * each) for each in range(20)])
    assert sizes(planned(written, subscribe=topic, startingTimestamp="4000", endingTimestamp="10000")) == {
        0: (2, 5),
        1: (2, 5),
    }
    assert sizes(
        planned(
            written,
            subscribe=topic,
            startingOffsetsByTimestamp=at(topic, {0: 3999, 1: 5001}),
            endingOffsetsByTimestamp=at(topic, {0: 4001, 1: 99_000}),
        )
    ) == {0: (2, 3), 1: (3, 10)}


def test_a_time_without_a_later_record_fails_or_resolves_to_the_end(written: LogWriter) -> None:
    topic = written.create(retention_ms="-1")
    written.send(topic, [ProducedRecord(b"", timestamp_ms=1000)])
    with pytest.raises(OptionError, match='set startingOffsetsByTimestampStrategy to "latest"'):
        planned(written, subscribe=topic, startingTimestamp="5000")
    late = planned(written, subscribe=topic, startingTimestamp="5000", startingOffsetsByTimestampStrategy="latest")
    assert sizes(late) == {0: (1, 1)}


def test_times_in_reverse_order_read_nothing(written: LogWriter) -> None:
    topic = written.create(retention_ms="-1")
    written.send(topic, [ProducedRecord(b"", timestamp_ms=1000 * each) for each in range(5)])
    (only,) = planned(written, subscribe=topic, startingTimestamp="3000", endingTimestamp="1000")
    assert only.size == 0


def test_offsets_outside_the_log_are_data_loss(written: LogWriter) -> None:
    topic = written.create()
    written.spread(topic, {0: 10})
    written.delete_records(topic, 4)
    with pytest.raises(DataLossError, match=f"{topic}-0 .* from offset 1, but its log starts at 4.*failOnDataLoss"):
        planned(written, subscribe=topic, startingOffsets=at(topic, {0: 1}))
    with pytest.raises(DataLossError, match="up to offset 50, but its log ends at 10"):
        planned(written, subscribe=topic, endingOffsets=at(topic, {0: 50}))


def test_offsets_outside_the_log_are_skipped_if_data_loss_is_allowed(
    written: LogWriter, caplog: pytest.LogCaptureFixture
) -> None:
    topic = written.create()
    written.spread(topic, {0: 10})
    written.delete_records(topic, 4)
    ranges = planned(
        written,
        subscribe=topic,
        startingOffsets=at(topic, {0: 1}),
        endingOffsets=at(topic, {0: 50}),
        failOnDataLoss="false",
    )
    assert sizes(ranges) == {0: (4, 10)}
    assert "its log starts at 4" in caplog.text


def test_an_explicit_start_after_the_end_is_refused(written: LogWriter) -> None:
    topic = written.create()
    written.spread(topic, {0: 3})
    with pytest.raises(OptionError, match="the end is before the start"):
        planned(written, subscribe=topic, startingOffsets=at(topic, {0: 8}))


def test_an_unreachable_broker_is_reported_with_its_address(unused_port: int) -> None:
    nowhere = LogWriter(f"127.0.0.1:{unused_port}")
    with pytest.raises(SparkSourceError, match=f"127.0.0.1:{unused_port}.*Check that a broker is running there"):
        planned(nowhere, subscribe="t", **{"kafka.request.timeout.ms": "300"})


@pytest.fixture
def unused_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_an_invalid_address_is_refused(written: LogWriter) -> None:
    with pytest.raises(OptionError, match="a bootstrap server is host:port, not 'host:port'"):
        planned(written, subscribe="t", **{"kafka.bootstrap.servers": "host:port"})


# Streams


class StreamQuery:
    """A query as Spark drives it: each micro-batch starts where the last one ended."""

    def __init__(self, written: LogWriter, **options: str) -> None:
        self.options = parsed(written, is_stream=True, **options)
        self.planner = StreamPlanner(self.options)

    def initial_position(self) -> StreamPosition:
        return event_loop_thread().run(self.planner.initial_position())

    def next_position(self, start: StreamPosition, limits: TriggerLimits | None = NO_LIMITS) -> StreamPosition:
        return event_loop_thread().run(self.planner.next_position(start, limits))

    def ranges(self, start: StreamPosition, end: StreamPosition) -> dict[int, tuple[int, int]]:
        return sizes(event_loop_thread().run(self.planner.ranges(start, end)))

    def until(self, start: StreamPosition, partitions: int) -> StreamPosition:
        """Polls, because new partitions are found in the background."""

        async def look() -> StreamPosition:
            async with asyncio.timeout(10):
                while len((end := await self.planner.next_position(start, NO_LIMITS)).offsets) < partitions:
                    await asyncio.sleep(0.02)
                return end

        return event_loop_thread().run(look())


def test_a_new_stream_starts_at_the_end_or_at_the_given_offsets(written: LogWriter) -> None:
    topic = written.create(partitions=2)
    written.spread(topic, {0: 5, 1: 3})
    zero, one = TopicPartition(topic, 0), TopicPartition(topic, 1)
    assert StreamQuery(written, subscribe=topic).initial_position().offsets == {zero: 5, one: 3}
    assert StreamQuery(written, subscribe=topic, startingOffsets="earliest").initial_position().offsets == {
        zero: 0,
        one: 0,
    }
    given = at(topic, {0: 2, 1: -1})
    assert StreamQuery(written, subscribe=topic, startingOffsets=given).initial_position().offsets == {zero: 2, one: 3}


def test_a_new_stream_gets_a_generated_group_unless_one_is_set(written: LogWriter) -> None:
    topic = written.create()
    made_up = [
        StreamQuery(written, subscribe=topic, groupIdPrefix="team").initial_position().group or "" for _ in range(2)
    ]
    assert all(group.startswith("team-") for group in made_up)
    assert made_up[0] != made_up[1]
    named = StreamQuery(written, subscribe=topic, **{"kafka.group.id": "named"}).initial_position()
    assert (named.group, named.published_group) == (None, "named")
    unpublished = StreamQuery(written, subscribe=topic, publishOffsets="false").initial_position()
    assert unpublished.group is not None
    assert unpublished.published_group is None


def test_a_stream_cannot_start_outside_the_log_unless_data_loss_is_allowed(written: LogWriter) -> None:
    topic = written.create()
    written.spread(topic, {0: 5})
    beyond = at(topic, {0: 9})
    with pytest.raises(DataLossError, match="from offset 9, but its log has 0 to 5"):
        StreamQuery(written, subscribe=topic, startingOffsets=beyond).initial_position()
    lenient = StreamQuery(written, subscribe=topic, startingOffsets=beyond, failOnDataLoss="false")
    assert lenient.initial_position().offsets == {TopicPartition(topic, 0): 0}


def test_a_micro_batch_ends_at_the_log_end_or_at_the_limit(written: LogWriter) -> None:
    topic = written.create(partitions=2)
    query = StreamQuery(written, subscribe=topic)
    start = query.initial_position()
    assert query.next_position(start) == start
    written.spread(topic, {0: 30, 1: 10})
    zero, one = TopicPartition(topic, 0), TopicPartition(topic, 1)
    assert query.next_position(start, TriggerLimits(offsets_max=20)).offsets == {zero: 15, one: 5}
    assert query.next_position(start).offsets == {zero: 30, one: 10}
    assert query.planner.latest == {zero: 30, one: 10}
    assert query.ranges(start, StreamPosition({zero: 15, one: 5})) == {0: (0, 15), 1: (0, 5)}


def test_a_micro_batch_waits_for_the_minimum_except_the_first(written: LogWriter) -> None:
    topic = written.create()
    limits = TriggerLimits(offsets_min=5)
    query = StreamQuery(written, subscribe=topic)
    start = query.initial_position()
    written.spread(topic, {0: 2})
    first = query.next_position(start, limits)
    assert list(first.offsets.values()) == [2]
    written.spread(topic, {0: 4})
    assert query.next_position(first, limits) == first
    written.spread(topic, {0: 1})
    assert list(query.next_position(first, limits).offsets.values()) == [7]


def test_a_micro_batch_starts_after_the_maximum_delay(written: LogWriter) -> None:
    topic = written.create()
    query = StreamQuery(written, subscribe=topic)
    start = query.next_position(query.initial_position(), TriggerLimits(offsets_min=5))
    written.spread(topic, {0: 1})
    assert list(query.next_position(start, TriggerLimits(offsets_min=5, delay_max_ms=0)).offsets.values()) == [1]


def test_available_now_ends_at_the_initial_log_ends(written: LogWriter) -> None:
    topic = written.create()
    written.spread(topic, {0: 4})
    query = StreamQuery(written, subscribe=topic, startingOffsets="earliest")
    start = query.initial_position()
    event_loop_thread().run(query.planner.fix_end())
    written.spread(topic, {0: 4})
    end = query.next_position(start, TriggerLimits(offsets_min=100))
    assert list(end.offsets.values()) == [4]
    assert query.next_position(end) == end


def test_new_partitions_are_read_from_their_beginning(written: LogWriter) -> None:
    topic = written.create()
    query = StreamQuery(written, subscribe=topic)
    start = query.initial_position()
    written.add_partitions(topic, 2)
    written.spread(topic, {1: 3})
    end = query.until(start, 2)
    assert query.ranges(start, end) == {0: (0, 0), 1: (0, 3)}


def test_new_topics_of_a_pattern_are_read_from_their_beginning(written: LogWriter) -> None:
    query = StreamQuery(written, subscribePattern="comes-later-.*")
    start = query.initial_position()
    assert start.offsets == {}
    topic = written.create("comes-later")
    written.spread(topic, {0: 3})
    written.delete_records(topic, 1)
    end = query.until(start, 1)
    assert end.offsets == {TopicPartition(topic, 0): 3}
    assert query.ranges(start, end) == {0: (1, 3)}


def test_a_limit_counts_new_partitions_from_their_beginning(written: LogWriter) -> None:
    topic = written.create()
    query = StreamQuery(written, subscribe=topic)
    start = query.initial_position()
    written.add_partitions(topic, 2)
    written.spread(topic, {1: 10})
    query.until(start, 2)
    assert query.next_position(start, TriggerLimits(offsets_max=4)).offsets[TopicPartition(topic, 1)] == 4


def test_a_new_partition_without_its_first_records_is_data_loss(written: LogWriter) -> None:
    topic = written.create()
    query = StreamQuery(written, subscribe=topic)
    start = query.initial_position()
    written.add_partitions(topic, 2)
    written.spread(topic, {1: 3})
    written.delete_records(topic, 2, partition=1)
    end = query.until(start, 2)
    with pytest.raises(DataLossError, match=f"{topic}-1 .* is new but already starts at offset 2"):
        query.ranges(start, end)


def test_a_deleted_topic_is_data_loss(written: LogWriter, caplog: pytest.LogCaptureFixture) -> None:
    gone, stays = written.create("gone"), written.create("stays")
    query = StreamQuery(written, subscribe=f"{gone},{stays}")
    lenient = StreamQuery(written, subscribe=f"{gone},{stays}", failOnDataLoss="false")
    start = query.initial_position()
    written.delete(gone)
    with pytest.raises(DataLossError, match=f"{gone}-0 was read before and no longer exists"):
        query.next_position(start)
    with caplog.at_level(logging.WARNING):
        end = lenient.next_position(start)
    assert end.offsets == {TopicPartition(stays, 0): 0}
    assert f"{gone}-0" in caplog.text


def test_a_recreated_topic_is_data_loss_or_read_from_its_beginning(written: LogWriter) -> None:
    topic = written.create()
    written.spread(topic, {0: 3})
    query = StreamQuery(written, subscribe=topic)
    lenient = StreamQuery(written, subscribe=topic, failOnDataLoss="false")
    start = query.initial_position()
    written.delete(topic)
    written.create_named(topic)
    # As many records as before and more, so that offsets alone do not reveal the recreation.
    written.spread(topic, {0: 9})
    event_loop_thread().run(query.planner.fix_end())
    with pytest.raises(DataLossError, match=f"the topic '{topic}' was deleted and recreated since it was read"):
        query.next_position(start)
    event_loop_thread().run(lenient.planner.fix_end())
    end = lenient.next_position(start)
    assert end.offsets == {TopicPartition(topic, 0): 9}
    assert lenient.ranges(start, end) == {0: (0, 9)}
    assert lenient.next_position(end) == end


def test_a_truncated_log_is_data_loss_or_continues_at_its_end(
    written: LogWriter, caplog: pytest.LogCaptureFixture
) -> None:
    topic = written.create()
    written.spread(topic, {0: 20})
    partition = TopicPartition(topic, 0)
    lenient = StreamQuery(written, subscribe=topic, failOnDataLoss="false")
    ids = lenient.initial_position().topic_ids
    start = StreamPosition({partition: 23}, ids)
    with pytest.raises(
        DataLossError, match=f"{topic}-0 was read up to offset 23, but its log ends at 20 now.*continues at 20"
    ):
        StreamQuery(written, subscribe=topic).next_position(start)
    end = lenient.next_position(start, TriggerLimits(offsets_max=4))
    assert end.offsets == {partition: 20}
    assert lenient.ranges(start, end) == {0: (20, 20)}
    assert f"{topic}-0 was read up to offset 23" in caplog.text
    written.spread(topic, {0: 2})
    assert lenient.ranges(end, lenient.next_position(end)) == {0: (20, 22)}


def test_no_micro_batch_is_delayed_after_data_loss(written: LogWriter) -> None:
    """Otherwise records that arrive until then would be below the position, and never be read."""
    topic = written.create(partitions=2)
    written.spread(topic, {0: 2, 1: 2})
    zero, one = TopicPartition(topic, 0), TopicPartition(topic, 1)
    lenient = StreamQuery(written, subscribe=topic, failOnDataLoss="false")
    begun = lenient.next_position(lenient.initial_position())
    end = lenient.next_position(StreamPosition({zero: 9, one: 1}, begun.topic_ids), TriggerLimits(offsets_min=100))
    assert end.offsets == {zero: 2, one: 2}


def test_a_shorter_log_without_topic_ids_is_read_from_its_beginning_within_the_limit(
    written: LogWriter, caplog: pytest.LogCaptureFixture
) -> None:
    topic = written.create(partitions=2)
    written.spread(topic, {0: 8, 1: 1})
    written.delete_records(topic, 2)
    zero, one = TopicPartition(topic, 0), TopicPartition(topic, 1)
    lenient = StreamQuery(written, subscribe=topic, failOnDataLoss="false")
    start = StreamPosition({zero: 9, one: 1})
    end = lenient.next_position(start, TriggerLimits(offsets_max=4))
    assert end.offsets == {zero: 6, one: 1}
    assert lenient.ranges(start, end) == {0: (2, 6), 1: (1, 1)}
    assert StreamQuery(written, subscribe=topic, failOnDataLoss="false").ranges(start, end)[0] == (2, 6)
    assert lenient.next_position(end).offsets == {zero: 8, one: 1}
    assert "is new and already begins" not in caplog.text


def test_a_repeated_micro_batch_skips_a_recreated_topic(written: LogWriter) -> None:
    topic, other = written.create(), written.create()
    written.spread(topic, {0: 3})
    written.spread(other, {0: 1})
    names = f"{topic},{other}"
    query = StreamQuery(written, subscribe=names, startingOffsets="earliest")
    start = query.initial_position()
    end = query.next_position(start)
    written.delete(topic)
    written.create_named(topic)
    written.spread(topic, {0: 9})
    with pytest.raises(DataLossError, match=f"the topic '{topic}' was deleted and recreated since this micro-batch"):
        StreamQuery(written, subscribe=names).ranges(start, end)
    lenient = StreamQuery(written, subscribe=names, failOnDataLoss="false")
    assert event_loop_thread().run(lenient.planner.ranges(start, end)) == [OffsetRange(other, 0, 0, 1)]
    later = lenient.next_position(end)
    assert sorted(event_loop_thread().run(lenient.planner.ranges(end, later))) == sorted(
        [OffsetRange(topic, 0, 0, 9), OffsetRange(other, 0, 1, 1)]
    )


def test_an_unsubscribed_topic_is_reported(written: LogWriter) -> None:
    dropped, stays = written.create("dropped"), written.create("stays")
    start = StreamQuery(written, subscribe=f"{dropped},{stays}").initial_position()
    with pytest.raises(DataLossError, match=f"{dropped}-0 was read before, but subscribe no longer names it"):
        StreamQuery(written, subscribe=stays).next_position(start)
    with pytest.raises(DataLossError, match="subscribePattern no longer names it"):
        StreamQuery(written, subscribePattern="stays.*").next_position(start)
    with pytest.raises(DataLossError, match="assign no longer names it"):
        StreamQuery(written, assign=json.dumps({stays: [0]})).next_position(start)
    lenient = StreamQuery(written, subscribe=stays, failOnDataLoss="false")
    assert lenient.next_position(start).offsets == {TopicPartition(stays, 0): 0}


def slow_offsets(monkeypatch: pytest.MonkeyPatch, needs_ms: int) -> list[int]:
    """Makes brokers slow to respond to ListOffsets, and records their timeouts."""
    given: list[int] = []
    call = Cluster.call

    async def slow(self: Cluster, node: Any, api: ApiKey, tree: Any, **more: Any) -> Any:
        if api is ApiKey.LIST_OFFSETS:
            timeout_ms = more["timeout_ms"]
            given.append(timeout_ms)
            await asyncio.sleep(min(needs_ms, timeout_ms) / 1000)
            if timeout_ms < needs_ms:
                raise RequestTimedOutError(f"no offsets within {timeout_ms} ms")
        return await call(self, node, api, tree, **more)

    monkeypatch.setattr(Cluster, "call", slow)
    return given


def test_list_offsets_is_retried_with_a_longer_timeout(written: LogWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partition_catalog, "_FIRST_ATTEMPT_MS", 40)
    topic = written.create()
    written.spread(topic, {0: 3})
    slow_offsets(monkeypatch, 150)
    assert sizes(planned(written, subscribe=topic)) == {0: (0, 3)}


def test_a_list_offsets_timeout_is_reported_with_its_duration(
    written: LogWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition_catalog, "_FIRST_ATTEMPT_MS", 100)
    topic = written.create()
    given = slow_offsets(monkeypatch, 60_000)
    with pytest.raises(SparkSourceError, match=r"no offsets within \d{3} ms"):
        planned(written, subscribe=topic, **{"kafkaConsumer.pollTimeoutMs": "1000"})
    # 100, 200, and then all remaining time.
    assert max(given) > 400
    assert min(given) > 50


@pytest.mark.parametrize("how", ["subscribe", "subscribePattern"])
def test_topics_are_untracked_when_the_query_ends(written: LogWriter, how: str) -> None:
    topic = written.create()
    options = {how: topic, "kafka.client.id": f"{how}-{topic}"}
    query = StreamQuery(written, **options)
    query.initial_position()
    cluster = event_loop_thread().run(query.planner._catalog.cluster())
    assert (list(cluster._tracked), cluster._track_all_count) != ([], 0)
    event_loop_thread().run(query.planner.stop())
    assert (list(cluster._tracked), cluster._track_all_count) == ([], 0)
    planned(written, **options)
    assert (list(cluster._tracked), cluster._track_all_count) == ([], 0)


def test_metadata_refresh_waits_for_a_restarting_broker(tmp_path: Path) -> None:
    data = {"store": "files", "data.dir": str(tmp_path)}
    with Broker(topics=["t"], settings=data) as before:
        written = LogWriter(before.bootstrap)
        query = StreamQuery(written, subscribe="t", **{"kafka.retry.backoff.max.ms": "50"})
        start = query.initial_position()
    advancing = event_loop_thread().start(query.planner.next_position(start, NO_LIMITS))
    # Long enough for the first attempts to fail.
    assert not wait([advancing], timeout=1.5).done
    with Broker(settings={**data, "listen": written.bootstrap}):
        written.spread("t", {0: 2})
        assert list(advancing.result(30).offsets) == list(start.offsets)
        assert query.next_position(start).offsets == {TopicPartition("t", 0): 2}


# The group


def test_the_start_of_a_micro_batch_is_committed_to_the_group(written: LogWriter) -> None:
    topic = written.create()
    written.spread(topic, {0: 4})
    query = StreamQuery(written, subscribe=topic, **{"kafka.group.id": f"lag-of-{topic}"})
    partition = TopicPartition(topic, 0)
    query.next_position(StreamPosition({partition: 3}))
    event_loop_thread().run(query.planner.stop())
    assert written.committed(f"lag-of-{topic}") == {partition: 3}


def test_the_last_batch_of_available_now_is_committed_before_the_query_ends(written: LogWriter) -> None:
    topic = written.create()
    written.spread(topic, {0: 4})
    query = StreamQuery(written, subscribe=topic, **{"kafka.group.id": f"lag-of-{topic}"})
    event_loop_thread().run(query.planner.fix_end())
    query.next_position(StreamPosition({TopicPartition(topic, 0): 4}))
    assert written.committed(f"lag-of-{topic}") == {TopicPartition(topic, 0): 4}


def test_a_group_with_members_is_a_warning(written: LogWriter, caplog: pytest.LogCaptureFixture) -> None:
    topic = written.create()
    group = f"busy-{topic}"

    async def work() -> None:
        async with Consumer(written.bootstrap, group_id=group) as consumer, Cluster(written.bootstrap) as cluster:
            consumer.subscribe([topic])
            await consumer.poll(1_000)
            committer = OffsetCommitter(cluster, group)
            committer.commit({TopicPartition(topic, 0): 1})
            await committer.drain()
            committer.commit({TopicPartition(topic, 0): 2})
            await committer.drain()

    with caplog.at_level(logging.WARNING):
        asyncio.run(work())
    assert caplog.text.count("the group has active members") == 1
    assert group in caplog.text


def test_newer_offsets_replace_pending_ones(written: LogWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    topic = written.create()
    partition = TopicPartition(topic, 0)
    commits: list[Any] = []

    async def work() -> None:
        async with Cluster(written.bootstrap) as cluster:
            committer = OffsetCommitter(cluster, f"group-{topic}")
            commit = committer._offsets.commit_each

            async def noted(_: GroupOffsets, offsets: Any, *args: Any, **more: Any) -> Any:
                commits.append({each: at.offset for each, at in offsets.items()})
                return await commit(offsets, *args, **more)

            monkeypatch.setattr(GroupOffsets, "commit_each", noted)
            for offset in (1, 2, 3):
                committer.commit({partition: offset})
                await asyncio.sleep(0)
            await committer.drain()
            committer.commit({partition: 3})
            await committer.drain()
            assert commits == [{partition: 1}, {partition: 3}]
            # Brokers expire the offsets of an inactive group.
            monkeypatch.setattr(offset_committer, "RECOMMIT_INTERVAL_S", 0.0)
            committer.commit({partition: 3})
            await committer.drain()

    asyncio.run(work())
    assert commits == [{partition: 1}, {partition: 3}, {partition: 3}]
    assert written.committed(f"group-{topic}") == {partition: 3}
