"""The metadata log as actions on topics: creations and deletions. Pure.

Topics that were created before the log starts are in its snapshot. Their offsets are the last ones before the log, so
that a client can read on after any of them.
"""

from collections.abc import Iterable
from typing import Any
from uuid import UUID

from pydantic import BaseModel

from moldau.controller.topic_names import is_internal
from moldau.metadata.records import PartitionRecord, RemoveTopicRecord, TopicRecord, decode
from moldau.raft.batches import CommittedBatch
from moldau.raft.messages import SnapshotId

CREATE, DELETE = "create-topic", "delete-topic"
_API_KEYS = frozenset(kind.__api_key__ for kind in (TopicRecord, PartitionRecord, RemoveTopicRecord))
_API_KEY_POSITION = 1


class TopicAction(BaseModel):
    offset: int
    epoch: int
    action: str
    payload: dict[str, Any]


class TopicActionReader:
    """Collects up to `count_max` actions with offsets above `last_offset`."""

    def __init__(self, last_offset: int, count_max: int) -> None:
        self._last_offset = last_offset
        self._count_max = count_max
        self._names: dict[UUID, str] = {}
        """The topics that exist at the current position of the log."""
        self._creations: dict[UUID, TopicAction] = {}
        """The creations to which partitions can still be added. All records of a creation are in one batch, or in the
        snapshot. Partitions that are added later belong to no action."""
        self._snapshot_offset = self._snapshot_epoch = 0
        """The offset of the next topic in the snapshot, and the epoch of all of them."""
        self._actions: list[TopicAction] = []

    @property
    def is_full(self) -> bool:
        return len(self._actions) >= self._count_max

    def actions(self) -> list[TopicAction]:
        return self._actions

    def start_snapshot(self, snapshot: SnapshotId, topic_count: int) -> None:
        """Prepares for the values of a snapshot, which are added before the log."""
        self._creations = {}
        self._snapshot_offset, self._snapshot_epoch = snapshot.end_offset - topic_count, snapshot.epoch

    def add_snapshot_values(self, values: Iterable[bytes]) -> None:
        for value in values:
            self._snapshot_offset += self._add(value, self._snapshot_offset, self._snapshot_epoch)

    def add_batch(self, batch: CommittedBatch) -> None:
        self._creations = {}
        for index, value in enumerate(batch.values):
            self._add(value, batch.base_offset + index, batch.epoch)

    def _add(self, value: bytes, offset: int, epoch: int) -> bool:
        """Adds one record. Returns whether it creates a topic."""
        if value[_API_KEY_POSITION] not in _API_KEYS:
            return False
        match decode(value):
            case TopicRecord() as record:
                self._names[record.topic_id] = record.name
                payload = {"topic_name": record.name, "partitions": []}
                action = TopicAction(offset=offset, epoch=epoch, action=CREATE, payload=payload)
                if self._append(record.name, action):
                    self._creations[record.topic_id] = action
                return True
            case PartitionRecord() as record if record.topic_id in self._creations:
                action = self._creations[record.topic_id]
                action.payload["partitions"].append(
                    {
                        "id": f"{action.payload['topic_name']}-{record.partition_id + 1}",
                        "replica_brokers": [str(each) for each in sorted(record.replicas)],
                    }
                )
            case RemoveTopicRecord() as record:
                name = self._names.pop(record.topic_id, None)
                if name is not None:
                    payload = {"topic_name": name}
                    self._append(name, TopicAction(offset=offset, epoch=epoch, action=DELETE, payload=payload))
        return False

    def _append(self, name: str, action: TopicAction) -> bool:
        is_wanted = action.offset > self._last_offset and not is_internal(name) and not self.is_full
        if is_wanted:
            self._actions.append(action)
        return is_wanted


def count_topics(values: Iterable[bytes]) -> int:
    return sum(value[_API_KEY_POSITION] == TopicRecord.__api_key__ for value in values)
