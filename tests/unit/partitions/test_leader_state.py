"""The leader's decisions: the high watermark over the maximal in-sync set, who joins and leaves it, who is believed."""

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
from moldau.metadata.image import PartitionRegistration
from moldau.partitions.leader_state import FollowerFetch, LeaderState
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
) -> LeaderState:
    state = LeaderState.begin(
        1,
        image(isr, **more),
        BROKERS,
        min_isr=min_isr,
        high_watermark=high_watermark,
        end_offset=end_offset,
        now_ms=now_ms,
    )
    state.on_durable(end_offset)
    return state


def fetch(
    replica: int, offset: int, *, broker_epoch: int = -1, epoch: int = 4, start: int = 0
) -> FollowerFetch:
    return FollowerFetch(
        replica, replica * 100 if broker_epoch < 0 else broker_epoch, offset, 4, epoch, start
    )


def grown(state: LeaderState, end_offset: int, now_ms: int = 0) -> LeaderState:
    state.on_append(end_offset, now_ms)
    state.on_durable(end_offset)
    return state


def result(isr: tuple[int, ...], partition_epoch: int, **more: object) -> IsrChangeResult:
    return IsrChangeResult(UUID(int=9), 0, 1, 4, isr, False, partition_epoch, **more)  # type: ignore[arg-type]


# The high watermark


def test_the_high_watermark_is_the_least_durable_offset_of_the_in_sync_set() -> None:
    state = grown(leader(), 10)
    assert not state.on_fetch(fetch(2, 5), 0)
    assert state.on_fetch(fetch(3, 7), 0)
    assert state.high_watermark == 5
    assert state.on_image(image((1, 3), 8), BROKERS, 1)
    assert state.high_watermark == 7


def test_the_leaders_own_disk_counts_like_any_other() -> None:
    state = leader()
    state.on_append(10, 0)
    state.on_fetch(fetch(2, 10), 0)
    state.on_fetch(fetch(3, 10), 0)
    assert state.high_watermark == 0
    assert state.on_durable(6)
    assert state.high_watermark == 6


def test_it_never_falls() -> None:
    state = grown(leader((1, 2)), 10)
    state.on_fetch(fetch(2, 10), 0)
    assert state.high_watermark == 10
    assert not state.on_fetch(fetch(2, 3), 1), "a follower that started anew"
    assert not state.on_image(image((1, 2, 3), 8), BROKERS, 1), "a member that lags"
    assert state.high_watermark == 10


def test_a_new_leader_keeps_what_it_knew_until_all_have_fetched_in_its_epoch() -> None:
    state = leader(end_offset=10, high_watermark=6)
    assert state.high_watermark == 6
    assert not state.on_fetch(fetch(2, 10), 0)
    assert state.on_fetch(fetch(3, 9), 0)
    assert state.high_watermark == 9


def test_it_waits_for_a_member_that_is_asked_to_leave_until_the_metadata_shows_that_it_has_left() -> None:
    state = grown(leader((1, 2, 3)), 10)
    state.on_fetch(fetch(2, 10), 0)
    state.on_fetch(fetch(2, 10), LAG_MS)
    wanted = state.wanted_isr(LAG_MS + 1, LAG_MS)
    assert wanted == (1, 2)
    state.propose(wanted)
    state.on_fetch(fetch(2, 10), LAG_MS + 1)
    assert state.high_watermark == 0, "whoever is in the committed set may be elected"
    assert not state.on_alter_partition_response(result((1, 2), 8)), (
        "it may be eligible, which the answer does not say"
    )
    assert state.isr == (1, 2)
    assert state.on_image(image((1, 2), 8), BROKERS, 1)
    assert state.high_watermark == 10


def test_a_member_that_has_become_eligible_by_leaving_has_all_that_is_committed() -> None:
    state = grown(leader((1, 2), min_isr=1), 10)
    state.on_fetch(fetch(2, 10), 0)
    grown(state, 20)
    state.followers[2].is_keeping_up = False
    # min.insync.replicas is 2 at the controller by now: a change that is on its way, or another setting there.
    state.propose((1,))
    assert not state.on_alter_partition_response(result((1,), 8))
    state.propose((1, 3))
    state.on_fetch(fetch(3, 20), 1)
    assert not state.on_alter_partition_response(result((1, 3), 9)), "nor after another change on top of it"
    assert not state.on_min_isr(1), "settings say nothing of who is eligible"
    assert not state.on_image(replace(image((1, 3), 9), elr=(2,)), BROKERS, 1)
    assert state.high_watermark == 10
    with pytest.raises(NotEnoughReplicasError):
        state.check_min_isr()
    assert state.on_image(image((1, 3), 10), BROKERS, 1)
    assert state.high_watermark == 20


