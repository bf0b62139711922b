"""What a broker says to the controller and when, and what it makes of the answers.

One request is under way at a time. What has to be reported meanwhile goes with the next one, which then follows at
once.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from moldau.controller.requests import HeartbeatReply, NotReady
from moldau.errors import (
    BrokerIdNotRegisteredError,
    DuplicateBrokerRegistrationError,
    InconsistentClusterIdError,
    InvalidRegistrationError,
    MoldauError,
    StaleBrokerEpochError,
    UnsupportedVersionError,
)

NO_EPOCH = -1
RETRY_MS_MIN = 50
SHUTDOWN_SESSIONS_MAX = 10
"""So long a shutdown waits for the handover, if others are not ready to take over."""
DUPLICATE_FOR_SESSIONS = 3
"""For so many sessions the node is told that another one has its id. By then a process that is no more has been
fenced, even if the controller has changed meanwhile."""


class Phase(Enum):
    STARTING = "starting"
    """Not registered (any more)."""
    REGISTERED = "registered"
    """Fenced: it leads nothing and is in sync nowhere."""
    ACTIVE = "active"
    SHUTTING_DOWN = "shutting down"
    """Its partitions are being handed over."""
    STOPPED = "stopped"


# What happens


@dataclass(frozen=True, slots=True)
class Started:
    pass


@dataclass(frozen=True, slots=True)
class Registered:
    broker_epoch: int


@dataclass(frozen=True, slots=True)
class RegistrationFailed:
    error: MoldauError


@dataclass(frozen=True, slots=True)
class HeartbeatAnswered:
    sent_ms: int
    reply: HeartbeatReply


@dataclass(frozen=True, slots=True)
class HeartbeatFailed:
    error: MoldauError


@dataclass(frozen=True, slots=True)
class Reported:
    """All of the node has taken the metadata up to here, save the logs that could not be opened."""

    metadata_offset: int
    not_ready: tuple[NotReady, ...] = ()


@dataclass(frozen=True, slots=True)
class ShutdownWanted:
    pass


@dataclass(frozen=True, slots=True)
class ControllerChanged:
    """Whatever is under way goes to one that decides no more, and has been given up."""


@dataclass(frozen=True, slots=True)
class Tick:
    """It is time for what was due."""


Event = (
    Started
    | Registered
    | RegistrationFailed
    | HeartbeatAnswered
    | HeartbeatFailed
    | Reported
    | ShutdownWanted
    | ControllerChanged
    | Tick
)


# What is to be done


@dataclass(frozen=True, slots=True)
class Register:
    timeout_ms: int


@dataclass(frozen=True, slots=True)
class Send:
    """A heartbeat. One that is not answered in time is given up: the controller may be another one by now."""

    broker_epoch: int
    metadata_offset: int
    not_ready: Sequence[NotReady]
    wants_shutdown: bool
    timeout_ms: int


@dataclass(frozen=True, slots=True)
class ProlongLease:
    ends_ms: int


@dataclass(frozen=True, slots=True)
class EndLease:
    pass


@dataclass(frozen=True, slots=True)
class BecameActive:
    pass


@dataclass(frozen=True, slots=True)
class WasFenced:
    pass


@dataclass(frozen=True, slots=True)
class MayStop:
    """`was_handed_over`: others lead in this broker's place already. Otherwise the controller could not be asked."""

    was_handed_over: bool


@dataclass(frozen=True, slots=True)
class Refuse:
    """The cluster will not have this node, and asking again would not help."""

    error: MoldauError


Effect = Register | Send | ProlongLease | EndLease | BecameActive | WasFenced | MayStop | Refuse

_FOR_GOOD = (InconsistentClusterIdError, InvalidRegistrationError, UnsupportedVersionError)


