"""Which brokers are alive, as far as the controller has heard: sessions that heartbeats prolong.

None of it is in the log. It dies with the controller's leadership, and the next controller begins with a fresh session
for everybody, so that nobody is fenced for the time in which there was no controller.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from uuid import UUID

from moldau.controller.requests import BrokerHeartbeat
from moldau.metadata.image import BrokerRegistration


@dataclass(slots=True)
class BrokerHeartbeatState:
    broker_id: int
    broker_epoch: int
    deadline_ms: int
    """When the broker is fenced unless it is heard of before. Its own lease, which runs from the time at which a
    heartbeat was sent and not from when it came, has ended by then."""
    heartbeat_count: int = 0
    """How many heartbeats have come, so that who asks elsewhere after a broker can tell that it spoke meanwhile."""
    metadata_offset: int = -1
    not_ready: Mapping[tuple[UUID, int], str] = field(default_factory=dict)
    """Replicas that the broker could not open, and why."""
    controlled_shutdown_offset: int | None = None
    """The offset at which the leaders it had are all elsewhere: it may stop when the others have come so far."""
    is_expiry_pending: bool = True
    """Whether its running out is news: not where somebody has been told of it."""


class BrokerHeartbeatManager:
    def __init__(self, session_ms: int) -> None:
        self._session_ms = session_ms
        self._sessions: dict[int, BrokerHeartbeatState] = {}

    def initialize(
        self,
        now_ms: int,
        brokers: Mapping[int, BrokerRegistration],
        offset: int,
        *,
        previous_controller: int | None = None,
        previous_session_ms: int | None = None,
    ) -> None:
        """A controller begins, on a metadata log that is committed up to `offset`.

        The node of the former controller may have been silent for some time already: `previous_session_ms` is what is
        left of its session.
        """
        self._sessions.clear()
        for broker_id in sorted(brokers):
            session = self.begin(broker_id, brokers[broker_id].epoch, now_ms)
            if brokers[broker_id].in_controlled_shutdown:
                session.controlled_shutdown_offset = offset
            if broker_id == previous_controller and previous_session_ms is not None:
                session.deadline_ms = now_ms + previous_session_ms

    def begin(self, broker_id: int, broker_epoch: int, now_ms: int) -> BrokerHeartbeatState:
        """A broker has registered. One that does so again goes on as it was."""
        known = self.of(broker_id, broker_epoch)
        session = known or BrokerHeartbeatState(broker_id, broker_epoch, 0)
        session.deadline_ms = now_ms + self._session_ms
        session.is_expiry_pending = True
        self._sessions[broker_id] = session
        return session

    def expire_session(self, broker_id: int, broker_epoch: int, now_ms: int) -> None:
        """The broker is known to be gone, or to be about to go."""
        session = self.of(broker_id, broker_epoch)
        if session is not None:
            session.deadline_ms = min(session.deadline_ms, now_ms)
            session.is_expiry_pending = False

    def remove_broker(self, broker_id: int) -> None:
        self._sessions.pop(broker_id, None)

    def of(self, broker_id: int, broker_epoch: int) -> BrokerHeartbeatState | None:
        """The session of this life of the broker."""
        session = self._sessions.get(broker_id)
        return session if session is not None and session.broker_epoch == broker_epoch else None

    def touch(self, beat: BrokerHeartbeat, now_ms: int) -> bool:
        """Takes a heartbeat when it comes, before anything is decided on it: a controller that is slow must not fence
        for it. Whether it says something new of what is ready."""
        session = self.of(beat.broker_id, beat.broker_epoch)
        if session is None:
            return False
        session.heartbeat_count += 1
        session.is_expiry_pending = True
        session.deadline_ms = max(session.deadline_ms, now_ms + self._session_ms)
        if beat.metadata_offset < session.metadata_offset:
            # It was sent before another that has come already.
            return False
        not_ready = {
            (each.topic_id, each.partition): each.reason for each in beat.not_ready if not each.is_transient
        }
        is_news = beat.metadata_offset > session.metadata_offset or not_ready != session.not_ready
        session.metadata_offset = beat.metadata_offset
        session.not_ready = not_ready
        return is_news

    def has_valid_session(self, broker_id: int, broker_epoch: int, now_ms: int) -> bool:
        """Whether the session of this broker has not run out."""
        session = self.of(broker_id, broker_epoch)
        return session is not None and now_ms < session.deadline_ms

    def take_expired(self, now_ms: int) -> list[BrokerHeartbeatState]:
        """Those whose time has run out; each is named once, until it is heard of again."""
        found = [each for each in self._pending_expiry() if each.deadline_ms <= now_ms]
        for session in found:
            session.is_expiry_pending = False
        return found

    @property
    def next_deadline_ms(self) -> int | None:
        return min((each.deadline_ms for each in self._pending_expiry()), default=None)

    def extend_sessions(self, late_ms: int) -> None:
        """The controller itself was held up for this long: what came in meanwhile has not been read yet."""
        for session in self._sessions.values():
            session.deadline_ms += late_ms
            # Who was about to be fenced is alive again, and nobody else would look after it.
            session.is_expiry_pending = True

    def lowest_metadata_offset(self, brokers: Iterable[int]) -> int | None:
        """How far the one of these is that is furthest behind in the metadata; None where there are none."""
        return min((self.metadata_offset_of(broker_id) for broker_id in brokers), default=None)

    def metadata_offset_of(self, broker_id: int) -> int:
        session = self._sessions.get(broker_id)
        return -1 if session is None else session.metadata_offset

    def not_ready_reason(self, broker_id: int, topic_id: UUID, partition: int) -> str | None:
        """Why the broker could not open its replica."""
        session = self._sessions.get(broker_id)
        return None if session is None else session.not_ready.get((topic_id, partition))

    def _pending_expiry(self) -> Iterable[BrokerHeartbeatState]:
        return (each for each in self._sessions.values() if each.is_expiry_pending)


def remaining_session_ms(session_ms: int, leader_silence_ms: int) -> int:
    """What the node of a former controller gets from the next one.

    Everybody who elected that one had heard nothing of the former for so long, and the leases that it gave, its own
    among them, count from when a majority had last heard of it: so that much less is as safe as a whole session. Half
    of one is left at least, for a node that is alive and has to find the new controller first.
    """
    return max(session_ms - leader_silence_ms, session_ms // 2)