def test_nothing_is_committed_by_fewer_than_this_leader_needs_though_the_controller_needs_fewer() -> None:
    state = grown(leader((1, 2), min_isr=2), 10)
    state.propose((1,))
    state.on_alter_partition_response(result((1,), 8))
    assert not state.on_image(image((1,), 8), BROKERS, 2), "the controller has named nobody eligible"
    assert state.high_watermark == 0


def test_a_member_that_joins_counts_as_soon_as_the_controller_has_answered() -> None:
    state = grown(leader((1, 2)), 10)
    state.on_fetch(fetch(2, 10), 0)
    state.propose((1, 2, 3))
    state.on_fetch(fetch(3, 10), 0)
    state.on_alter_partition_response(result((1, 2, 3), 8))
    assert (state.isr, state.departing_replicas) == ((1, 2, 3), ())


def test_an_answer_that_comes_after_its_metadata_does_not_settle_the_next_proposal() -> None:
    state = grown(leader((1, 2)), 10)
    state.propose((1, 2, 3))
    state.on_image(image((1, 2, 3), 8), BROKERS, 1)
    state.propose((1, 2))
    state.on_alter_partition_response(result((1, 2, 3), 8))
    assert state.proposal is not None


def test_it_waits_for_a_member_that_is_asked_to_join_from_that_moment_on() -> None:
    state = grown(leader((1, 2)), 10)
    state.on_fetch(fetch(2, 10), 0)
    state.on_fetch(fetch(3, 10), 0)
    wanted = state.wanted_isr(0, LAG_MS)
    assert wanted == (1, 2, 3)
    state.propose(wanted)
    grown(state, 12)
    state.followers[3].is_keeping_up = False
    assert not state.on_fetch(fetch(2, 12), 1)
    assert state.high_watermark == 10, "the controller may have made it a member already"
    assert state.on_fetch(fetch(3, 12), 2)
    assert state.high_watermark == 12


def test_it_waits_for_who_keeps_up_so_that_it_can_join_under_steady_writing() -> None:
    state = grown(leader((1,)), 10)
    state.on_fetch(fetch(3, 10), 0)
    grown(state, 11, 1)
    assert state.high_watermark == 10
    assert state.on_fetch(fetch(3, 11), 2)
    assert state.wanted_isr(2, LAG_MS) == (1, 3)


def test_it_does_not_wait_for_who_kept_up_once_and_has_stopped() -> None:
    state = grown(leader((1,)), 10)
    state.on_fetch(fetch(3, 10), 0)
    grown(state, 20, 1)
    assert state.high_watermark == 10
    assert state.wanted_isr(2 * LAG_MS, LAG_MS) is None
    assert state.advance_high_watermark()
    assert state.high_watermark == 20


def test_it_does_not_wait_for_who_keeps_up_and_may_not_join() -> None:
    state = grown(leader((1,)), 10)
    state.on_fetch(fetch(3, 10), 0)
    state.on_brokers({**BROKERS, 3: broker_image(3, fenced=True)})
    grown(state, 20, 1)
    assert state.high_watermark == 20


def test_below_min_in_sync_nothing_is_committed_so_that_who_left_last_stays_eligible() -> None:
    state = grown(leader((1,), min_isr=2), 10)
    assert state.high_watermark == 0
    assert state.on_image(image((1,), 8), BROKERS, 1)
    assert state.high_watermark == 10


def test_nothing_is_committed_while_there_are_eligible_replicas() -> None:
    state = grown(leader((1, 2), elr=(3,)), 10)
    state.on_fetch(fetch(2, 10), 0)
    assert state.high_watermark == 0
    assert state.on_image(image((1, 2), 8), BROKERS, 1)
    assert state.high_watermark == 10


# The in-sync set


def test_a_follower_that_has_not_caught_up_for_the_lag_time_leaves() -> None:
    state = grown(leader(), 10)
    for each in (2, 3):
        state.on_fetch(fetch(each, 10), 0)
    grown(state, 20, 100)
    state.on_fetch(fetch(2, 20), 200)
    assert state.wanted_isr(100 + LAG_MS, LAG_MS) is None
    assert state.wanted_isr(101 + LAG_MS, LAG_MS) == (1, 2)


def test_a_follower_that_keeps_the_pace_stays_though_it_never_has_all() -> None:
    state = leader((1, 2))
    for second in range(1, 10):
        grown(state, second * 10, second * LAG_MS)
        state.on_fetch(fetch(2, (second - 1) * 10), second * LAG_MS)
        assert state.wanted_isr(second * LAG_MS, LAG_MS) is None


