"""What a broker says to the controller, when, and what it makes of the answers: event by event."""

from uuid import UUID

import pytest

from moldau.broker_lifecycle.lease import Lease
from moldau.broker_lifecycle.state import (
    BecameActive,
    ControllerChanged,
    EndLease,
    HeartbeatAnswered,
    HeartbeatFailed,
    MayStop,
    MembershipState,
    Phase,
    ProlongLease,
    Refuse,
    Register,
    Registered,
    RegistrationFailed,
    Reported,
    Send,
    ShutdownWanted,
    Started,
    Tick,
    WasFenced,
)
from moldau.controller.requests import HeartbeatReply, NotReady
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

TAKEN_IN = HeartbeatReply(is_caught_up=True, is_fenced=False, should_shut_down=False)
FENCED = HeartbeatReply(is_caught_up=False, is_fenced=True, should_shut_down=False)
STOP = HeartbeatReply(is_caught_up=True, is_fenced=True, should_shut_down=True)


def send(
    offset: int = -1, *, epoch: int = 7, not_ready: tuple[NotReady, ...] = (), stop: bool = False
) -> Send:
    return Send(epoch, offset, not_ready, stop, 2 * INTERVAL_MS)


def new_state() -> MembershipState:
    return MembershipState(3, heartbeat_interval_ms=INTERVAL_MS, session_ms=SESSION_MS)


def active_state() -> MembershipState:
    """Registered under epoch 7, and taken in by the heartbeat of 1,000 that reported offset 9."""
    state = new_state()
    state.step(0, Started())
    state.step(10, Registered(7))
    state.step(20, HeartbeatAnswered(10, FENCED))
    assert state.step(1_000, Reported(9)) == [send(9)]
    assert state.step(1_005, HeartbeatAnswered(1_000, TAKEN_IN)) == [
        ProlongLease(1_000 + LEASE_MS),
        BecameActive(),
    ]
    return state


def test_it_registers_says_where_it_is_and_becomes_active_when_it_has_caught_up() -> None:
    state = new_state()
    assert state.step(0, Started()) == [Register(SESSION_MS)]
    assert state.step(5, Reported(3)) == [], "there is nobody yet to report to"
    assert state.step(10, Registered(7)) == [send(3)]
    assert state.phase is Phase.REGISTERED
    assert state.step(20, HeartbeatAnswered(10, FENCED)) == [EndLease()]
    assert state.next_deadline_ms == 10 + INTERVAL_MS
    assert state.step(30, Reported(7)) == [send(7)], "at once, because somebody may be waiting for it"
    assert state.step(33, HeartbeatAnswered(30, TAKEN_IN)) == [ProlongLease(30 + LEASE_MS), BecameActive()]
    assert state.is_active


def test_heartbeats_go_out_at_their_interval_and_one_at_a_time() -> None:
    state = active_state()
    assert state.next_deadline_ms == 1_500
    assert state.step(1_499, Tick()) == []
    assert state.step(1_500, Tick()) == [send(9)]
    assert state.next_deadline_ms is None, "it waits for the answer"
    assert state.step(2_100, Tick()) == []
    assert state.step(2_200, Reported(10)) == []
    assert state.step(2_300, HeartbeatAnswered(1_500, TAKEN_IN)) == [
        ProlongLease(1_500 + LEASE_MS),
        send(10),
    ]


def test_the_lease_counts_from_when_the_heartbeat_was_sent_and_the_controller_was_known_to_be_one() -> None:
    state = active_state()
    state.step(1_500, Tick())
    confirmed = HeartbeatReply(True, False, False, confirmed_age_ms=400)
    assert state.step(2_400, HeartbeatAnswered(1_500, confirmed)) == [ProlongLease(1_500 - 400 + LEASE_MS)]


def test_a_new_controller_is_told_at_once_and_what_was_under_way_is_given_up() -> None:
    state = new_state()
    assert state.step(0, ControllerChanged()) == [], "it has not begun"
    state.step(0, Started())
    assert state.step(10, ControllerChanged()) == [Register(SESSION_MS)]
    state = active_state()
    state.step(1_500, Tick())
    assert state.step(1_600, ControllerChanged()) == [send(9)]
    assert state.step(1_610, HeartbeatAnswered(1_600, TAKEN_IN)) == [ProlongLease(1_600 + LEASE_MS)]
    assert state.next_deadline_ms == 2_100


