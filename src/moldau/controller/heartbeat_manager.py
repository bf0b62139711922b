"""Broker sessions and what brokers report in their heartbeats (Kafka's BrokerHeartbeatManager).

None of this is in the metadata log. It is lost when the controller stops being active, and the next controller starts
a full session for every broker: no broker is fenced for the time without a controller.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from uuid import UUID

from moldau.controller.requests import BrokerHeartbeat
from moldau.metadata.image import BrokerRegistration, MetadataImage, TopicImage


@dataclass(slots=True)
class BrokerHeartbeatState:
    broker_id: int
    broker_epoch: int
    deadline_ms: int
    """When the session expires and the broker is fenced. The broker's own lease has expired by then: it counts from
    when a heartbeat was sent, the session from when it was received."""
    heartbeat_count: int = 0
    """Lets a probe detect that a heartbeat arrived while it was running."""
    metadata_offset: int = -1
    not_ready: Mapping[tuple[UUID, int], str] = field(default_factory=dict)
    """Replicas that the broker could not open, with the reason."""
    controlled_shutdown_offset: int | None = None
    """In a controlled shutdown: the offset at which other brokers lead all its partitions. It may stop when the other
    brokers have applied the metadata up to here."""
    is_expiry_pending: bool = True
    """Whether the expiry of the session has not been reported yet."""


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
        """Starts sessions for a controller that becomes active on metadata committed up to `offset`.

        The previous controller's node may have been silent for some time: its session gets `previous_session_ms`.
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
        session.is_expiry_pending = True
        self._sessions[broker_id] = session
        return session

    def expire_session(self, broker_id: int, broker_epoch: int, now_ms: int) -> None:
        """Ends the session of a broker whose process has stopped or is about to."""
        session = self.session_of(broker_id, broker_epoch)
        if session is not None:
            session.deadline_ms = min(session.deadline_ms, now_ms)
            session.is_expiry_pending = False

    def remove_broker(self, broker_id: int) -> None:
        self._sessions.pop(broker_id, None)

    def session_of(self, broker_id: int, broker_epoch: int) -> BrokerHeartbeatState | None:
        """Returns the session of this incarnation of the broker."""
        session = self._sessions.get(broker_id)
        return session if session is not None and session.broker_epoch == broker_epoch else None

    def touch(self, beat: BrokerHeartbeat, now_ms: int) -> bool:
        """Records a heartbeat and returns whether it changes which replicas are ready.

        Called on arrival, before any decision: a slow controller must not fence a broker that sends heartbeats.
        """
        session = self.session_of(beat.broker_id, beat.broker_epoch)
        if session is None:
            return False
        session.heartbeat_count += 1
        session.is_expiry_pending = True
        session.deadline_ms = max(session.deadline_ms, now_ms + self._session_ms)
        if beat.metadata_offset < session.metadata_offset:
            # It was sent before another heartbeat that has already arrived.
            return False
        not_ready = {
            (each.topic_id, each.partition): each.reason for each in beat.not_ready if not each.is_transient
        }
        has_changed = beat.metadata_offset > session.metadata_offset or not_ready != session.not_ready
        session.metadata_offset = beat.metadata_offset
        session.not_ready = not_ready
        return has_changed

    def has_valid_session(self, broker_id: int, broker_epoch: int, now_ms: int) -> bool:
        session = self.session_of(broker_id, broker_epoch)
        return session is not None and now_ms < session.deadline_ms

    def take_expired(self, now_ms: int) -> list[BrokerHeartbeatState]:
        """Returns the expired sessions. Each is returned once, until another heartbeat arrives."""
        expired = [each for each in self._pending_expiry() if each.deadline_ms <= now_ms]
        for session in expired:
            session.is_expiry_pending = False
        return expired

    @property
    def next_deadline_ms(self) -> int | None:
        return min((each.deadline_ms for each in self._pending_expiry()), default=None)

    def extend_sessions(self, late_ms: int) -> None:
        """Extends all sessions by the time the controller itself was stalled: heartbeats may still be unread."""
        for session in self._sessions.values():
            session.deadline_ms += late_ms
            session.is_expiry_pending = True

    def lowest_metadata_offset(self, brokers: Iterable[int]) -> int | None:
        """Returns the metadata offset of the broker that is furthest behind; None without brokers."""
        return min((self.metadata_offset_of(broker_id) for broker_id in brokers), default=None)

    def metadata_offset_of(self, broker_id: int) -> int:
        session = self._sessions.get(broker_id)
        return -1 if session is None else session.metadata_offset

    def not_ready_reason(self, broker_id: int, topic_id: UUID, partition: int) -> str | None:
        """Returns why the broker could not open its replica, None if it could."""
        session = self._sessions.get(broker_id)
        return None if session is None else session.not_ready.get((topic_id, partition))

    def _pending_expiry(self) -> Iterable[BrokerHeartbeatState]:
        return (each for each in self._sessions.values() if each.is_expiry_pending)


def remaining_session_ms(session_ms: int, silent_ms: int) -> int:
    """Returns the session that a new controller gives to the previous controller's node.

    Every voter that elected the new controller had not heard from the previous one for `silent_ms`. Leases granted by
    the previous controller, its own included, count from when a majority last heard from it, so a session shorter by
    `silent_ms` is as safe as a full one. At least half a session is left for a live node to find the new controller.
    """
    return max(session_ms - silent_ms, session_ms // 2)


def find_unready_replicas(
    image: MetadataImage, heartbeat_manager: BrokerHeartbeatManager, topics: Mapping[str, int], offset: int
) -> dict[str, list[str]]:
    """Returns by topic why replicas are not ready; a replica is ready when its broker has opened its log.

    `topics` maps a topic to its first partition to check. Brokers must have applied the metadata up to `offset`.
    Deleted topics are skipped.
    """
    unready: dict[str, list[str]] = {}
    for name, first in topics.items():
        topic = image.topics.get(name)
        if topic is not None:
            reasons = _unready_reasons(image, heartbeat_manager, topic, first, offset)
            if reasons:
                unready[name] = reasons
    return unready


def _unready_reasons(
    image: MetadataImage,
    heartbeat_manager: BrokerHeartbeatManager,
    topic: TopicImage,
    first: int,
    offset: int,
) -> list[str]:
    by_node: dict[int, str] = {}
    by_replica: list[str] = []
    for partition in topic.partitions[first:]:
        for broker_id in partition.replicas:
            node_reason = _node_unready_reason(image, heartbeat_manager, broker_id, offset)
            if node_reason is not None:
                by_node[broker_id] = node_reason
                continue
            reason = heartbeat_manager.not_ready_reason(broker_id, topic.topic_id, partition.index)
            if reason is not None:
                by_replica.append(
                    f"{topic.name}-{partition.index} on node {broker_id}: its log could not be opened: {reason}"
                )
    return [*by_replica, *(by_node[broker_id] for broker_id in sorted(by_node))]


def _node_unready_reason(
    image: MetadataImage, heartbeat_manager: BrokerHeartbeatManager, broker_id: int, offset: int
) -> str | None:
    broker = image.brokers.get(broker_id)
    if broker is None:
        return f"node {broker_id} is not registered"
    if broker.fenced:
        return f"node {broker_id} is fenced"
    if heartbeat_manager.metadata_offset_of(broker_id) < offset:
        return f"node {broker_id} has not applied the metadata yet"
    return None
