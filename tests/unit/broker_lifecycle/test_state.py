"""The broker's requests to the controller and its reactions to the responses, event by event."""

from uuid import UUID

import pytest

from moldau.broker_lifecycle.manager import BrokerLease
from moldau.broker_lifecycle.state import (
    BrokerLifecycleState,
    BrokerState,
    ControllerChanged,
    EndLease,
    ExtendLease,
    Fenced,
    HeartbeatFailed,
    HeartbeatSucceeded,
    MetadataPublished,
    MetadataStalled,
    RegistrationFailed,
    RegistrationSucceeded,
    RejectRegistration,
    SendBrokerHeartbeat,
    SendRegistration,
    ShutdownCompleted,
    ShutdownRequested,
    StartRequested,
    TimerFired,
    Unfenced,
)
from moldau.controller.requests import BrokerHeartbeatReply, OfflineReplica
from moldau.errors import (
    BrokerIdNotRegisteredError,
    DuplicateBrokerRegistrationError,
    InconsistentClusterIdError,
    InvalidRegistrationError,
    MoldauError,
    NotControllerError,
    PeerUnreachableError,
    RequestTimedOutError,
    StaleBrokerEpochError,
    UnsupportedVersionError,
)

INTERVAL_MS, SESSION_MS = 500, 3_000
LEASE_MS = 2_500

TAKEN_IN = BrokerHeartbeatReply(is_caught_up=True, is_fenced=False, should_shut_down=False)
REPLY_FENCED = BrokerHeartbeatReply(is_caught_up=False, is_fenced=True, should_shut_down=False)
STOP = BrokerHeartbeatReply(is_caught_up=True, is_fenced=True, should_shut_down=True)


def send(
    offset: int = -1, *, epoch: int = 7, not_ready: tuple[OfflineReplica, ...] = (), stop: bool = False
) -> SendBrokerHeartbeat:
    return SendBrokerHeartbeat(epoch, offset, not_ready, stop, 2 * INTERVAL_MS)


def new_state() -> BrokerLifecycleState:
    return BrokerLifecycleState(3, heartbeat_interval_ms=INTERVAL_MS, session_ms=SESSION_MS)


def active_state() -> BrokerLifecycleState:
    """Registered with epoch 7 and unfenced by the heartbeat at 1,000 that reported offset 9."""
    state = new_state()
    state.step(0, StartRequested())
    state.step(10, RegistrationSucceeded(7))
    state.step(20, HeartbeatSucceeded(10, REPLY_FENCED))
    assert state.step(1_000, MetadataPublished(9)) == [send(9)]
    assert state.step(1_005, HeartbeatSucceeded(1_000, TAKEN_IN)) == [ExtendLease(1_000 + LEASE_MS), Unfenced()]
    return state


def test_a_broker_registers_and_becomes_active_when_caught_up() -> None:
    state = new_state()
    assert state.step(0, StartRequested()) == [SendRegistration(SESSION_MS)]
    assert state.step(5, MetadataPublished(3)) == [], "it is not registered yet"
    assert state.step(10, RegistrationSucceeded(7)) == [send(3)]
    assert state.phase is BrokerState.FENCED
    assert state.step(20, HeartbeatSucceeded(10, REPLY_FENCED)) == [EndLease()]
    assert state.next_deadline_ms == 10 + INTERVAL_MS
    assert state.step(30, MetadataPublished(7)) == [send(7)], "at once, because somebody may be waiting for it"
    assert state.step(33, HeartbeatSucceeded(30, TAKEN_IN)) == [ExtendLease(30 + LEASE_MS), Unfenced()]
    assert state.is_active


def test_heartbeats_are_sent_at_their_interval_one_at_a_time() -> None:
    state = active_state()
    assert state.next_deadline_ms == 1_500
    assert state.step(1_499, TimerFired()) == []
    assert state.step(1_500, TimerFired()) == [send(9)]
    assert state.next_deadline_ms is None, "a request is in flight"
    assert state.step(2_100, TimerFired()) == []
    assert state.step(2_200, MetadataPublished(10)) == []
    assert state.step(2_300, HeartbeatSucceeded(1_500, TAKEN_IN)) == [ExtendLease(1_500 + LEASE_MS), send(10)]


def test_the_lease_counts_from_the_sending_and_the_last_confirmation_of_the_controller() -> None:
    state = active_state()
    state.step(1_500, TimerFired())
    confirmed = BrokerHeartbeatReply(True, False, False, confirmed_age_ms=400)
    assert state.step(2_400, HeartbeatSucceeded(1_500, confirmed)) == [ExtendLease(1_500 - 400 + LEASE_MS)]


