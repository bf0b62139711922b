"""The metadata log as actions on topics, from a snapshot and batches."""

from uuid import UUID

import pytest

from moldau.http.simple_api.topic_actions import TopicActionReader, count_topics
from moldau.metadata.records import PartitionRecord, RemoveTopicRecord, TopicRecord, encode
from moldau.raft.batches import CommittedBatch
from moldau.raft.messages import SnapshotId


def creation(number: int, partitions: int) -> list[bytes]:
    topic_id = UUID(int=number)
    records: list[TopicRecord | PartitionRecord] = [TopicRecord(name=f"topic{number}", topic_id=topic_id)]
    records += [
        PartitionRecord(
            partition_id=index,
            topic_id=topic_id,
            replicas=(2, 1),
            isr=(1,),
            removing_replicas=(),
            adding_replicas=(),
            leader=1,
            leader_epoch=0,
            partition_epoch=0,
            directories=(),
        )
        for index in range(partitions)
    ]
    return [encode(each) for each in records]


def view(reader: TopicActionReader) -> list[tuple[int, int, str, str, int]]:
    """Returns offset, epoch, action, name and number of partitions of each action."""
    return [
        (each.offset, each.epoch, each.action, each.payload["topic_name"], len(each.payload.get("partitions", ())))
        for each in reader.actions()
    ]


@pytest.mark.parametrize("size", [1, 2, 100])
def test_a_snapshot_is_added_in_slices(size: int) -> None:
    values = creation(1, 3) + creation(2, 1)
    reader = TopicActionReader(-1, 100)
    assert count_topics(values) == 2
    reader.start_snapshot(SnapshotId(50, 4), 2)
    for start in range(0, len(values), size):
        reader.add_snapshot_values(values[start : start + size])
    removal = encode(RemoveTopicRecord(topic_id=UUID(int=1)))
    reader.add_batch(CommittedBatch(50, 53, 5, (*creation(3, 2), removal)))
    # A partition that is added later belongs to no creation.
    reader.add_batch(CommittedBatch(54, 54, 5, (creation(3, 3)[-1],)))
    assert view(reader) == [
        (48, 4, "create-topic", "topic1", 3),
        (49, 4, "create-topic", "topic2", 1),
        (50, 5, "create-topic", "topic3", 2),
        (53, 5, "delete-topic", "topic1", 0),
    ]
    assert reader.actions()[0].payload["partitions"][2] == {"id": "topic1-3", "replica_brokers": ["1", "2"]}


def test_a_reader_that_is_full_adds_no_more_actions() -> None:
    reader = TopicActionReader(-1, 2)
    reader.start_snapshot(SnapshotId(10, 1), 3)
    reader.add_snapshot_values(creation(1, 2) + creation(2, 2) + creation(3, 2))
    assert reader.is_full
    assert view(reader) == [(7, 1, "create-topic", "topic1", 2), (8, 1, "create-topic", "topic2", 2)]
    rest = TopicActionReader(8, 2)
    rest.start_snapshot(SnapshotId(10, 1), 3)
    rest.add_snapshot_values(creation(1, 2) + creation(2, 2) + creation(3, 2))
    assert view(rest) == [(9, 1, "create-topic", "topic3", 2)]
