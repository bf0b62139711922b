"""The metadata log as actions on topics: creations and deletions. Pure.

Topics that were created before the log starts are in its snapshot. Their offsets are the last ones before the log, so
that a client can read on after any of them.
"""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from pydantic import BaseModel

from moldau.controller.topic_names import is_internal
from moldau.metadata.records import PartitionRecord, RemoveTopicRecord, TopicRecord, decode
from moldau.raft.batches import CommittedBatch
from moldau.raft.snapshot_format import SnapshotContents

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
        self._actions: list[TopicAction] = []

    @property
    def is_full(self) -> bool:
        return len(self._actions) >= self._count_max

    def actions(self) -> list[TopicAction]:
        return self._actions[: self._count_max]

    def add_snapshot(self, snapshot: SnapshotContents) -> None:
        count = sum(value[_API_KEY_POSITION] == TopicRecord.__api_key__ for value in snapshot.values)
        self._add(snapshot.values, snapshot.id.end_offset - count, snapshot.id.epoch, are_offsets_known=False)

    def add_batch(self, batch: CommittedBatch) -> None:
        self._add(batch.values, batch.base_offset, batch.epoch, are_offsets_known=True)

    def _add(self, values: Sequence[bytes], offset: int, epoch: int, *, are_offsets_known: bool) -> None:
        # All records of a creation are in one batch. Partitions that are added later belong to no action.
        creations: dict[UUID, TopicAction] = {}
        for index, value in enumerate(values):
            if value[_API_KEY_POSITION] not in _API_KEYS:
                continue
            match decode(value):
                case TopicRecord() as record:
                    self._names[record.topic_id] = record.name
                    payload = {"topic_name": record.name, "partitions": []}
                    action = TopicAction(
                        offset=offset + index if are_offsets_known else offset,
                        epoch=epoch,
                        action=CREATE,
                        payload=payload,
                    )
                    offset += not are_offsets_known
                    creations[record.topic_id] = action
                    self._append(record.name, action)
                case PartitionRecord() as record if record.topic_id in creations:
                    action = creations[record.topic_id]
                    action.payload["partitions"].append(
                        {
                            "id": f"{action.payload['topic_name']}-{record.partition_id + 1}",
                            "replica_brokers": [str(each) for each in sorted(record.replicas)],
                        }
                    )
                case RemoveTopicRecord() as record:
                    name = self._names.pop(record.topic_id, None)
                    if name is not None:
                        self._append(
                            name,
                            TopicAction(
                                offset=offset + index, epoch=epoch, action=DELETE, payload={"topic_name": name}
                            ),
                        )

    def _append(self, name: str, action: TopicAction) -> None:
        if action.offset > self._last_offset and not is_internal(name):
            self._actions.append(action)
