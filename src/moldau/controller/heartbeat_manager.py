"""Broker sessions and the state that brokers report in heartbeats (Kafka's BrokerHeartbeatManager).

This state is not in the metadata log and is lost when the controller becomes inactive. The next controller starts a
full session for every broker. So the time without a controller does not count, and no broker is fenced because of it.
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
    """When the session expires and the broker is fenced. The broker's lease expires earlier, because the lease counts
    from when a heartbeat was sent, and the session from when it was received."""
    received_ms: int = 0
    """When the last heartbeat was received; before the first one, when the session started."""
    heartbeat_count: int = 0
    """The number of heartbeats in this session. A probe uses this number to detect heartbeats that arrive while the
    probe is running."""
    metadata_offset: int = -1
    not_ready: Mapping[tuple[UUID, int], str] = field(default_factory=dict)
    """Replicas that the broker could not open, with the reason."""
    controlled_shutdown_offset: int | None = None
    """In a controlled shutdown: the metadata offset at which other brokers lead all partitions of this broker. This
    broker may stop when the other brokers have applied the metadata up to this offset."""
    is_expiry_pending: bool = True
    """Whether `take_expired` still has to return this session when the session expires."""


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
        """Starts sessions for a controller that becomes active, with metadata committed up to `offset`.

        The node of the previous controller may have been silent for some time, so its session lasts only
        `previous_session_ms`.
        """
        self._sessions.clear()
        for broker_id in sorted(brokers):
            session = self.start_session(broker_id, brokers[broker_id].epoch, now_ms)
            if brokers[broker_id].in_controlled_shutdown:
                session.controlled_shutdown_offset = offset
            if broker_id == previous_controller and previous_session_ms is not None:
                session.deadline_ms = now_ms + previous_session_ms

    def start_session(self, broker_id: int, broker_epoch: int, now_ms: int) -> BrokerHeartbeatState:
        """Starts the session of a registered broker, or restarts it if the same incarnation registers again."""
        known = self.session_of(broker_id, broker_epoch)
        session = known or BrokerHeartbeatState(broker_id, broker_epoch, 0)
        session.deadline_ms = now_ms + self._session_ms
        session.received_ms = now_ms
        session.is_expiry_pending = True
        self._sessions[broker_id] = session
        return session

    def expire_session(self, broker_id: int, broker_epoch: int, now_ms: int) -> None:
        """Ends the session of a broker whose process has stopped or is about to stop."""
        session = self.session_of(broker_id, broker_epoch)
        if session is not None:
            session.deadline_ms = min(session.deadline_ms, now_ms)
            session.is_expiry_pending = False

    def remove_broker(self, broker_id: int) -> None:
        self._sessions.pop(broker_id, None)

    def session_of(self, broker_id: int, broker_epoch: int) -> BrokerHeartbeatState | None:
        """Returns the session of this incarnation of the broker, or None if there is none."""
        session = self._sessions.get(broker_id)
        return session if session is not None and session.broker_epoch == broker_epoch else None

    def touch(self, beat: BrokerHeartbeat, now_ms: int) -> bool:
        """Records a heartbeat and returns whether it changes which replicas are ready.

        Must be called when the heartbeat arrives, before any decision, so that a slow controller does not fence a
        broker that sends heartbeats.
        """
        session = self.session_of(beat.broker_id, beat.broker_epoch)
        if session is None:
            return False
        session.heartbeat_count += 1
        session.received_ms = now_ms
        session.is_expiry_pending = True
        session.deadline_ms = max(session.deadline_ms, now_ms + self._session_ms)
        if beat.metadata_offset < session.metadata_offset:
            # A heartbeat that was sent later has already arrived, so the report in this heartbeat is outdated.
            return False
        not_ready = {(each.topic_id, each.partition): each.reason for each in beat.not_ready if not each.is_transient}
        has_changed = beat.metadata_offset > session.metadata_offset or not_ready != session.not_ready
        session.metadata_offset = beat.metadata_offset
        session.not_ready = not_ready
        return has_changed

    def heartbeat_ages_ms(self, now_ms: int) -> dict[int, int]:
        """Returns how long ago the last heartbeat of each broker was received."""
        return {each.broker_id: max(0, now_ms - each.received_ms) for each in self._sessions.values()}

    def has_valid_session(self, broker_id: int, broker_epoch: int, now_ms: int) -> bool:
        session = self.session_of(broker_id, broker_epoch)
        return session is not None and now_ms < session.deadline_ms

    def take_expired(self, now_ms: int) -> list[BrokerHeartbeatState]:
        """Returns the expired sessions. An expired session is not returned again unless it is extended and expires
        again."""
        expired = [each for each in self._pending_expiry() if each.deadline_ms <= now_ms]
        for session in expired:
            session.is_expiry_pending = False
        return expired

    @property
    def next_deadline_ms(self) -> int | None:
        return min((each.deadline_ms for each in self._pending_expiry()), default=None)

    def extend_sessions(self, late_ms: int) -> None:
        """Extends all sessions by the time for which the controller was stalled, because heartbeats may still be
        unread."""
        for session in self._sessions.values():
            session.deadline_ms += late_ms
            session.is_expiry_pending = True

    def lowest_metadata_offset(self, brokers: Iterable[int]) -> int | None:
        """Returns the metadata offset of the broker that is furthest behind, or None if `brokers` is empty."""
        return min((self.metadata_offset_of(broker_id) for broker_id in brokers), default=None)

    def metadata_offset_of(self, broker_id: int) -> int:
        session = self._sessions.get(broker_id)
        return -1 if session is None else session.metadata_offset

    def not_ready_reason(self, broker_id: int, topic_id: UUID, partition: int) -> str | None:
        """Returns why the broker could not open its replica, or None if it reported no failure."""
        session = self._sessions.get(broker_id)
        return None if session is None else session.not_ready.get((topic_id, partition))

    def _pending_expiry(self) -> Iterable[BrokerHeartbeatState]:
        return (each for each in self._sessions.values() if each.is_expiry_pending)


def remaining_session_ms(session_ms: int, silent_ms: int) -> int:
    """Returns the length of the session that a new controller gives to the previous controller's node.

    Every voter that elected the new controller had received nothing from the previous controller for `silent_ms`.
    Leases that the previous controller granted, including its own, count from when a majority last heard from that
    controller. So a session that is shorter by `silent_ms` is as safe as a full session.

    The session is at least half as long as a full one, so that a live node can find the new controller.
    """
    return max(session_ms - silent_ms, session_ms // 2)
