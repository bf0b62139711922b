"""Incremental fetch sessions (KIP-227).

The broker stores which partitions a client fetches, so that requests and responses contain only changes.

A connection has at most one session, and the session ends with the connection. So a client that creates many sessions
cannot fill the cache. When the cache is full, a session that was idle for long enough is evicted. If no session was
idle for long enough, the client is served without a session. Each follower has one session that does not count for the
limit, so that consumers and followers cannot evict each other.
"""

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from moldau.errors import FetchSessionIdNotFoundError, FetchSessionTopicIdError, InvalidFetchSessionEpochError
from moldau.server.api import ClientConnection
from moldau.server.partition_watcher import PartitionKey, PartitionWatcher

INVALID_SESSION_ID = 0
INITIAL_EPOCH = 0
FINAL_EPOCH = -1
NO_REPLICA = -1
EVICTION_MIN_MS = 120_000
_EPOCH_LIMIT = 2**31


class FetchPartition(NamedTuple):
    topic: str | None
    """The topic name; None if no topic has the id `topic_id`."""
    topic_id: UUID | None
    partition: int
    offset: int
    bytes_max: int
    current_leader_epoch: int
    last_fetched_epoch: int
    log_start_offset: int = -1
    """The log start offset of the follower; -1 for consumers."""

    @property
    def key(self) -> PartitionKey:
        return (self.topic_id if self.topic_id is not None else self.topic or "", self.partition)


class LastSentOffsets(NamedTuple):
    """The offsets of a partition in the last response that contained the partition."""

    high_watermark: int
    last_stable_offset: int
    start_offset: int


@dataclass(slots=True)
class FetchSession:
    session_id: int
    uses_topic_ids: bool
    epoch: int
    used_at_ms: int
    partitions: dict[PartitionKey, FetchPartition]
    last_sent: dict[PartitionKey, LastSentOffsets] = field(default_factory=dict)
    watcher: PartitionWatcher = field(default_factory=PartitionWatcher)
    last_full_scan_ms: int = 0
    """The time when all partitions were last read, including unchanged partitions."""


class FetchSessionCache:
    def __init__(self, source: random.Random, sessions_max: int) -> None:
        self._random = source
        self._sessions_max = sessions_max
        self._sessions: dict[int, FetchSession] = {}
        self._replica_session_ids: dict[int, int] = {}
        """The session ids of followers, by broker id."""

    def __len__(self) -> int:
        return len(self._sessions)

    def create(
        self,
        connection: ClientConnection,
        partitions: Mapping[PartitionKey, FetchPartition],
        replaced_session_id: int,
        now_ms: int,
        *,
        uses_topic_ids: bool,
        replica_id: int = NO_REPLICA,
    ) -> FetchSession | None:
        """Creates a session that replaces `replaced_session_id` and the earlier sessions of the connection or replica.
        Returns None if `partitions` is empty or the cache is full."""
        self.remove(replaced_session_id)
        self.remove_all(connection)
        if not partitions or (replica_id == NO_REPLICA and not self._try_evict(now_ms)):
            return None
        session_id = self._new_session_id()
        if replica_id != NO_REPLICA:
            self.remove(self._replica_session_ids.get(replica_id, INVALID_SESSION_ID))
            self._replica_session_ids[replica_id] = session_id
        session = FetchSession(session_id, uses_topic_ids, 1, now_ms, dict(partitions), last_full_scan_ms=now_ms)
        session.watcher.changed.update(dict.fromkeys(partitions))
        self._sessions[session_id] = session
        connection.fetch_session_ids.append(session_id)
        return session

    def continue_session(
        self,
        session_id: int,
        epoch: int,
        changed: Mapping[PartitionKey, FetchPartition],
        forgotten: Iterable[PartitionKey],
        now_ms: int,
        *,
        uses_topic_ids: bool,
    ) -> FetchSession:
        session = self._sessions.get(session_id)
        if session is None:
            raise FetchSessionIdNotFoundError
        if epoch != session.epoch:
            raise InvalidFetchSessionEpochError
        if uses_topic_ids != session.uses_topic_ids:
            raise FetchSessionTopicIdError
        session.epoch = 1 if epoch + 1 >= _EPOCH_LIMIT else epoch + 1
        session.used_at_ms = now_ms
        session.partitions.update(changed)
        session.watcher.changed.update(dict.fromkeys(changed))
        for key in forgotten:
            session.partitions.pop(key, None)
            session.last_sent.pop(key, None)
            session.watcher.forget(key)
        return session

    def remove(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            session.watcher.close()
            for replica_id, replica_session_id in list(self._replica_session_ids.items()):
                if replica_session_id == session_id:
                    del self._replica_session_ids[replica_id]

    def remove_all(self, connection: ClientConnection) -> None:
        """Removes all sessions that were created on a connection."""
        for session_id in connection.fetch_session_ids:
            self.remove(session_id)
        connection.fetch_session_ids.clear()

    def _try_evict(self, now_ms: int) -> bool:
        """Returns whether one more consumer session fits into the cache. Evicts an idle session if necessary."""
        replica_session_ids = self._replica_session_ids.values()
        consumers = [each for each in self._sessions.values() if each.session_id not in replica_session_ids]
        if len(consumers) < self._sessions_max:
            return True
        oldest = min(consumers, key=lambda each: each.used_at_ms, default=None)
        if oldest is None or now_ms - oldest.used_at_ms < EVICTION_MIN_MS:
            return False
        self.remove(oldest.session_id)
        return True

    def _new_session_id(self) -> int:
        while True:
            session_id = self._random.randrange(1, 2**31)
            if session_id not in self._sessions:
                return session_id
