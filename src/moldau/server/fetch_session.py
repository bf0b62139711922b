"""Fetch sessions (KIP-227): what a consumer fetches is remembered, so that it sends and gets only what
changed.

A session belongs to the connection it was begun on, as far as its end goes: a client that keeps beginning
new ones replaces its own and cannot fill the cache. When all slots are taken, one that was not used for a
while makes room; else the client is served without a session. Followers have one session for each node beside the
slots: they neither drive consumers out nor are driven out by them.
"""

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple
from uuid import UUID

from moldau.server.partition_watcher import PartitionKey, PartitionWatcher
from moldau.server.session import ClientConnection

INVALID_SESSION_ID = 0
INITIAL_EPOCH = 0
FINAL_EPOCH = -1
NO_REPLICA = -1
EVICTION_MIN_MS = 120_000
_EPOCH_LIMIT = 2**31


class FetchSessionNotFoundError(Exception):
    """The session has ended or was never begun: the client begins a new one."""


class InvalidFetchSessionEpochError(Exception):
    """A request of the session was lost or came twice: the client begins a new one."""


class FetchSessionTopicIdError(Exception):
    """A session that was begun with topic names goes on with topic ids, or the other way round."""


class FetchPartition(NamedTuple):
    """One partition as a fetch asks for it."""

    topic: str | None
    """None while no topic has the id."""
    topic_id: UUID | None
    partition: int
    offset: int
    bytes_max: int
    current_leader_epoch: int
    last_fetched_epoch: int
    start_offset: int = -1
    """Where a follower's log begins."""

    @property
    def key(self) -> PartitionKey:
        return (self.topic_id if self.topic_id is not None else self.topic or "", self.partition)


class LastSentOffsets(NamedTuple):
    """What the client was last told of a partition besides records."""

    high_watermark: int
    last_stable_offset: int
    start_offset: int


@dataclass(slots=True)
class FetchSession:
    session_id: int
    uses_topic_ids: bool
    epoch: int
    used_at_ms: int
    wanted: dict[PartitionKey, FetchPartition]
    last_sent: dict[PartitionKey, LastSentOffsets] = field(default_factory=dict)
    watcher: PartitionWatcher = field(default_factory=PartitionWatcher)
    last_full_scan_ms: int = 0
    """When all partitions were last looked at, whether they had news or not."""


class FetchSessionCache:
    def __init__(self, source: random.Random, sessions_max: int) -> None:
        self._random = source
        self._sessions_max = sessions_max
        self._sessions: dict[int, FetchSession] = {}
        self._replica_session_ids: dict[int, int] = {}
        """The sessions of followers, by their nodes."""

    def __len__(self) -> int:
        return len(self._sessions)

    def create(
        self,
        connection: ClientConnection,
        wanted: Mapping[PartitionKey, FetchPartition],
        replaced_session_id: int,
        now_ms: int,
        *,
        uses_topic_ids: bool,
        replica_id: int = NO_REPLICA,
    ) -> FetchSession | None:
        """A new session in place of those the connection, or the follower, had; None where the client has to do
        without."""
        self.remove(replaced_session_id)
        self.remove_all(connection)
        if not wanted or (replica_id == NO_REPLICA and not self._try_evict(now_ms)):
            return None
        session_id = self._new_session_id()
        if replica_id != NO_REPLICA:
            self.remove(self._replica_session_ids.get(replica_id, INVALID_SESSION_ID))
            self._replica_session_ids[replica_id] = session_id
        session = FetchSession(session_id, uses_topic_ids, 1, now_ms, dict(wanted), last_full_scan_ms=now_ms)
        session.watcher.changed.update(dict.fromkeys(wanted))
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
            raise FetchSessionNotFoundError
        if epoch != session.epoch:
            raise InvalidFetchSessionEpochError
        if uses_topic_ids != session.uses_topic_ids:
            raise FetchSessionTopicIdError
        session.epoch = 1 if epoch + 1 >= _EPOCH_LIMIT else epoch + 1
        session.used_at_ms = now_ms
        session.wanted.update(changed)
        session.watcher.changed.update(dict.fromkeys(changed))
        for key in forgotten:
            session.wanted.pop(key, None)
            session.last_sent.pop(key, None)
            session.watcher.forget(key)
        return session

    def remove(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            session.watcher.close()
            for replica_id, its_session_id in list(self._replica_session_ids.items()):
                if its_session_id == session_id:
                    del self._replica_session_ids[replica_id]

    def remove_all(self, connection: ClientConnection) -> None:
        """The sessions begun on a connection; called when it closes, too."""
        for session_id in connection.fetch_session_ids:
            self.remove(session_id)
        connection.fetch_session_ids.clear()

    def _try_evict(self, now_ms: int) -> bool:
        of_replicas = self._replica_session_ids.values()
        others = [each for each in self._sessions.values() if each.session_id not in of_replicas]
        if len(others) < self._sessions_max:
            return True
        oldest = min(others, key=lambda each: each.used_at_ms, default=None)
        if oldest is None or now_ms - oldest.used_at_ms < EVICTION_MIN_MS:
            return False
        self.remove(oldest.session_id)
        return True

    def _new_session_id(self) -> int:
        while True:
            session_id = self._random.randrange(1, 2**31)
            if session_id not in self._sessions:
                return session_id