def test_replicas_that_could_not_be_opened_are_reported() -> None:
    state = active_state()
    broken = (NotReady(UUID(int=4), 0, 3, "No space left on device"),)
    assert state.step(1_100, Reported(12, broken)) == [send(12, not_ready=broken)]
    state.step(1_101, HeartbeatAnswered(1_100, TAKEN_IN))
    assert state.step(1_200, Reported(12)) == [send(12)], "and that they could be after all"


def test_only_what_is_new_is_told_at_once_and_nothing_goes_back() -> None:
    state = active_state()
    assert state.step(1_100, Reported(9)) == []
    assert state.step(1_100, Reported(4)) == []
    assert state.step(1_500, Tick()) == [send(9)]


def test_a_heartbeat_that_fails_is_tried_again_soon_and_then_less_often() -> None:
    state = active_state()
    now_ms, waits = 1_500, []
    assert state.step(now_ms, Tick()) == [send(9)]
    for error in (NotControllerError(), PeerUnreachableError(""), RequestTimedOutError()) * 3:
        assert state.step(now_ms, HeartbeatFailed(error)) == []
        assert state.next_deadline_ms is not None
        waits.append(state.next_deadline_ms - now_ms)
        now_ms = state.next_deadline_ms
        assert state.step(now_ms, Tick()) == [send(9)]
    assert waits == [50, 100, 200, 400, 500, 500, 500, 500, 500]
    assert state.phase is Phase.ACTIVE, "only the controller can say otherwise"


def test_a_broker_that_is_fenced_while_it_lives_goes_on_until_it_is_not() -> None:
    state = active_state()
    state.step(1_500, Tick())
    assert state.step(1_510, HeartbeatAnswered(1_500, FENCED)) == [EndLease(), WasFenced()]
    assert not state.is_active
    assert state.step(2_000, Tick()) == [send(9)]
    assert state.step(2_010, HeartbeatAnswered(2_000, TAKEN_IN)) == [
        ProlongLease(2_000 + LEASE_MS),
        BecameActive(),
    ]


@pytest.mark.parametrize("error", [StaleBrokerEpochError(""), BrokerIdNotRegisteredError("")])
def test_a_broker_that_is_not_known_any_more_registers_anew_without_a_lease(error: MoldauError) -> None:
    state = active_state()
    state.step(1_500, Tick())
    assert state.step(1_510, HeartbeatFailed(error)) == [EndLease(), WasFenced(), Register(SESSION_MS)]
    assert state.step(1_520, Registered(30)) == [send(9, epoch=30)]
    assert state.broker_epoch == 30


def test_registration_is_tried_until_there_is_a_controller() -> None:
    state = new_state()
    state.step(0, Started())
    now_ms = 0
    for _ in range(1_000):
        assert state.step(now_ms, RegistrationFailed(NotControllerError())) == []
        assert state.next_deadline_ms is not None
        now_ms = state.next_deadline_ms
        assert state.step(now_ms, Tick()) == [Register(SESSION_MS)]


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (InconsistentClusterIdError("x"), "controller.quorum.voters"),
        (UnsupportedVersionError("x"), "version of Moldau"),
        (InvalidRegistrationError("x"), "does not take node 3"),
    ],
)
def test_what_will_not_pass_is_refused_at_once_with_what_to_do(error: MoldauError, advice: str) -> None:
    state = new_state()
    state.step(0, Started())
    [ended, refused] = state.step(10, RegistrationFailed(error))
    assert ended == EndLease()
    assert isinstance(refused, Refuse)
    assert type(refused.error) is type(error)
    assert advice in str(refused.error)
    assert state.step(20, Tick()) == [], "nothing goes on half-way"