def test_a_follower_at_the_end_of_an_idle_log_stays_as_long_as_it_asks() -> None:
    state = grown(leader((1, 2)), 10)
    state.on_fetch(fetch(2, 10), 0)
    state.on_fetch(fetch(2, 10), 999 * LAG_MS)
    assert state.wanted_isr(1_000 * LAG_MS, LAG_MS) is None
    grown(state, 11, 1_000 * LAG_MS)
    assert state.wanted_isr(1_001 * LAG_MS, LAG_MS) is None, "it had all until the append"
    assert state.wanted_isr(1_001 * LAG_MS + 1, LAG_MS) == (1,)


def test_who_was_in_sync_when_the_epoch_began_has_the_lag_time_to_show_up() -> None:
    state = leader(end_offset=10, now_ms=50)
    assert state.wanted_isr(50 + LAG_MS, LAG_MS) is None
    assert state.wanted_isr(51 + LAG_MS, LAG_MS) == (1,)


def test_a_follower_joins_when_it_has_all_that_is_committed() -> None:
    state = grown(leader((1, 2)), 10)
    state.on_fetch(fetch(2, 8), 0)
    state.on_fetch(fetch(3, 7), 0)
    assert not state.can_join_isr(3)
    state.on_fetch(fetch(3, 10), 1)
    assert state.can_join_isr(3)
    assert state.wanted_isr(1, LAG_MS) == (1, 2, 3)


def test_a_follower_joins_only_with_all_that_the_leader_began_with() -> None:
    state = leader((1, 2), end_offset=10, high_watermark=4)
    state.on_fetch(fetch(3, 6), 0)
    assert state.wanted_isr(0, LAG_MS) is None, "what is committed between 4 and 10 is not known yet"


@pytest.mark.parametrize(
    "broker",
    [
        broker_image(3, fenced=True),
        broker_image(3, epoch=301),
        replace(broker_image(3), in_controlled_shutdown=True),
    ],
    ids=["fenced", "started anew", "shutting down"],
)
def test_a_follower_does_not_join_whose_broker_is(broker: object) -> None:
    state = grown(leader((1, 2)), 10)
    state.on_fetch(fetch(3, 10), 0)
    state.on_brokers({**BROKERS, 3: broker})  # type: ignore[dict-item]
    assert not state.can_join_isr(3)
    assert state.wanted_isr(0, LAG_MS) is None


def test_a_proposal_names_the_life_in_which_a_member_caught_up_though_it_starts_anew_later() -> None:
    state = grown(leader((1, 2)), 10)
    state.on_fetch(fetch(2, 10), 0)
    state.on_fetch(fetch(3, 10), 0)
    proposal = state.propose((1, 2, 3))
    state.on_brokers({**BROKERS, 3: broker_image(3, epoch=301)})
    state.on_fetch(fetch(3, 0, broker_epoch=301), 1)
    assert state.proposal == proposal
    assert proposal.broker_epochs == (100, 200, 300)


def test_a_member_that_asks_no_more_leaves_though_it_has_all_there_is() -> None:
    state = grown(leader((1, 2, 3)), 10)
    state.on_fetch(fetch(2, 10), 0)
    state.on_fetch(fetch(3, 10), 0)
    assert state.wanted_isr(LAG_MS, LAG_MS) is None
    state.on_fetch(fetch(2, 10), LAG_MS)
    assert state.wanted_isr(LAG_MS + 1, LAG_MS) == (1, 2), "its disk may have failed: it could take no more"


def test_a_member_that_asks_for_the_same_again_stays() -> None:
    state = grown(leader((1, 2)), 10)
    state.on_fetch(fetch(2, 10), 0)
    assert state.on_repeated_fetch(2, 200, LAG_MS)
    assert state.wanted_isr(2 * LAG_MS, LAG_MS) is None
    assert not state.on_repeated_fetch(2, 201, 2 * LAG_MS), "in another life"
    assert not state.on_repeated_fetch(3, 300, 2 * LAG_MS), "not in sync, so what it has matters"
    assert state.wanted_isr(2 * LAG_MS + 1, LAG_MS) == (1,)


def test_a_member_that_was_put_out_has_to_fetch_before_it_is_in_sync_again() -> None:
    state = grown(leader((1, 2, 3)), 10)
    state.on_fetch(fetch(2, 10), 0)
    state.on_fetch(fetch(3, 10), 0)
    state.on_image(image((1, 2), 8), BROKERS, 1)
    assert state.wanted_isr(1, LAG_MS) is None
    assert not state.can_join_isr(3)
    grown(state, 11)
    assert state.on_fetch(fetch(2, 11), 2), "nor is it waited for"
    state.on_fetch(fetch(3, 11), 3)
    assert state.wanted_isr(3, LAG_MS) == (1, 2, 3)