def test_a_broker_that_cannot_store_metadata_has_no_lease_and_is_fenced() -> None:
    """Otherwise it would not learn that other brokers lead its partitions, and could not hand over the others."""
    state = active_state()
    wish = send(9)._replace(want_fence=True)
    assert state.step(1_100, MetadataStalled()) == [EndLease(), wish]
    assert state.step(1_150, MetadataStalled()) == []
    assert state.step(1_160, HeartbeatSucceeded(1_100, REPLY_FENCED)) == [EndLease(), Fenced()]
    # The broker catches up, and then the controller unfences it.
    assert state.step(1_700, MetadataPublished(11)) == [send(11)]
    assert state.step(1_710, HeartbeatSucceeded(1_700, TAKEN_IN)) == [ExtendLease(1_700 + LEASE_MS), Unfenced()]


def test_a_heartbeat_that_was_sent_before_the_stall_gives_no_lease() -> None:
    state = active_state()
    state.step(1_500, TimerFired())
    assert state.step(1_505, MetadataStalled()) == [EndLease()]
    # Older metadata may be published meanwhile.
    assert state.step(1_508, MetadataPublished(10)) == []
    wish = send(10)._replace(want_fence=True)
    assert state.step(1_510, HeartbeatSucceeded(1_500, TAKEN_IN)) == [EndLease(), wish]
    state.step(2_600, HeartbeatFailed(RequestTimedOutError("no response")))
    assert state.step(2_700, TimerFired()) == [wish]


def test_a_new_controller_gets_a_heartbeat_at_once() -> None:
    state = new_state()
    assert state.step(0, ControllerChanged()) == [], "it has not started"
    state.step(0, StartRequested())
    assert state.step(10, ControllerChanged()) == [SendRegistration(SESSION_MS)]
    state = active_state()
    state.step(1_500, TimerFired())
    assert state.step(1_600, ControllerChanged()) == [send(9)]
    assert state.step(1_610, HeartbeatSucceeded(1_600, TAKEN_IN)) == [ExtendLease(1_600 + LEASE_MS)]
    assert state.next_deadline_ms == 2_100


def test_replicas_that_could_not_be_opened_are_reported() -> None:
    state = active_state()
    broken = (OfflineReplica(UUID(int=4), 0, 3, "No space left on device"),)
    assert state.step(1_100, MetadataPublished(12, broken)) == [send(12, not_ready=broken)]
    state.step(1_101, HeartbeatSucceeded(1_100, TAKEN_IN))
    assert state.step(1_200, MetadataPublished(12)) == [send(12)], "a replica that is ready again is reported too"


def test_only_changes_are_reported_at_once_and_offsets_never_decrease() -> None:
    state = active_state()
    assert state.step(1_100, MetadataPublished(9)) == []
    assert state.step(1_100, MetadataPublished(4)) == []
    assert state.step(1_500, TimerFired()) == [send(9)]


def test_a_failed_heartbeat_is_retried_with_backoff() -> None:
    state = active_state()
    now_ms, waits = 1_500, []
    assert state.step(now_ms, TimerFired()) == [send(9)]
    for error in (NotControllerError(), PeerUnreachableError(""), RequestTimedOutError()) * 3:
        assert state.step(now_ms, HeartbeatFailed(error)) == []
        assert state.next_deadline_ms is not None
        waits.append(state.next_deadline_ms - now_ms)
        now_ms = state.next_deadline_ms
        assert state.step(now_ms, TimerFired()) == [send(9)]
    assert waits == [50, 100, 200, 400, 500, 500, 500, 500, 500]
    assert state.phase is BrokerState.ACTIVE, "only the controller fences it"


def test_a_fenced_broker_keeps_sending_heartbeats_until_unfenced() -> None:
    state = active_state()
    state.step(1_500, TimerFired())
    assert state.step(1_510, HeartbeatSucceeded(1_500, REPLY_FENCED)) == [EndLease(), Fenced()]
    assert not state.is_active
    assert state.step(2_000, TimerFired()) == [send(9)]
    assert state.step(2_010, HeartbeatSucceeded(2_000, TAKEN_IN)) == [ExtendLease(2_000 + LEASE_MS), Unfenced()]


@pytest.mark.parametrize("error", [StaleBrokerEpochError(""), BrokerIdNotRegisteredError("")])
def test_an_unknown_broker_registers_again_without_a_lease(error: MoldauError) -> None:
    state = active_state()
    state.step(1_500, TimerFired())
    assert state.step(1_510, HeartbeatFailed(error)) == [EndLease(), Fenced(), SendRegistration(SESSION_MS)]
    assert state.step(1_520, RegistrationSucceeded(30)) == [send(9, epoch=30)]
    assert state.broker_epoch == 30


def test_registration_is_retried_until_there_is_a_controller() -> None:
    state = new_state()
    state.step(0, StartRequested())
    now_ms = 0
    for _ in range(1_000):
        assert state.step(now_ms, RegistrationFailed(NotControllerError())) == []
        assert state.next_deadline_ms is not None
        now_ms = state.next_deadline_ms
        assert state.step(now_ms, TimerFired()) == [SendRegistration(SESSION_MS)]


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (InconsistentClusterIdError("x"), "controller.quorum.voters"),
        (UnsupportedVersionError("x"), "version of Moldau"),
        (InvalidRegistrationError("x"), "registration of node 3"),
    ],
)
def test_fatal_registration_errors_are_raised_at_once_with_advice(error: MoldauError, advice: str) -> None:
    state = new_state()
    state.step(0, StartRequested())
    [ended, rejected] = state.step(10, RegistrationFailed(error))
    assert ended == EndLease()
    assert isinstance(rejected, RejectRegistration)
    assert type(rejected.error) is type(error)
    assert advice in str(rejected.error)
    assert state.step(20, TimerFired()) == [], "it has stopped"


