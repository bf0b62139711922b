"""Which brokers are alive, as far as the controller has heard: sessions that heartbeats prolong.

None of it is in the log. It dies with the controller's leadership, and the next controller begins with a fresh session
for everybody, so that nobody is fenced for the time in which there was no controller.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from uuid import UUID

from moldau.controller.requests import Heartbeat
from moldau.metadata.image import BrokerImage


@dataclass(slots=True)
class Session:
    broker_id: int
    broker_epoch: int
    deadline_ms: int
    """When the broker is fenced unless it is heard of before. Its own lease, which runs from the time at which a
    heartbeat was sent and not from when it came, has ended by then."""
    heard: int = 0
    """How many heartbeats have come, so that who asks elsewhere after a broker can tell that it spoke meanwhile."""
    metadata_offset: int = -1
    not_ready: Mapping[tuple[UUID, int], str] = field(default_factory=dict)
    """Replicas that the broker could not open, and why."""
    handed_over_offset: int | None = None
    """The offset at which the leaders it had are all elsewhere: it may stop when the others have come so far."""
    is_watched: bool = True
    """Whether its running out is news: not where somebody has been told of it."""


class Sessions:
    def __init__(self, session_ms: int) -> None:
        self._session_ms = session_ms
        self._sessions: dict[int, Session] = {}

    def take_over(
        self,
        now_ms: int,
        brokers: Mapping[int, BrokerImage],
        offset: int,
        *,
        former_controller: int | None = None,
        former_session_ms: int | None = None,
    ) -> None:
        """A controller begins, on a metadata log that is committed up to `offset`.

        The node of the former controller may have been silent for some time already: `former_session_ms` is what is
        left of its session.
        """
        self._sessions.clear()
        for broker_id in sorted(brokers):
            session = self.begin(broker_id, brokers[broker_id].epoch, now_ms)
            if brokers[broker_id].in_controlled_shutdown:
                session.handed_over_offset = offset
            if broker_id == former_controller and former_session_ms is not None:
                session.deadline_ms = now_ms + former_session_ms

    def begin(self, broker_id: int, broker_epoch: int, now_ms: int) -> Session:
        """A broker has registered. One that does so again goes on as it was."""
        known = self.of(broker_id, broker_epoch)
        session = known or Session(broker_id, broker_epoch, 0)
        session.deadline_ms = now_ms + self._session_ms
        session.is_watched = True
        self._sessions[broker_id] = session
        return session

    def cut_short(self, broker_id: int, broker_epoch: int, now_ms: int) -> None:
        """The broker is known to be gone, or to be about to go."""
        session = self.of(broker_id, broker_epoch)
        if session is not None:
            session.deadline_ms = min(session.deadline_ms, now_ms)
            session.is_watched = False

    def forget(self, broker_id: int) -> None:
        self._sessions.pop(broker_id, None)

    def of(self, broker_id: int, broker_epoch: int) -> Session | None:
        """The session of this life of the broker."""
        session = self._sessions.get(broker_id)
        return session if session is not None and session.broker_epoch == broker_epoch else None

    def heard(self, beat: Heartbeat, now_ms: int) -> bool:
        """Takes a heartbeat when it comes, before anything is decided on it: a controller that is slow must not fence
        for it. Whether it says something new of what is ready."""
        session = self.of(beat.broker_id, beat.broker_epoch)
        if session is None:
            return False
        session.heard += 1
        session.is_watched = True
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

    def is_alive(self, broker_id: int, broker_epoch: int, now_ms: int) -> bool:
        """Whether the session of this broker has not run out."""
        session = self.of(broker_id, broker_epoch)
        return session is not None and now_ms < session.deadline_ms

    def expired(self, now_ms: int) -> list[Session]:
        """Those whose time has run out; each is named once, until it is heard of again."""
        found = [each for each in self._watched() if each.deadline_ms <= now_ms]
        for session in found:
            session.is_watched = False
        return found

    @property
    def next_deadline_ms(self) -> int | None:
        return min((each.deadline_ms for each in self._watched()), default=None)

    def postpone(self, late_ms: int) -> None:
        """The controller itself was held up for this long: what came in meanwhile has not been read yet."""
        for session in self._sessions.values():
            session.deadline_ms += late_ms
            # Who was about to be fenced is alive again, and nobody else would look after it.
            session.is_watched = True

    def lowest_offset(self, brokers: Iterable[int]) -> int | None:
        """How far the one of these is that is furthest behind in the metadata; None where there are none."""
        return min((self.offset_of(broker_id) for broker_id in brokers), default=None)

    def offset_of(self, broker_id: int) -> int:
        session = self._sessions.get(broker_id)
        return -1 if session is None else session.metadata_offset

    def complaint(self, broker_id: int, topic_id: UUID, partition: int) -> str | None:
        """Why the broker could not open its replica."""
        session = self._sessions.get(broker_id)
        return None if session is None else session.not_ready.get((topic_id, partition))

    def _watched(self) -> Iterable[Session]:
        return (each for each in self._sessions.values() if each.is_watched)


def rest_of_session(session_ms: int, silent_ms: int) -> int:
    """What the node of a former controller gets from the next one.

    Everybody who elected that one had heard nothing of the former for so long, and the leases that it gave, its own
    among them, count from when a majority had last heard of it: so that much less is as safe as a whole session. Half
    of one is left at least, for a node that is alive and has to find the new controller first.
    """
    return max(session_ms - silent_ms, session_ms // 2)