def test_one_proposal_at_a_time() -> None:
    state = grown(leader((1, 2)), 10)
    state.on_fetch(fetch(3, 10), 0)
    state.propose((1, 2, 3))
    assert state.wanted_isr(100 * LAG_MS, LAG_MS) is None


def test_a_refused_proposal_may_have_been_made_by_another_copy_of_it() -> None:
    state = grown(leader((1, 2)), 10)
    state.propose((1, 2, 3))
    state.on_alter_partition_response(result((), -1, error=InvalidUpdateVersionError("it is 9 now")))
    assert state.maximal_isr() == (1, 2, 3)
    assert state.wanted_isr(0, LAG_MS) is None, "the metadata will tell"


def test_a_member_that_was_refused_is_waited_for_until_a_late_copy_of_the_proposal_can_do_nothing() -> None:
    state = grown(leader((1, 2)), 10)
    state.on_fetch(fetch(2, 10), 0)
    state.propose((1, 2, 3))
    state.on_alter_partition_response(result((), -1, error=IneligibleReplicaError("it is fenced")))
    assert state.maximal_isr() == (1, 2, 3)
    grown(state, 12)
    state.on_fetch(fetch(2, 12), 1)
    assert state.high_watermark == 10
    wanted = state.wanted_isr(1, LAG_MS)
    assert wanted == (1, 2), "the same set in a new partition epoch"
    state.propose(wanted)
    assert state.on_alter_partition_response(result((1, 2), 8))
    assert state.maximal_isr() == (1, 2)
    assert state.high_watermark == 12
    assert state.wanted_isr(1, LAG_MS) is None


def test_the_metadata_settles_a_proposal_when_it_shows_a_later_state() -> None:
    state = grown(leader((1, 2)), 10)
    state.propose((1, 2, 3))
    state.on_image(image((1, 2), 7), BROKERS, 1)
    assert state.maximal_isr() == (1, 2, 3), "the state it was thought up on says nothing of it"
    state.on_image(image((1, 2), 8), BROKERS, 1)
    assert state.maximal_isr() == (1, 2)


def test_an_answer_older_than_the_metadata_changes_nothing() -> None:
    state = leader((1, 2))
    state.on_image(image((1,), 9), BROKERS, 1)
    state.on_alter_partition_response(result((1, 2, 3), 8))
    assert state.isr == (1,)


def test_a_leader_that_was_elected_uncleanly_says_that_its_log_is_in_order() -> None:
    assert leader((1,), is_recovering=True).wanted_isr(0, LAG_MS) == (1,)


# Who may ask


def test_writes_need_min_in_sync() -> None:
    leader((1, 2), min_isr=2).check_min_isr()
    with pytest.raises(NotEnoughReplicasError):
        leader((1,), min_isr=2).check_min_isr()


@pytest.mark.parametrize(
    ("asked", "expected_error"),
    [
        (fetch(2, 0, epoch=3), FencedLeaderEpochError),
        (fetch(2, 0, epoch=5), UnknownLeaderEpochError),
        (fetch(2, 0, epoch=-1), FencedLeaderEpochError),
        (fetch(9, 0), UnknownLeaderEpochError),
        (fetch(1, 0), UnknownLeaderEpochError),
        (fetch(2, 0, broker_epoch=199), StaleBrokerEpochError),
        (fetch(2, 0, broker_epoch=201), UnknownLeaderEpochError),
    ],
    ids=[
        "past epoch",
        "future epoch",
        "no epoch",
        "stranger",
        "the leader itself",
        "former life",
        "unknown life",
    ],
)
def test_a_follower_is_refused_that_is_none(asked: FollowerFetch, expected_error: type[Exception]) -> None:
    with pytest.raises(expected_error):
        leader().check_follower_fetch(asked)
    leader().check_follower_fetch(fetch(2, 0))


def test_the_low_watermark_is_the_lowest_start_of_the_living() -> None:
    state = grown(leader(), 10)
    assert state.low_watermark(4) == -1, "nobody has said where its log begins"
    state.on_fetch(fetch(2, 10, start=4), 0)
    state.on_fetch(fetch(3, 10, start=2), 0)
    assert state.low_watermark(4) == 2
    state.on_brokers({**BROKERS, 3: broker_image(3, fenced=True)})
    assert state.low_watermark(4) == 4
