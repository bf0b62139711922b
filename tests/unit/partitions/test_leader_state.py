"""The leader's high watermark over the maximal ISR, changes of the ISR, and fencing of followers."""

from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from moldau.controller.requests import IsrChangeResult
from moldau.errors import (
    FencedLeaderEpochError,
    IneligibleReplicaError,
    InvalidUpdateVersionError,
    NotEnoughReplicasError,
    StaleBrokerEpochError,
    UnknownLeaderEpochError,
)
from moldau.metadata.image import BrokerRegistration, PartitionRegistration
from moldau.partitions.leader_state import FollowerFetch, PartitionLeaderState
from support.replicas import broker_image

LAG_MS = 1_000
BROKERS = {node: broker_image(node) for node in (1, 2, 3)}


def image(isr: tuple[int, ...] = (1, 2, 3), partition_epoch: int = 7, **more: Any) -> PartitionRegistration:
    return PartitionRegistration(0, (1, 2, 3), isr, 1, 4, partition_epoch, **more)


def leader(
    isr: tuple[int, ...] = (1, 2, 3),
    *,
    end_offset: int = 0,
    high_watermark: int = 0,
    min_isr: int = 1,
    now_ms: int = 0,
    **more: Any,
) -> PartitionLeaderState:
    state = PartitionLeaderState(1, image(isr, **more), BROKERS, min_isr, high_watermark, end_offset, now_ms)
    state.on_durable(end_offset)
    return state


def fetch(replica: int, offset: int, *, broker_epoch: int = -1, epoch: int = 4, start: int = 0) -> FollowerFetch:
    return FollowerFetch(replica, replica * 100 if broker_epoch < 0 else broker_epoch, offset, 4, epoch, start)


def grown(state: PartitionLeaderState, end_offset: int, now_ms: int = 0) -> PartitionLeaderState:
    state.on_append(end_offset, now_ms)
    state.on_durable(end_offset)
    return state


def result(isr: tuple[int, ...], partition_epoch: int, **more: object) -> IsrChangeResult:
    return IsrChangeResult(UUID(int=9), 0, 1, 4, isr, False, partition_epoch, **more)  # type: ignore[arg-type]


# The high watermark


def test_the_high_watermark_is_the_lowest_durable_offset_of_the_isr() -> None:
    state = grown(leader(), 10)
    assert not state.on_fetch(fetch(2, 5), 0)
    assert state.on_fetch(fetch(3, 7), 0)
    assert state.high_watermark == 5
    assert state.on_image(image((1, 3), 8), BROKERS, 1)
    assert state.high_watermark == 7


def test_the_log_ends_of_followers_are_those_of_their_latest_fetches() -> None:
    state = grown(leader(), 10)
    assert state.log_end_offsets() == {1: 10, 2: -1, 3: -1}
    state.on_fetch(fetch(2, 7), 0)
    state.on_fetch(fetch(3, 10), 0)
    assert state.log_end_offsets() == {1: 10, 2: 7, 3: 10}


def test_the_leaders_own_durable_offset_counts() -> None:
    state = leader()
    state.on_append(10, 0)
    state.on_fetch(fetch(2, 10), 0)
    state.on_fetch(fetch(3, 10), 0)
    assert state.high_watermark == 0
    assert state.on_durable(6)
    assert state.high_watermark == 6


def test_the_high_watermark_never_falls() -> None:
    state = grown(leader((1, 2)), 10)
    state.on_fetch(fetch(2, 10), 0)
    assert state.high_watermark == 10
    assert not state.on_fetch(fetch(2, 3), 1), "a restarted follower"
    assert not state.on_image(image((1, 2, 3), 8), BROKERS, 1), "a lagging member"
    assert state.high_watermark == 10


def test_a_new_leader_keeps_its_high_watermark_until_all_have_fetched_in_its_epoch() -> None:
    state = leader(end_offset=10, high_watermark=6)
    assert state.high_watermark == 6
    assert not state.on_fetch(fetch(2, 10), 0)
    assert state.on_fetch(fetch(3, 9), 0)
    assert state.high_watermark == 9


