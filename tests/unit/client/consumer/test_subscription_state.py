"""The consumer's subscription state and fetch buffer."""

import re

import pytest

from moldau.client.consumer.completed_fetch import CompletedFetch, FetchBuffer, PartitionFetchError
from moldau.client.consumer.subscription_state import (
    OffsetAndMetadata,
    OffsetResetStrategy,
    SubscriptionState,
    SubscriptionType,
)
from moldau.client.errors import ErrorCode, IllegalStateError, KafkaError, NoOffsetForPartitionError
from moldau.client.record import ConsumerRecord, TopicPartition
from moldau.records.batch import Batch
from moldau.records.batch_builder import build_batch
from moldau.records.record import Record

A, B, C = (TopicPartition("t", index) for index in range(3))


def assigned(
    *partitions: TopicPartition, reset: OffsetResetStrategy = OffsetResetStrategy.EARLIEST
) -> SubscriptionState:
    positions = SubscriptionState(reset)
    positions.set_subscription_type(SubscriptionType.USER_ASSIGNED)
    positions.set_assignment(partitions)
    return positions


def test_a_consumer_reads_one_kind_of_thing_at_a_time() -> None:
    positions = SubscriptionState(OffsetResetStrategy.LATEST)
    positions.subscribe(["b", "a", "b"])
    assert positions.topics == ("a", "b")
    with pytest.raises(IllegalStateError, match="reads topics: unsubscribe"):
        positions.set_subscription_type(SubscriptionType.USER_ASSIGNED)
    with pytest.raises(IllegalStateError, match="switching to a pattern"):
        positions.subscribe_pattern(re.compile("x"))
    positions.unsubscribe()
    positions.set_subscription_type(SubscriptionType.USER_ASSIGNED)
    assert positions.subscription_type is SubscriptionType.USER_ASSIGNED


def test_partitions_that_stay_assigned_keep_position_and_pause() -> None:
    positions = assigned(A, B)
    positions.seek(A, 5)
    positions.pause([A])
    positions.set_assignment([C, A])
    assert positions.assigned == [A, C]
    assert positions.position(A) == 5
    assert positions.paused == [A]
    positions.set_assignment([C])
    positions.set_assignment([A])
    assert positions.position(A) is None
    assert positions.paused == []


def test_a_position_comes_from_the_committed_offset_or_the_reset_strategy() -> None:
    positions = assigned(A, B)
    received = positions.initializing_partitions()
    assert list(received) == [A, B]
    positions.apply_committed(received, {A: OffsetAndMetadata(7, "", 3)})
    assert positions.position(A) == 7
    resets = positions.partitions_needing_reset()
    assert {each: place.reset for each, place in resets.items()} == {B: OffsetResetStrategy.EARLIEST}
    positions.apply_reset_offsets(resets, {B: OffsetAndMetadata(2, "", 1)})
    assert positions.all_consumed() == {A: OffsetAndMetadata(7, "", 3), B: OffsetAndMetadata(2, "", 1)}
    assert positions.initializing_partitions() == positions.partitions_needing_reset() == {}


def test_reset_none_raises_without_an_offset() -> None:
    positions = assigned(A, B, C, reset=OffsetResetStrategy.NONE)
    with pytest.raises(NoOffsetForPartitionError, match="t-1, t-2") as told:
        positions.apply_committed(positions.initializing_partitions(), {A: OffsetAndMetadata(1)})
    assert told.value.partitions == [B, C]
    with pytest.raises(NoOffsetForPartitionError, match="has no offset 1"):
        positions.reset_out_of_range(A)


def test_a_lookup_result_for_an_old_position_is_dropped() -> None:
    positions = assigned(A, B)
    received = positions.initializing_partitions()
    positions.seek(A, 9)
    positions.request_offset_reset(B, OffsetResetStrategy.LATEST)
    positions.apply_committed(received, {A: OffsetAndMetadata(1), B: OffsetAndMetadata(1)})
    assert positions.position(A) == 9
    assert positions.position(B) is None
    received = positions.partitions_needing_reset()
    positions.revoke([B])
    positions.apply_reset_offsets(received, {B: OffsetAndMetadata(4)})
    assert not positions.is_assigned(B)


def test_seeking_keeps_a_pause_and_checks_its_place() -> None:
    positions = assigned(A)
    positions.pause([A])
    positions.seek(A, 1)
    assert positions.is_paused(A)
    with pytest.raises(ValueError, match="no offset -1"):
        positions.seek(A, -1)
    for act in (lambda: positions.seek(B, 1), lambda: positions.position(B), lambda: positions.pause([B])):
        with pytest.raises(IllegalStateError, match="t-1 is not assigned"):
            act()


def batch(first: int, count: int, leader_epoch: int = 1) -> Batch:
    records = [Record(0, 0, None, b"%d" % (first + number)) for number in range(count)]
    return Batch(build_batch(records, base_offset=first, leader_epoch=leader_epoch))


def fetched(
    partition: TopicPartition,
    *batches: Batch,
    position: int | None = None,
    next_offset: int | None = None,
    error: KafkaError | None = None,
    leader_epoch: int = -1,
) -> CompletedFetch:
    start = batches[0].base_offset if position is None else position
    end = batches[-1].next_offset if next_offset is None else next_offset
    return CompletedFetch(partition, start, end, batches, 100, 100, 0, error, leader_epoch=leader_epoch)


