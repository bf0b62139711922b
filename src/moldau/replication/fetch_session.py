"""The follower's side of a fetch session (KIP-227): after a full fetch, only changed partitions are sent. Pure."""

from collections.abc import Mapping
from typing import Any, NamedTuple
from uuid import UUID

from moldau.partitions.follower_state import FollowerFetchPosition

INVALID_SESSION_ID = 0
INITIAL_EPOCH = 0
_EPOCH_END = 2**31


class PartitionKey(NamedTuple):
    topic_id: UUID
    partition: int


class FetchRequestData(NamedTuple):
    """The session fields and partitions of one Fetch request."""

    session_id: int
    session_epoch: int
    to_send: Mapping[PartitionKey, FollowerFetchPosition]
    """All partitions in a full fetch; otherwise only partitions that are new or whose position has changed."""
    to_forget: tuple[PartitionKey, ...]


class FetchSessionHandler:
    """Builds one request at a time. After any failure, the next fetch is a full fetch in a new session."""

    def __init__(self) -> None:
        self._id = INVALID_SESSION_ID
        self._epoch = INITIAL_EPOCH
        self._positions: dict[PartitionKey, FollowerFetchPosition] = {}
        """The positions to fetch from, the most recently changed last, so that no partition starves in full fetches."""
        self._sent: dict[PartitionKey, FollowerFetchPosition] = {}
        """The positions that the leader knows from the requests of this session."""
        self._changed: dict[PartitionKey, None] = {}
        """Partitions whose position may differ from the position in `_sent`."""

    def __len__(self) -> int:
        return len(self._positions)

    @property
    def is_established(self) -> bool:
        """Whether the leader has a session, so that fetches are incremental."""
        return self._epoch != INITIAL_EPOCH

    def requested_position(self, key: PartitionKey) -> FollowerFetchPosition | None:
        """Returns where the last fetch read the partition; None if the session did not include the partition."""
        return self._sent.get(key)

    def set_position(self, key: PartitionKey, position: FollowerFetchPosition) -> None:
        if self._positions.get(key) != position:
            self._positions.pop(key, None)
            self._positions[key] = position
            self._changed[key] = None

    def remove(self, key: PartitionKey) -> None:
        if self._positions.pop(key, None) is not None:
            self._changed[key] = None

    def build(self) -> FetchRequestData:
        changed, self._changed = self._changed, {}
        if self._epoch == INITIAL_EPOCH:
            self._sent = dict(self._positions)
            # Send the previous session id, so that the leader drops the session that the new session replaces.
            return FetchRequestData(self._id, INITIAL_EPOCH, self._sent, ())
        to_send, forgotten = {}, []
        for key in changed:
            position = self._positions.get(key)
            if position is not None and position != self._sent.get(key):
                to_send[key] = self._sent[key] = position
            elif position is None and self._sent.pop(key, None) is not None:
                forgotten.append(key)
        return FetchRequestData(self._id, self._epoch, to_send, tuple(forgotten))

    def handle_response(self, session_id: int) -> None:
        """Handles a response without a session error."""
        if session_id == INVALID_SESSION_ID:
            # The leader's session cache is full, or the leader closed this session.
            self._id, self._epoch = INVALID_SESSION_ID, INITIAL_EPOCH
        elif self._epoch == INITIAL_EPOCH:
            self._id, self._epoch = session_id, 1
        elif session_id == self._id:
            self._epoch = 1 if self._epoch + 1 >= _EPOCH_END else self._epoch + 1
        else:
            self.reset()

    def reset(self) -> None:
        """Makes the next fetch a full fetch, because the leader's session may differ from this one."""
        self._epoch = INITIAL_EPOCH


def build_fetch_request(
    data: FetchRequestData,
    *,
    cluster_id: str,
    replica_id: int,
    broker_epoch: int,
    wait_ms: int,
    bytes_max: int,
    partition_bytes_max: int,
) -> dict[str, Any]:
    topics: dict[UUID, list[dict[str, int]]] = {}
    for (topic_id, index), position in data.to_send.items():
        topics.setdefault(topic_id, []).append(
            {
                "partition": index,
                "current_leader_epoch": position.leader_epoch,
                "fetch_offset": position.offset,
                "last_fetched_epoch": position.last_epoch,
                "log_start_offset": position.start_offset,
                "partition_max_bytes": partition_bytes_max,
            }
        )
    forgotten: dict[UUID, list[int]] = {}
    for topic_id, index in data.to_forget:
        forgotten.setdefault(topic_id, []).append(index)
    return {
        "cluster_id": cluster_id or None,
        "replica_state": {"replica_id": replica_id, "replica_epoch": broker_epoch},
        "max_wait": wait_ms,
        "min_bytes": 1,
        "max_bytes": bytes_max,
        "isolation_level": 0,
        "session_id": data.session_id,
        "session_epoch": data.session_epoch,
        "topics": [{"topic_id": topic_id, "partitions": each} for topic_id, each in topics.items()],
        "forgotten_topics_data": [{"topic_id": topic_id, "partitions": each} for topic_id, each in forgotten.items()],
        "rack_id": "",
    }