def test_the_high_watermark_waits_for_a_departing_member_until_the_metadata_removes_it() -> None:
    state = grown(leader((1, 2, 3)), 10)
    state.on_fetch(fetch(2, 10), 0)
    state.on_fetch(fetch(2, 10), LAG_MS)
    wanted = state.wanted_isr(LAG_MS + 1, LAG_MS)
    assert wanted == (1, 2)
    state.propose(wanted)
    state.on_fetch(fetch(2, 10), LAG_MS + 1)
    assert state.high_watermark == 0, "every member of the committed ISR may be elected"
    assert not state.on_alter_partition_response(result((1, 2), 8)), "it may be eligible, which the answer does not say"
    assert state.isr == (1, 2)
    assert state.on_image(image((1, 2), 8), BROKERS, 1)
    assert state.high_watermark == 10


def test_a_member_that_moved_to_the_elr_has_all_committed_records() -> None:
    state = grown(leader((1, 2), min_isr=1), 10)
    state.on_fetch(fetch(2, 10), 0)
    grown(state, 20)
    state.followers[2].is_keeping_up = False
    # min.insync.replicas is 2 on the controller: it changed, or is configured differently.
    state.propose((1,))
    assert not state.on_alter_partition_response(result((1,), 8))
    state.propose((1, 3))
    state.on_fetch(fetch(3, 20), 1)
    assert not state.on_alter_partition_response(result((1, 3), 9)), "nor after another change"
    state.min_isr = 1
    assert not state.advance_high_watermark(), "settings do not change the ELR"
    assert not state.on_image(replace(image((1, 3), 9), elr=(2,)), BROKERS, 1)
    assert state.high_watermark == 10
    with pytest.raises(NotEnoughReplicasError):
        state.check_min_isr()
    assert state.on_image(image((1, 3), 10), BROKERS, 1)
    assert state.high_watermark == 20


def test_nothing_is_committed_below_the_leaders_own_min_isr() -> None:
    state = grown(leader((1, 2), min_isr=2), 10)
    state.propose((1,))
    state.on_alter_partition_response(result((1,), 8))
    assert not state.on_image(image((1,), 8), BROKERS, 2), "the ELR is empty"
    assert state.high_watermark == 0


def test_a_joining_member_counts_as_soon_as_the_controller_has_responded() -> None:
    state = grown(leader((1, 2)), 10)
    state.on_fetch(fetch(2, 10), 0)
    state.propose((1, 2, 3))
    state.on_fetch(fetch(3, 10), 0)
    state.on_alter_partition_response(result((1, 2, 3), 8))
    assert (state.isr, state.departing_replicas) == ((1, 2, 3), ())


def test_a_response_older_than_the_metadata_does_not_complete_the_next_proposal() -> None:
    state = grown(leader((1, 2)), 10)
    state.propose((1, 2, 3))
    state.on_image(image((1, 2, 3), 8), BROKERS, 1)
    state.propose((1, 2))
    state.on_alter_partition_response(result((1, 2, 3), 8))
    assert state.proposal is not None


def test_the_high_watermark_waits_for_a_proposed_member_at_once() -> None:
    state = grown(leader((1, 2)), 10)
    state.on_fetch(fetch(2, 10), 0)
    state.on_fetch(fetch(3, 10), 0)
    wanted = state.wanted_isr(0, LAG_MS)
    assert wanted == (1, 2, 3)
    state.propose(wanted)
    grown(state, 12)
    state.followers[3].is_keeping_up = False
    assert not state.on_fetch(fetch(2, 12), 1)
    assert state.high_watermark == 10, "the controller may have added it already"
    assert state.on_fetch(fetch(3, 12), 2)
    assert state.high_watermark == 12