class MembershipState:
    def __init__(self, node_id: int, *, heartbeat_interval_ms: int, session_ms: int) -> None:
        self._node_id = node_id
        self._interval_ms = heartbeat_interval_ms
        self._session_ms = session_ms
        self._lease_ms = session_ms - session_ms // 6
        """So much shorter than the session that clocks which do not run alike make no difference."""
        self.phase = Phase.STARTING
        self.broker_epoch = NO_EPOCH
        self._has_started = False
        self._metadata_offset = -1
        self._not_ready: tuple[NotReady, ...] = ()
        self._is_waiting = False
        """A request is under way."""
        self._has_news = False
        """Something was reported since the last heartbeat was sent."""
        self._due_ms: int | None = None
        self._failures = 0
        self._duplicate_since_ms: int | None = None
        self._heard_ms = 0
        """When the controller last answered; since a shutdown is wanted, not before that."""
        self._shutdown_ms = 0
        """When the shutdown was wanted."""

    @property
    def is_active(self) -> bool:
        """Whether the controller counts on this broker; one that shuts down is not counted on."""
        return self.phase is Phase.ACTIVE

    @property
    def next_deadline_ms(self) -> int | None:
        return None if self._is_waiting else self._due_ms

    def step(self, now_ms: int, event: Event) -> list[Effect]:
        if self.phase is Phase.STOPPED:
            return []
        if not self._has_started and isinstance(event, ControllerChanged):
            return []
        match event:
            case Started():
                self._has_started = True
                return self._register()
            case Registered():
                return self._registered(now_ms, event.broker_epoch)
            case RegistrationFailed():
                self._is_waiting = False
                return self._registration_failed(now_ms, event.error)
            case HeartbeatAnswered():
                self._is_waiting = False
                return self._answered(now_ms, event)
            case HeartbeatFailed():
                self._is_waiting = False
                return self._heartbeat_failed(now_ms, event.error)
            case Reported():
                known = self._metadata_offset, self._not_ready
                self._metadata_offset = max(self._metadata_offset, event.metadata_offset)
                self._not_ready = event.not_ready
                return [] if known == (self._metadata_offset, self._not_ready) else self._send_news()
            case ShutdownWanted():
                return self._shut_down(now_ms)
            case ControllerChanged():
                self._failures = 0
                return self._ask()
            case Tick():
                is_due = not self._is_waiting and self._due_ms is not None and now_ms >= self._due_ms
                return self._ask() if is_due else []

    # Asking

    def _ask(self) -> list[Effect]:
        return self._register() if self.phase is Phase.STARTING else self._send()

    def _register(self) -> list[Effect]:
        self._is_waiting = True
        self._due_ms = None
        return [Register(self._session_ms)]

    def _send(self) -> list[Effect]:
        self._is_waiting = True
        self._has_news = False
        self._due_ms = None
        return [
            Send(
                self.broker_epoch,
                self._metadata_offset,
                self._not_ready,
                self.phase is Phase.SHUTTING_DOWN,
                2 * self._interval_ms,
            )
        ]

    def _send_news(self) -> list[Effect]:
        self._has_news = True
        if self._is_waiting or self.phase is Phase.STARTING:
            return []
        return self._send()

    def _retry_ms(self) -> int:
        """Soon, because the controller may only just have moved; then less and less often."""
        self._failures += 1
        return int(min(RETRY_MS_MIN * 2 ** min(self._failures - 1, 16), self._interval_ms))

    # Registration

    def _registered(self, now_ms: int, broker_epoch: int) -> list[Effect]:
        self._is_waiting = False
        self._failures = 0
        self._duplicate_since_ms = None
        self.broker_epoch = broker_epoch
        self.phase = Phase.REGISTERED
        self._heard_ms = now_ms
        return self._send()

    def _registration_failed(self, now_ms: int, error: MoldauError) -> list[Effect]:
        if isinstance(error, _FOR_GOOD):
            return self._refuse(error)
        if not isinstance(error, DuplicateBrokerRegistrationError):
            # Whoever answers next may be another controller, to which everybody is alive at first.
            self._duplicate_since_ms = None
        elif self._duplicate_since_ms is None:
            self._duplicate_since_ms = now_ms
        elif now_ms - self._duplicate_since_ms > DUPLICATE_FOR_SESSIONS * self._session_ms:
            return self._refuse(error)
        self._due_ms = now_ms + self._retry_ms()
        return []

    def _refuse(self, error: MoldauError) -> list[Effect]:
        self.phase = Phase.STOPPED
        return [EndLease(), Refuse(explained(error, self._node_id))]

    # Heartbeats

    def _answered(self, now_ms: int, event: HeartbeatAnswered) -> list[Effect]:
        reply = event.reply
        self._failures = 0
        self._heard_ms = now_ms
        if self.phase is Phase.SHUTTING_DOWN:
            if reply.should_shut_down:
                return self._stop(was_handed_over=True)
            if now_ms - self._shutdown_ms >= SHUTDOWN_SESSIONS_MAX * self._session_ms:
                return self._stop(was_handed_over=False)
            # It waits for others to learn of it, which is soon.
            self._due_ms = now_ms + max(self._interval_ms // 10, 1)
        else:
            self._due_ms = max(event.sent_ms + self._interval_ms, now_ms)
        effects: list[Effect] = [self._lease(event)]
        if self.phase is Phase.REGISTERED and not reply.is_fenced:
            self.phase = Phase.ACTIVE
            effects.append(BecameActive())
        elif self.phase is Phase.ACTIVE and reply.is_fenced:
            self.phase = Phase.REGISTERED
            effects.append(WasFenced())
        if self._has_news:
            effects += self._send()
        return effects

    def _lease(self, event: HeartbeatAnswered) -> Effect:
        """From when the heartbeat was sent: the controller counts from when it came, which was later. And not from
        before a majority last knew that controller as its own."""
        if event.reply.is_fenced:
            return EndLease()
        return ProlongLease(event.sent_ms - event.reply.confirmed_age_ms + self._lease_ms)

    def _heartbeat_failed(self, now_ms: int, error: MoldauError) -> list[Effect]:
        if isinstance(error, BrokerIdNotRegisteredError | StaleBrokerEpochError):
            if self.phase is Phase.SHUTTING_DOWN:
                return self._stop(was_handed_over=True)
            effects: list[Effect] = [EndLease()]
            if self.phase is Phase.ACTIVE:
                effects.append(WasFenced())
            self.phase = Phase.STARTING
            return [*effects, *self._register()]
        if self.phase is Phase.SHUTTING_DOWN and now_ms - self._heard_ms >= self._session_ms:
            # By now it is fenced, or there is no controller that could do it.
            return self._stop(was_handed_over=False)
        self._due_ms = now_ms + self._retry_ms()
        return []

    # The end

    def _shut_down(self, now_ms: int) -> list[Effect]:
        if self.phase is Phase.STARTING:
            return self._stop(was_handed_over=False)
        if self.phase is Phase.SHUTTING_DOWN:
            return []
        self.phase = Phase.SHUTTING_DOWN
        self._heard_ms = self._shutdown_ms = now_ms
        return self._send_news()

    def _stop(self, *, was_handed_over: bool) -> list[Effect]:
        self.phase = Phase.STOPPED
        self._due_ms = None
        return [EndLease(), MayStop(was_handed_over)]


def explained(error: MoldauError, node_id: int) -> MoldauError:
    """The refusal with what to do about it; what comes over the wire is only a code."""
    match error:
        case InconsistentClusterIdError():
            return InconsistentClusterIdError(
                f"node {node_id} belongs to another cluster than the one it was pointed to ({error}); correct "
                "controller.quorum.voters, or give it an empty data.dir if it is to join this cluster"
            )
        case DuplicateBrokerRegistrationError():
            return DuplicateBrokerRegistrationError(
                f"another process runs as node {node_id} of this cluster ({error}); give this one another node.id, "
                "or stop the other one first"
            )
        case UnsupportedVersionError():
            return UnsupportedVersionError(
                f"node {node_id} does not support what the cluster works with ({error}); start it with the version of "
                "Moldau that the other nodes have"
            )
        case _:
            return InvalidRegistrationError(f"the cluster does not take node {node_id}: {error}")
