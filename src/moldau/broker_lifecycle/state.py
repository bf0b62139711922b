"""Decides what a broker sends to the controller and when, and how it handles the responses.

One request is in flight at a time. A report that is made during a request is part of the next request, which is sent
right after the response.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from moldau.concurrency.backoff import exponential_backoff_ms
from moldau.controller.requests import BrokerHeartbeatReply, OfflineReplica
from moldau.errors import (
    BrokerIdNotRegisteredError,
    DuplicateBrokerRegistrationError,
    InconsistentClusterIdError,
    InvalidRegistrationError,
    MoldauError,
    StaleBrokerEpochError,
    UnsupportedVersionError,
)

NO_BROKER_EPOCH = -1
RETRY_MS_MIN = 50
SHUTDOWN_SESSIONS_MAX = 10
"""How long a controlled shutdown waits until other brokers lead the partitions, in session timeouts."""
DUPLICATE_SESSIONS_MAX = 3
"""How long a registration that is rejected as a duplicate is retried, in session timeouts. After this time the session
of a dead process has expired, even if the controller changed meanwhile."""


class BrokerState(Enum):
    STARTING = "starting"
    """The broker is not registered."""
    FENCED = "fenced"
    """The broker is registered, but leads no partition and is in no ISR."""
    ACTIVE = "active"
    CONTROLLED_SHUTDOWN = "controlled shutdown"
    """Other replicas take over the leadership of the broker's partitions."""
    STOPPED = "stopped"


# Events


@dataclass(frozen=True, slots=True)
class StartRequested:
    pass


class RegistrationSucceeded(NamedTuple):
    broker_epoch: int


class RegistrationFailed(NamedTuple):
    error: MoldauError


class HeartbeatSucceeded(NamedTuple):
    sent_ms: int
    reply: BrokerHeartbeatReply


class HeartbeatFailed(NamedTuple):
    error: MoldauError


class MetadataPublished(NamedTuple):
    """The node has published the metadata up to `metadata_offset`. `not_ready` are replicas that could not be
    opened."""

    metadata_offset: int
    not_ready: tuple[OfflineReplica, ...] = ()


@dataclass(frozen=True, slots=True)
class MetadataStalled:
    """The node could not store metadata records. They may contain new leaders of its partitions."""


@dataclass(frozen=True, slots=True)
class ShutdownRequested:
    pass


@dataclass(frozen=True, slots=True)
class ControllerChanged:
    """Another controller is active. A request in flight to the previous controller was cancelled."""


@dataclass(frozen=True, slots=True)
class TimerFired:
    pass


Event = (
    StartRequested
    | RegistrationSucceeded
    | RegistrationFailed
    | HeartbeatSucceeded
    | HeartbeatFailed
    | MetadataPublished
    | MetadataStalled
    | ShutdownRequested
    | ControllerChanged
    | TimerFired
)


# Effects


class SendRegistration(NamedTuple):
    timeout_ms: int


class SendBrokerHeartbeat(NamedTuple):
    broker_epoch: int
    metadata_offset: int
    not_ready: Sequence[OfflineReplica]
    want_shut_down: bool
    timeout_ms: int
    want_fence: bool = False


class ExtendLease(NamedTuple):
    expires_ms: int


@dataclass(frozen=True, slots=True)
class EndLease:
    pass


@dataclass(frozen=True, slots=True)
class Unfenced:
    pass


@dataclass(frozen=True, slots=True)
class Fenced:
    pass


class ShutdownCompleted(NamedTuple):
    """The broker may stop. `leadership_moved` is False if other replicas may not have taken over its partitions yet."""

    leadership_moved: bool


class RejectRegistration(NamedTuple):
    """The controller rejected the registration, and a retry would not help."""

    error: MoldauError


Effect = (
    SendRegistration
    | SendBrokerHeartbeat
    | ExtendLease
    | EndLease
    | Unfenced
    | Fenced
    | ShutdownCompleted
    | RejectRegistration
)

_FATAL_ERRORS = (InconsistentClusterIdError, InvalidRegistrationError, UnsupportedVersionError)