def test_the_high_watermark_waits_for_a_follower_that_keeps_up_so_that_it_can_join() -> None:
    state = grown(leader((1,)), 10)
    state.on_fetch(fetch(3, 10), 0)
    grown(state, 11, 1)
    assert state.high_watermark == 10
    assert state.on_fetch(fetch(3, 11), 2)
    assert state.wanted_isr(2, LAG_MS) == (1, 3)


def test_the_high_watermark_does_not_wait_for_a_follower_that_stopped_fetching() -> None:
    state = grown(leader((1,)), 10)
    state.on_fetch(fetch(3, 10), 0)
    grown(state, 20, 1)
    assert state.high_watermark == 10
    assert state.wanted_isr(2 * LAG_MS, LAG_MS) is None
    assert state.advance_high_watermark()
    assert state.high_watermark == 20


def test_the_high_watermark_does_not_wait_for_a_follower_that_cannot_join() -> None:
    state = grown(leader((1,)), 10)
    state.on_fetch(fetch(3, 10), 0)
    state.brokers = {**BROKERS, 3: broker_image(3, fenced=True)}
    state.advance_high_watermark()
    grown(state, 20, 1)
    assert state.high_watermark == 20


def test_nothing_is_committed_below_min_isr() -> None:
    state = grown(leader((1,), min_isr=2), 10)
    assert state.high_watermark == 0
    assert state.on_image(image((1,), 8), BROKERS, 1)
    assert state.high_watermark == 10


def test_nothing_is_committed_while_the_elr_is_not_empty() -> None:
    state = grown(leader((1, 2), elr=(3,)), 10)
    state.on_fetch(fetch(2, 10), 0)
    assert state.high_watermark == 0
    assert state.on_image(image((1, 2), 8), BROKERS, 1)
    assert state.high_watermark == 10


# The ISR


def test_a_follower_that_has_not_caught_up_for_the_lag_time_leaves_the_isr() -> None:
    state = grown(leader(), 10)
    for each in (2, 3):
        state.on_fetch(fetch(each, 10), 0)
    grown(state, 20, 100)
    state.on_fetch(fetch(2, 20), 200)
    assert state.wanted_isr(100 + LAG_MS, LAG_MS) is None
    assert state.wanted_isr(101 + LAG_MS, LAG_MS) == (1, 2)


def test_a_follower_as_fast_as_the_leader_stays_in_the_isr() -> None:
    state = leader((1, 2))
    for second in range(1, 10):
        grown(state, second * 10, second * LAG_MS)
        state.on_fetch(fetch(2, (second - 1) * 10), second * LAG_MS)
        assert state.wanted_isr(second * LAG_MS, LAG_MS) is None


def test_a_follower_at_the_end_of_an_idle_log_stays_as_long_as_it_fetches() -> None:
    state = grown(leader((1, 2)), 10)
    state.on_fetch(fetch(2, 10), 0)
    state.on_fetch(fetch(2, 10), 999 * LAG_MS)
    assert state.wanted_isr(1_000 * LAG_MS, LAG_MS) is None
    grown(state, 11, 1_000 * LAG_MS)
    assert state.wanted_isr(1_001 * LAG_MS, LAG_MS) is None, "it had everything until the append"
    assert state.wanted_isr(1_001 * LAG_MS + 1, LAG_MS) == (1,)


def test_isr_members_have_the_lag_time_for_their_first_fetch_in_an_epoch() -> None:
    state = leader(end_offset=10, now_ms=50)
    assert state.wanted_isr(50 + LAG_MS, LAG_MS) is None
    assert state.wanted_isr(51 + LAG_MS, LAG_MS) == (1,)


def test_a_follower_joins_when_it_has_all_committed_records() -> None:
    state = grown(leader((1, 2)), 10)
    state.on_fetch(fetch(2, 8), 0)
    state.on_fetch(fetch(3, 7), 0)
    assert not state.can_join_isr(3)
    state.on_fetch(fetch(3, 10), 1)
    assert state.can_join_isr(3)
    assert state.wanted_isr(1, LAG_MS) == (1, 2, 3)


