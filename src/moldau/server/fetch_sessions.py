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

from moldau.server.fetch_watch import PartitionKey, Watch
from moldau.server.session import ClientConnection

NO_SESSION = 0
BEGIN_EPOCH = 0
END_EPOCH = -1
NO_REPLICA = -1
EVICT_AFTER_MS = 120_000
_EPOCH_LIMIT = 2**31


class FetchSessionNotFoundError(Exception):
    """The session has ended or was never begun: the client begins a new one."""


class InvalidFetchSessionEpochError(Exception):
    """A request of the session was lost or came twice: the client begins a new one."""


class FetchSessionTopicIdError(Exception):
    """A session that was begun with topic names goes on with topic ids, or the other way round."""


class Wanted(NamedTuple):
    """One partition as a fetch asks for it."""

    topic: str | None
    """None while no topic has the id."""
    topic_id: UUID | None
    partition: int
    offset: int
    bytes_max: int
    known_epoch: int
    last_fetched_epoch: int
    start_offset: int = -1
    """Where a follower's log begins."""

    @property
    def key(self) -> PartitionKey:
        return (self.topic_id if self.topic_id is not None else self.topic or "", self.partition)


class Told(NamedTuple):
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
    wanted: dict[PartitionKey, Wanted]
    told: dict[PartitionKey, Told] = field(default_factory=dict)
    watch: Watch = field(default_factory=Watch)
    looked_ms: int = 0
    """When all partitions were last looked at, whether they had news or not."""


class FetchSessions:
    def __init__(self, source: random.Random, slots_max: int) -> None:
        self._random = source
        self._slots_max = slots_max
        self._sessions: dict[int, FetchSession] = {}
        self._of_replicas: dict[int, int] = {}
        """The sessions of followers, by their nodes."""

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(
        self,
        connection: ClientConnection,
        wanted: Mapping[PartitionKey, Wanted],
        replaced_id: int,
        now_ms: int,
        *,
        uses_topic_ids: bool,
        replica_id: int = NO_REPLICA,
    ) -> FetchSession | None:
        """A new session in place of those the connection, or the follower, had; None where the client has to do
        without."""
        self.end(replaced_id)
        self.end_all(connection)
        if not wanted or (replica_id == NO_REPLICA and not self._make_room(now_ms)):
            return None
        session_id = self._new_id()
        if replica_id != NO_REPLICA:
            self.end(self._of_replicas.get(replica_id, NO_SESSION))
            self._of_replicas[replica_id] = session_id
        session = FetchSession(session_id, uses_topic_ids, 1, now_ms, dict(wanted), looked_ms=now_ms)
        session.watch.news.update(dict.fromkeys(wanted))
        self._sessions[session_id] = session
        connection.fetch_session_ids.append(session_id)
        return session

    def resume(
        self,
        session_id: int,
        epoch: int,
        changed: Mapping[PartitionKey, Wanted],
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
        session.watch.news.update(dict.fromkeys(changed))
        for key in forgotten:
            session.wanted.pop(key, None)
            session.told.pop(key, None)
            session.watch.forget(key)
        return session

    def end(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            session.watch.close()
            for replica_id, its_session_id in list(self._of_replicas.items()):
                if its_session_id == session_id:
                    del self._of_replicas[replica_id]

    def end_all(self, connection: ClientConnection) -> None:
        """The sessions begun on a connection; called when it closes, too."""
        for session_id in connection.fetch_session_ids:
            self.end(session_id)
        connection.fetch_session_ids.clear()

    def _make_room(self, now_ms: int) -> bool:
        of_replicas = self._of_replicas.values()
        others = [each for each in self._sessions.values() if each.session_id not in of_replicas]
        if len(others) < self._slots_max:
            return True
        oldest = min(others, key=lambda each: each.used_at_ms, default=None)
        if oldest is None or now_ms - oldest.used_at_ms < EVICT_AFTER_MS:
            return False
        self.end(oldest.session_id)
        return True

    def _new_id(self) -> int:
        while True:
            session_id = self._random.randrange(1, 2**31)
            if session_id not in self._sessions:
                return session_id