class Reader:
    def __init__(self, *news: CompletedFetch) -> None:
        self.at: dict[TopicPartition, int] = {}
        self.paused: list[TopicPartition] = []
        self.buffer = FetchBuffer(lambda each: each in self.paused, self.update_position)
        self.buffer.add(news)

    def update_position(self, partition: TopicPartition, offset: int, leader_epoch: int) -> None:
        self.at[partition] = offset

    def take(self, records_max: int) -> list[tuple[int, int]]:
        taken = self.buffer.take_records(records_max)
        return [(each.partition, each.offset) for each in taken]

    def take_raw(self) -> list[CompletedFetch]:
        return self.buffer.take_batches()


def test_records_are_handed_out_so_many_at_a_time() -> None:
    reader = Reader(fetched(A, batch(0, 3), batch(3, 2)), fetched(B, batch(7, 2)))
    assert reader.take(2) == [(0, 0), (0, 1)]
    assert reader.at == {A: 2}
    assert reader.take(4) == [(0, 2), (0, 3), (0, 4), (1, 7)]
    assert reader.at == {A: 5, B: 8}
    assert reader.take(10) == [(1, 8)]
    assert reader.take(10) == []


def test_a_position_passes_offsets_that_hold_no_records() -> None:
    reader = Reader(fetched(A, position=4, next_offset=9))
    assert reader.take(10) == []
    assert reader.at == {A: 9}


def test_records_before_the_position_are_skipped() -> None:
    assert Reader(fetched(A, batch(0, 5), position=3)).take(10) == [(0, 3), (0, 4)]


def test_paused_fetches_stay_and_dropped_ones_are_removed() -> None:
    reader = Reader(fetched(A, batch(0, 2)), fetched(B, batch(0, 1)))
    reader.paused = [A]
    assert reader.take(10) == [(1, 0)]
    reader.paused = []
    assert reader.take(1) == [(0, 0)]
    reader.buffer.drop([A])
    assert reader.take(10) == []


def test_an_error_is_raised_after_earlier_records_until_the_partition_is_dropped() -> None:
    error = KafkaError(ErrorCode.corrupt_message, "x")
    reader = Reader(fetched(A, batch(0, 2), error=error), fetched(B, batch(0, 1)))
    assert reader.take(10) == [(0, 0), (0, 1), (1, 0)]
    for _ in range(2):
        with pytest.raises(PartitionFetchError, match="t-0") as told:
            reader.take(10)
        assert told.value.error is error
    reader.buffer.add([fetched(B, batch(1, 1))])
    assert reader.take(10) == [(1, 1)]
    reader.paused = [A]
    assert reader.take(10) == []
    reader.buffer.drop([A])
    reader.paused = []
    assert reader.take(10) == []


def test_a_corrupt_batch_stops_its_partition_at_its_offset() -> None:
    """What was fetched behind it must not be handed out as if nothing were missing."""
    failed_partitions = bytearray(batch(2, 2).data)
    failed_partitions[61] = 0xFF
    reader = Reader(fetched(A, batch(0, 2), Batch(failed_partitions)), fetched(A, batch(4, 2)))
    assert reader.take(10) == [(0, 0), (0, 1)]
    assert reader.at == {A: 2}
    with pytest.raises(PartitionFetchError) as told:
        reader.take(10)
    assert told.value.error.code == ErrorCode.corrupt_message
    assert reader.at == {A: 2}


def test_raw_batches_are_returned_whole_from_the_position() -> None:
    reader = Reader(fetched(A, batch(0, 2), batch(2, 2)), fetched(B, batch(0, 1)))
    assert reader.take(3) == [(0, 0), (0, 1), (0, 2)]
    first, second = reader.take_raw()
    assert (first.position, [each.base_offset for each in first.batches]) == (3, [2])
    assert second.partition == B
    assert reader.at == {A: 4, B: 1}
    assert reader.take_raw() == []


def test_records_carry_topic_partition_and_offset() -> None:
    epochs: list[int] = []
    buffer = FetchBuffer(lambda _: False, lambda _, __, epoch: epochs.append(epoch))
    buffer.add([fetched(A, batch(5, 1, leader_epoch=3))])
    [record] = buffer.take_records(1)
    assert record == ConsumerRecord("t", 0, 5, 0, False, None, b"5", (), 3)
    assert epochs == [3]


@pytest.mark.parametrize("is_raw", [False, True])
def test_a_position_has_the_leader_epoch_of_skipped_batches(is_raw: bool) -> None:
    heard: list[tuple[int, ...]] = []
    buffer = FetchBuffer(lambda _: False, lambda _, *at: heard.append(at))
    buffer.add([fetched(A, batch(0, 2, leader_epoch=3), next_offset=4, leader_epoch=5)])
    buffer.take_records(1)
    if is_raw:
        buffer.take_batches()
    else:
        buffer.take_records(10)
    assert heard == [(1, 3), (4, 5)]


def test_a_seek_to_the_committed_offset_has_a_default() -> None:
    positions = assigned(A, B, reset=OffsetResetStrategy.LATEST)
    positions.seek(A, 5)
    positions.pause([A])
    positions.request_committed(A, 3)
    positions.request_committed(B, 4)
    assert positions.position(A) is None
    assert positions.paused == [A]
    positions.apply_committed(positions.initializing_partitions(), {A: OffsetAndMetadata(7)})
    assert (positions.position(A), positions.position(B)) == (7, 4)