def test_another_process_with_this_id_is_believed_in_only_when_it_outlives_its_sessions() -> None:
    state = new_state()
    state.step(0, Started())
    now_ms = 0
    while now_ms <= 3 * SESSION_MS:
        assert state.step(now_ms, RegistrationFailed(DuplicateBrokerRegistrationError(""))) == []
        assert state.next_deadline_ms is not None
        now_ms = state.next_deadline_ms
        state.step(now_ms, Tick())
    [_, refused] = state.step(now_ms, RegistrationFailed(DuplicateBrokerRegistrationError("")))
    assert isinstance(refused, Refuse)
    assert "node.id" in str(refused.error)


def test_a_new_controller_starts_the_count_of_the_other_process_anew() -> None:
    state = new_state()
    state.step(0, Started())
    for now_ms in range(0, 10 * SESSION_MS, 2 * SESSION_MS):
        assert state.step(now_ms, RegistrationFailed(DuplicateBrokerRegistrationError(""))) == []
        assert state.step(now_ms + SESSION_MS, RegistrationFailed(NotControllerError())) == []


def test_a_shutdown_is_asked_for_at_once_and_ends_when_the_controller_says_so() -> None:
    state = active_state()
    assert state.step(1_100, ShutdownWanted()) == [send(9, stop=True)]
    assert state.step(1_105, ShutdownWanted()) == [], "once is enough"
    assert state.step(1_110, HeartbeatAnswered(1_100, TAKEN_IN)) == [ProlongLease(1_100 + LEASE_MS)]
    assert state.next_deadline_ms == 1_110 + INTERVAL_MS // 10
    assert state.step(1_160, Tick()) == [send(9, stop=True)]
    assert state.step(1_165, HeartbeatAnswered(1_160, STOP)) == [EndLease(), MayStop(was_handed_over=True)]
    assert state.phase is Phase.STOPPED
    assert state.step(9_999, Tick()) == []


def test_a_shutdown_while_a_heartbeat_is_under_way_goes_with_the_next_one() -> None:
    state = active_state()
    state.step(1_500, Tick())
    assert state.step(1_510, ShutdownWanted()) == []
    assert state.step(1_520, HeartbeatAnswered(1_500, TAKEN_IN)) == [
        ProlongLease(1_500 + LEASE_MS),
        send(9, stop=True),
    ]


def test_a_shutdown_does_not_wait_for_a_controller_that_is_not_there() -> None:
    state = active_state()
    state.step(2_000, ShutdownWanted())
    now_ms = 2_000
    while (effects := state.step(now_ms, HeartbeatFailed(NotControllerError()))) == []:
        assert now_ms < 2_000 + SESSION_MS
        assert state.next_deadline_ms is not None
        now_ms = state.next_deadline_ms
        state.step(now_ms, Tick())
    assert effects == [EndLease(), MayStop(was_handed_over=False)]


def test_a_shutdown_that_others_keep_from_ending_ends_all_the_same() -> None:
    state = active_state()
    state.step(2_000, ShutdownWanted())
    now_ms = 2_000
    while MayStop(was_handed_over=False) not in state.step(now_ms, HeartbeatAnswered(now_ms, TAKEN_IN)):
        assert now_ms < 2_000 + 11 * SESSION_MS
        assert state.next_deadline_ms is not None
        now_ms = state.next_deadline_ms
        state.step(now_ms, Tick())


def test_who_never_registered_may_stop_at_once() -> None:
    state = new_state()
    state.step(0, Started())
    assert state.step(10, ShutdownWanted()) == [EndLease(), MayStop(was_handed_over=False)]
    assert state.step(20, Registered(7)) == []


class StoppedClock:
    now_ms = 0

    def monotonic_ms(self) -> int:
        return self.now_ms

    def wall_ms(self) -> int:
        return 0


def test_a_lease_is_valid_up_to_its_end_and_never_before_it_was_given() -> None:
    clock = StoppedClock()
    lease = Lease(clock)
    assert not lease.is_valid()
    lease.prolong(100)
    lease.prolong(90)
    clock.now_ms = 99
    assert lease.is_valid()
    clock.now_ms = 100
    assert not lease.is_valid()
    lease.prolong(200)
    assert lease.is_valid()
    lease.end()
    assert not lease.is_valid()