def test_a_duplicate_registration_is_fatal_only_after_several_sessions() -> None:
    state = new_state()
    state.step(0, StartRequested())
    now_ms = 0
    while now_ms <= 3 * SESSION_MS:
        assert state.step(now_ms, RegistrationFailed(DuplicateBrokerRegistrationError(""))) == []
        assert state.next_deadline_ms is not None
        now_ms = state.next_deadline_ms
        state.step(now_ms, TimerFired())
    [_, rejected] = state.step(now_ms, RegistrationFailed(DuplicateBrokerRegistrationError("")))
    assert isinstance(rejected, RejectRegistration)
    assert "node.id" in str(rejected.error)


def test_a_new_controller_restarts_the_duplicate_timeout() -> None:
    state = new_state()
    state.step(0, StartRequested())
    for now_ms in range(0, 10 * SESSION_MS, 2 * SESSION_MS):
        assert state.step(now_ms, RegistrationFailed(DuplicateBrokerRegistrationError(""))) == []
        assert state.step(now_ms + SESSION_MS, RegistrationFailed(NotControllerError())) == []


def test_a_shutdown_is_requested_at_once_and_completes_with_the_controllers_consent() -> None:
    state = active_state()
    assert state.step(1_100, ShutdownRequested()) == [send(9, stop=True)]
    assert state.step(1_105, ShutdownRequested()) == [], "a second request changes nothing"
    assert state.step(1_110, HeartbeatSucceeded(1_100, TAKEN_IN)) == [ExtendLease(1_100 + LEASE_MS)]
    assert state.next_deadline_ms == 1_110 + INTERVAL_MS // 10
    assert state.step(1_160, TimerFired()) == [send(9, stop=True)]
    assert state.step(1_165, HeartbeatSucceeded(1_160, STOP)) == [EndLease(), ShutdownCompleted(leadership_moved=True)]
    assert state.phase is BrokerState.STOPPED
    assert state.step(9_999, TimerFired()) == []


def test_a_shutdown_during_a_heartbeat_goes_into_the_next_one() -> None:
    state = active_state()
    state.step(1_500, TimerFired())
    assert state.step(1_510, ShutdownRequested()) == []
    assert state.step(1_520, HeartbeatSucceeded(1_500, TAKEN_IN)) == [ExtendLease(1_500 + LEASE_MS), send(9, stop=True)]


def test_a_shutdown_does_not_wait_for_a_missing_controller() -> None:
    state = active_state()
    state.step(2_000, ShutdownRequested())
    now_ms = 2_000
    while (effects := state.step(now_ms, HeartbeatFailed(NotControllerError()))) == []:
        assert now_ms < 2_000 + SESSION_MS
        assert state.next_deadline_ms is not None
        now_ms = state.next_deadline_ms
        state.step(now_ms, TimerFired())
    assert effects == [EndLease(), ShutdownCompleted(leadership_moved=False)]


def test_a_blocked_shutdown_completes_after_a_limit() -> None:
    state = active_state()
    state.step(2_000, ShutdownRequested())
    now_ms = 2_000
    while ShutdownCompleted(leadership_moved=False) not in state.step(now_ms, HeartbeatSucceeded(now_ms, TAKEN_IN)):
        assert now_ms < 2_000 + 11 * SESSION_MS
        assert state.next_deadline_ms is not None
        now_ms = state.next_deadline_ms
        state.step(now_ms, TimerFired())


def test_an_unregistered_broker_stops_at_once() -> None:
    state = new_state()
    state.step(0, StartRequested())
    assert state.step(10, ShutdownRequested()) == [EndLease(), ShutdownCompleted(leadership_moved=False)]
    assert state.step(20, RegistrationSucceeded(7)) == []


class StoppedClock:
    now_ms = 0

    def monotonic_ms(self) -> int:
        return self.now_ms

    def monotonic_us(self) -> int:
        return self.now_ms * 1_000

    def wall_ms(self) -> int:
        return 0


def test_a_lease_is_valid_from_its_grant_to_its_expiry() -> None:
    clock = StoppedClock()
    lease = BrokerLease(clock)
    assert not lease.is_valid()
    lease.extend(100)
    lease.extend(90)
    clock.now_ms = 99
    assert lease.is_valid()
    clock.now_ms = 100
    assert not lease.is_valid()
    lease.extend(200)
    assert lease.is_valid()
    lease.end()
    assert not lease.is_valid()