def test_a_follower_joins_only_with_everything_before_the_epoch_start() -> None:
    state = leader((1, 2), end_offset=10, high_watermark=4)
    state.on_fetch(fetch(3, 6), 0)
    assert state.wanted_isr(0, LAG_MS) is None, "the high watermark may be anywhere between 4 and 10"


@pytest.mark.parametrize(
    "broker",
    [broker_image(3, fenced=True), broker_image(3, epoch=301), replace(broker_image(3), in_controlled_shutdown=True)],
    ids=["fenced", "started anew", "shutting down"],
)
def test_a_follower_cannot_join_whose_broker_is(broker: BrokerRegistration) -> None:
    state = grown(leader((1, 2)), 10)
    state.on_fetch(fetch(3, 10), 0)
    state.brokers = {**BROKERS, 3: broker}
    state.advance_high_watermark()
    assert not state.can_join_isr(3)
    assert state.wanted_isr(0, LAG_MS) is None


def test_a_proposal_has_the_broker_epoch_in_which_a_member_caught_up() -> None:
    state = grown(leader((1, 2)), 10)
    state.on_fetch(fetch(2, 10), 0)
    state.on_fetch(fetch(3, 10), 0)
    proposal = state.propose((1, 2, 3))
    state.brokers = {**BROKERS, 3: broker_image(3, epoch=301)}
    state.advance_high_watermark()
    state.on_fetch(fetch(3, 0, broker_epoch=301), 1)
    assert state.proposal == proposal
    assert proposal.broker_epochs == (100, 200, 300)


def test_a_member_that_stops_fetching_leaves_even_with_all_records() -> None:
    state = grown(leader((1, 2, 3)), 10)
    state.on_fetch(fetch(2, 10), 0)
    state.on_fetch(fetch(3, 10), 0)
    assert state.wanted_isr(LAG_MS, LAG_MS) is None
    state.on_fetch(fetch(2, 10), LAG_MS)
    assert state.wanted_isr(LAG_MS + 1, LAG_MS) == (1, 2), "its disk may have failed"


def test_a_member_that_repeats_its_fetch_stays() -> None:
    state = grown(leader((1, 2)), 10)
    state.on_fetch(fetch(2, 10), 0)
    assert state.on_repeated_fetch(2, 200, LAG_MS)
    assert state.wanted_isr(2 * LAG_MS, LAG_MS) is None
    assert not state.on_repeated_fetch(2, 201, 2 * LAG_MS), "in another incarnation"
    assert not state.on_repeated_fetch(3, 300, 2 * LAG_MS), "not in sync, so its offset matters"
    assert state.wanted_isr(2 * LAG_MS + 1, LAG_MS) == (1,)


def test_a_removed_member_has_to_fetch_before_it_can_rejoin() -> None:
    state = grown(leader((1, 2, 3)), 10)
    state.on_fetch(fetch(2, 10), 0)
    state.on_fetch(fetch(3, 10), 0)
    state.on_image(image((1, 2), 8), BROKERS, 1)
    assert state.wanted_isr(1, LAG_MS) is None
    assert not state.can_join_isr(3)
    grown(state, 11)
    assert state.on_fetch(fetch(2, 11), 2), "the high watermark does not wait for it"
    state.on_fetch(fetch(3, 11), 3)
    assert state.wanted_isr(3, LAG_MS) == (1, 2, 3)


def test_only_one_proposal_is_pending_at_a_time() -> None:
    state = grown(leader((1, 2)), 10)
    state.on_fetch(fetch(3, 10), 0)
    state.propose((1, 2, 3))
    assert state.wanted_isr(100 * LAG_MS, LAG_MS) is None