class BrokerLifecycleState:
    def __init__(self, node_id: int, *, heartbeat_interval_ms: int, session_ms: int) -> None:
        self._node_id = node_id
        self._interval_ms = heartbeat_interval_ms
        self._session_ms = session_ms
        self._lease_ms = session_ms - session_ms // 6
        """The length of the lease. It is shorter than the session, so that clock drift does not matter."""
        self.phase = BrokerState.STARTING
        self.broker_epoch = NO_BROKER_EPOCH
        self._has_started = False
        self._metadata_offset = -1
        self._wants_fence = False
        """Whether the controller must fence this broker. It unfences the broker when that has applied the decision."""
        self._is_fence_requested = False
        """Whether the request in flight asks for it."""
        self._not_ready: tuple[OfflineReplica, ...] = ()
        self._is_request_pending = False
        self._has_unsent_report = False
        """Whether a report was made since the last heartbeat was sent."""
        self._next_request_ms: int | None = None
        self._failures = 0
        self._duplicate_since_ms: int | None = None
        self._last_response_ms = 0
        """The time of the controller's last response or of the shutdown request, whichever is later."""
        self._shutdown_requested_ms = 0

    @property
    def is_active(self) -> bool:
        """Whether the broker is unfenced and not in controlled shutdown."""
        return self.phase is BrokerState.ACTIVE

    @property
    def next_deadline_ms(self) -> int | None:
        return None if self._is_request_pending else self._next_request_ms

    def step(self, now_ms: int, event: Event) -> list[Effect]:
        if self.phase is BrokerState.STOPPED:
            return []
        if not self._has_started and isinstance(event, ControllerChanged):
            return []
        match event:
            case StartRequested():
                self._has_started = True
                return self._send_registration()
            case RegistrationSucceeded():
                return self._registration_succeeded(now_ms, event.broker_epoch)
            case RegistrationFailed():
                self._is_request_pending = False
                return self._registration_failed(now_ms, event.error)
            case HeartbeatSucceeded():
                self._is_request_pending = False
                return self._heartbeat_succeeded(now_ms, event)
            case HeartbeatFailed():
                self._is_request_pending = False
                return self._heartbeat_failed(now_ms, event.error)
            case MetadataStalled():
                if self._wants_fence:
                    return []
                self._wants_fence = True
                return [EndLease(), *self._send_or_defer()]
            case MetadataPublished():
                known = self._metadata_offset, self._not_ready
                self._metadata_offset = max(self._metadata_offset, event.metadata_offset)
                self._not_ready = event.not_ready
                return [] if known == (self._metadata_offset, self._not_ready) else self._send_or_defer()
            case ShutdownRequested():
                return self._shut_down(now_ms)
            case ControllerChanged():
                self._failures = 0
                return self._next_request()
            case TimerFired():
                is_due = (
                    not self._is_request_pending
                    and self._next_request_ms is not None
                    and now_ms >= self._next_request_ms
                )
                return self._next_request() if is_due else []

    # Requests

    def _next_request(self) -> list[Effect]:
        return self._send_registration() if self.phase is BrokerState.STARTING else self._send_heartbeat()

    def _send_registration(self) -> list[Effect]:
        self._is_request_pending = True
        self._next_request_ms = None
        return [SendRegistration(self._session_ms)]

    def _send_heartbeat(self) -> list[Effect]:
        self._is_request_pending = True
        self._is_fence_requested = self._wants_fence
        self._has_unsent_report = False
        self._next_request_ms = None
        return [
            SendBrokerHeartbeat(
                self.broker_epoch,
                self._metadata_offset,
                self._not_ready,
                self.phase is BrokerState.CONTROLLED_SHUTDOWN,
                2 * self._interval_ms,
                self._wants_fence,
            )
        ]

    def _send_or_defer(self) -> list[Effect]:
        self._has_unsent_report = True
        if self._is_request_pending or self.phase is BrokerState.STARTING:
            return []
        return self._send_heartbeat()

    def _next_backoff_ms(self) -> int:
        self._failures += 1
        return exponential_backoff_ms(self._failures, RETRY_MS_MIN, self._interval_ms)

    # Registration

    def _registration_succeeded(self, now_ms: int, broker_epoch: int) -> list[Effect]:
        self._is_request_pending = False
        self._failures = 0
        self._duplicate_since_ms = None
        self.broker_epoch = broker_epoch
        self.phase = BrokerState.FENCED
        self._last_response_ms = now_ms
        return self._send_heartbeat()

    def _registration_failed(self, now_ms: int, error: MoldauError) -> list[Effect]:
        if isinstance(error, _FATAL_ERRORS):
            return self._reject(error)
        if not isinstance(error, DuplicateBrokerRegistrationError):
            # Restart the time limit for duplicates. The next response may come from a new controller, which gives every
            # broker a full session, so a dead process can count as a duplicate for that long again.
            self._duplicate_since_ms = None
        elif self._duplicate_since_ms is None:
            self._duplicate_since_ms = now_ms
        elif now_ms - self._duplicate_since_ms > DUPLICATE_SESSIONS_MAX * self._session_ms:
            return self._reject(error)
        self._next_request_ms = now_ms + self._next_backoff_ms()
        return []

    def _reject(self, error: MoldauError) -> list[Effect]:
        self.phase = BrokerState.STOPPED
        return [EndLease(), RejectRegistration(explain_rejection(error, self._node_id))]

    # Heartbeats

    def _heartbeat_succeeded(self, now_ms: int, event: HeartbeatSucceeded) -> list[Effect]:
        reply = event.reply
        self._failures = 0
        self._last_response_ms = now_ms
        if self.phase is BrokerState.CONTROLLED_SHUTDOWN:
            if reply.should_shut_down:
                return self._stop(leadership_moved=True)
            if now_ms - self._shutdown_requested_ms >= SHUTDOWN_SESSIONS_MAX * self._session_ms:
                return self._stop(leadership_moved=False)
            # Ask again soon whether this broker may stop: the other brokers quickly apply the change of leaders.
            self._next_request_ms = now_ms + max(self._interval_ms // 10, 1)
        else:
            self._next_request_ms = max(event.sent_ms + self._interval_ms, now_ms)
        effects: list[Effect] = [self._lease_effect(event)]
        if self.phase is BrokerState.FENCED and not reply.is_fenced:
            self.phase = BrokerState.ACTIVE
            effects.append(Unfenced())
        elif self.phase is BrokerState.ACTIVE and reply.is_fenced:
            self.phase = BrokerState.FENCED
            effects.append(Fenced())
        if self._has_unsent_report:
            effects += self._send_heartbeat()
        return effects

    def _lease_effect(self, event: HeartbeatSucceeded) -> Effect:
        """Returns how the response changes the lease.

        The lease counts from when the heartbeat was sent. The controller's session counts from when the heartbeat
        arrived, which is later.

        The lease is shortened by the time since a majority of voters last confirmed the controller, because another
        controller may have been elected in that time.

        A broker that cannot store metadata does not learn that it is no longer the leader of a partition. So it has no
        lease until the controller has fenced it, which moves the leadership of its other partitions too.
        """
        if self._is_fence_requested and event.reply.is_fenced:
            self._wants_fence = False
        if event.reply.is_fenced or self._wants_fence:
            return EndLease()
        return ExtendLease(event.sent_ms - event.reply.confirmed_age_ms + self._lease_ms)

    def _heartbeat_failed(self, now_ms: int, error: MoldauError) -> list[Effect]:
        if isinstance(error, BrokerIdNotRegisteredError | StaleBrokerEpochError):
            if self.phase is BrokerState.CONTROLLED_SHUTDOWN:
                return self._stop(leadership_moved=True)
            effects: list[Effect] = [EndLease()]
            if self.phase is BrokerState.ACTIVE:
                effects.append(Fenced())
            self.phase = BrokerState.STARTING
            return [*effects, *self._send_registration()]
        if self.phase is BrokerState.CONTROLLED_SHUTDOWN and now_ms - self._last_response_ms >= self._session_ms:
            # Stop now, because either the session has expired and the broker is fenced, or there is no controller.
            return self._stop(leadership_moved=False)
        self._next_request_ms = now_ms + self._next_backoff_ms()
        return []

    # Shutdown

    def _shut_down(self, now_ms: int) -> list[Effect]:
        if self.phase is BrokerState.STARTING:
            return self._stop(leadership_moved=False)
        if self.phase is BrokerState.CONTROLLED_SHUTDOWN:
            return []
        self.phase = BrokerState.CONTROLLED_SHUTDOWN
        self._last_response_ms = self._shutdown_requested_ms = now_ms
        return self._send_or_defer()

    def _stop(self, *, leadership_moved: bool) -> list[Effect]:
        self.phase = BrokerState.STOPPED
        self._next_request_ms = None
        return [EndLease(), ShutdownCompleted(leadership_moved)]


def explain_rejection(error: MoldauError, node_id: int) -> MoldauError:
    """Returns the error with advice for the operator, because the response contains only an error code."""
    match error:
        case InconsistentClusterIdError():
            return InconsistentClusterIdError(
                f"node {node_id} belongs to another cluster than controller.quorum.voters ({error}); correct that "
                "setting, or use an empty data.dir to join this cluster"
            )
        case DuplicateBrokerRegistrationError():
            return DuplicateBrokerRegistrationError.with_advice(node_id, error)
        case UnsupportedVersionError():
            return UnsupportedVersionError(
                f"node {node_id} does not support the cluster's feature levels ({error}); start it with the version "
                "of Moldau that the other nodes run"
            )
        case _:
            return InvalidRegistrationError(f"the controller rejected the registration of node {node_id}: {error}")