def test_a_failed_proposal_stays_pending_because_a_duplicate_may_have_been_committed() -> None:
    state = grown(leader((1, 2)), 10)
    state.propose((1, 2, 3))
    state.on_alter_partition_response(result((), -1, error=InvalidUpdateVersionError("it is 9 now")))
    assert state.maximal_isr() == (1, 2, 3)
    assert state.wanted_isr(0, LAG_MS) is None, "only the metadata shows the outcome"


def test_the_high_watermark_waits_for_a_rejected_member_until_duplicates_of_the_proposal_are_invalid() -> None:
    state = grown(leader((1, 2)), 10)
    state.on_fetch(fetch(2, 10), 0)
    state.propose((1, 2, 3))
    state.on_alter_partition_response(result((), -1, error=IneligibleReplicaError("it is fenced")))
    assert state.maximal_isr() == (1, 2, 3)
    grown(state, 12)
    state.on_fetch(fetch(2, 12), 1)
    assert state.high_watermark == 10
    wanted = state.wanted_isr(1, LAG_MS)
    assert wanted == (1, 2), "the same ISR in a new partition epoch"
    state.propose(wanted)
    assert state.on_alter_partition_response(result((1, 2), 8))
    assert state.maximal_isr() == (1, 2)
    assert state.high_watermark == 12
    assert state.wanted_isr(1, LAG_MS) is None


def test_newer_metadata_completes_a_proposal() -> None:
    state = grown(leader((1, 2)), 10)
    state.propose((1, 2, 3))
    state.on_image(image((1, 2), 7), BROKERS, 1)
    assert state.maximal_isr() == (1, 2, 3), "the state on which it is based does not show its outcome"
    state.on_image(image((1, 2), 8), BROKERS, 1)
    assert state.maximal_isr() == (1, 2)


def test_a_response_older_than_the_metadata_changes_nothing() -> None:
    state = leader((1, 2))
    state.on_image(image((1,), 9), BROKERS, 1)
    state.on_alter_partition_response(result((1, 2, 3), 8))
    assert state.isr == (1,)


def test_a_leader_elected_uncleanly_proposes_to_end_the_recovery() -> None:
    assert leader((1,), is_recovering=True).wanted_isr(0, LAG_MS) == (1,)


# Checks of callers


def test_appends_with_acks_all_need_min_isr() -> None:
    leader((1, 2), min_isr=2).check_min_isr()
    with pytest.raises(NotEnoughReplicasError):
        leader((1,), min_isr=2).check_min_isr()


@pytest.mark.parametrize(
    ("follower_fetch", "expected_error"),
    [
        (fetch(2, 0, epoch=3), FencedLeaderEpochError),
        (fetch(2, 0, epoch=5), UnknownLeaderEpochError),
        (fetch(2, 0, epoch=-1), FencedLeaderEpochError),
        (fetch(9, 0), UnknownLeaderEpochError),
        (fetch(1, 0), UnknownLeaderEpochError),
        (fetch(2, 0, broker_epoch=199), StaleBrokerEpochError),
        (fetch(2, 0, broker_epoch=201), UnknownLeaderEpochError),
    ],
    ids=["past epoch", "future epoch", "no epoch", "stranger", "the leader itself", "former life", "unknown life"],
)
def test_an_invalid_follower_fetch_is_rejected(follower_fetch: FollowerFetch, expected_error: type[Exception]) -> None:
    with pytest.raises(expected_error):
        leader().check_follower_fetch(follower_fetch)
    leader().check_follower_fetch(fetch(2, 0))


def test_the_low_watermark_is_the_lowest_start_offset_of_live_replicas() -> None:
    state = grown(leader(), 10)
    assert state.low_watermark(4) == -1, "no follower has fetched yet"
    state.on_fetch(fetch(2, 10, start=4), 0)
    state.on_fetch(fetch(3, 10, start=2), 0)
    assert state.low_watermark(4) == 2
    state.brokers = {**BROKERS, 3: broker_image(3, fenced=True)}
    state.advance_high_watermark()
    assert state.low_watermark(4) == 4
