"""What a fetcher asks for and what answers mean; throttles."""

from typing import Any
from uuid import UUID

import pytest

from moldau.client.errors import ErrorCode
from moldau.logs.store import LogName
from moldau.metadata.image import TOPIC_RESOURCE, ClusterImage, ConfigResource
from moldau.replication.session import PartitionKey
from moldau.replication.state import (
    FollowedPartitions,
    Rest,
    Verdict,
    begins_anew,
    jittered,
    judge,
)
from moldau.replication.throttle import Bucket, Throttle, names
from moldau.settings.broker import BrokerSettings
from moldau.settings.effective import EffectiveSettings
from moldau.settings.registry import LONG_MAX

A = PartitionKey(UUID(int=1), 0)
B = PartitionKey(UUID(int=1), 1)


@pytest.mark.parametrize(
    ("code", "verdict"),
    [
        (ErrorCode.none, Verdict.TAKE),
        (ErrorCode.offset_out_of_range, Verdict.BEGIN_ANEW),
        (ErrorCode.not_leader_or_follower, Verdict.WAIT_FOR_METADATA),
        (ErrorCode.fenced_leader_epoch, Verdict.WAIT_FOR_METADATA),
        (ErrorCode.unknown_leader_epoch, Verdict.WAIT_FOR_METADATA),
        (ErrorCode.unknown_topic_id, Verdict.WAIT_FOR_METADATA),
        (ErrorCode.stale_broker_epoch, Verdict.WAIT_FOR_METADATA),
        (ErrorCode.kafka_storage_error, Verdict.REST),
        (ErrorCode.corrupt_message, Verdict.REST),
        (ErrorCode.unknown_server_error, Verdict.REST),
        (9999, Verdict.REST),
    ],
)
def test_each_error_of_a_partition_has_its_verdict(code: int, verdict: Verdict) -> None:
    assert judge(code, has_diverged=False) is verdict


def test_a_diverging_epoch_cuts_back_unless_there_is_an_error() -> None:
    assert judge(ErrorCode.none, has_diverged=True) is Verdict.CUT_BACK
    assert judge(ErrorCode.fenced_leader_epoch, has_diverged=True) is Verdict.WAIT_FOR_METADATA


def test_only_a_log_that_shares_nothing_with_its_leaders_begins_anew() -> None:
    assert begins_anew(offset=5, last_epoch=1, leader_start=6)
    assert begins_anew(offset=9, last_epoch=-1, leader_start=3), "it has no records"
    assert not begins_anew(offset=9, last_epoch=1, leader_start=3), "it would lose records"
    assert not begins_anew(offset=5, last_epoch=1, leader_start=-1), "the leader has not said where it begins"


def following(*keys: PartitionKey) -> FollowedPartitions:
    followed = FollowedPartitions()
    for key in keys:
        assert followed.follow(key, 1, is_in_sync=False)
    return followed


def test_new_partitions_and_new_epochs_are_begun() -> None:
    followed = following(A, B)
    assert not followed.follow(A, 1, is_in_sync=False)
    assert followed.follow(A, 2, is_in_sync=False)
    followed.leave(B)
    assert not followed.is_fetching(B)
    assert followed.follow(B, 1, is_in_sync=False)


def test_a_replica_in_sync_is_so_in_the_next_epoch_too_and_is_not_throttled() -> None:
    followed = following(A)
    assert not followed.is_in_sync(A)
    followed.follow(A, 2, is_in_sync=True)
    assert followed.is_in_sync(A)
    followed.progressed(A, is_in_sync=False)
    followed.follow(A, 2, is_in_sync=True)
    assert not followed.is_in_sync(A), "what its leader answers is newer than the metadata"


def test_a_partition_rests_until_its_time_is_up() -> None:
    followed = following(A, B)
    followed.rest_after_failure(A, 1_000, 200, 0.5)
    assert not followed.is_fetching(A)
    assert followed.is_fetching(B)
    assert followed.next_wake_ms() == 1_200
    assert followed.wake(1_199) == []
    assert followed.wake(1_200) == [A]
    assert followed.is_fetching(A)
    assert followed.next_wake_ms() is None


def test_waiting_for_metadata_begins_with_short_rests_that_grow_up_to_the_backoff() -> None:
    followed = following(A)
    rests = []
    for _ in range(7):
        followed.rest_after_failure(A, 0, 200, 0.5, Rest.BRIEF)
        rests.append(followed.next_wake_ms())
        followed.wake(10_000)
    assert rests == [10, 20, 40, 80, 160, 200, 200]
    followed.progressed(A, is_in_sync=True)
    followed.rest_after_failure(A, 0, 200, 0.5, Rest.BRIEF)
    assert followed.next_wake_ms() == 10


def test_rests_of_a_partition_that_cannot_be_written_here_grow_until_it_goes_on() -> None:
    followed = following(A)
    rests = []
    for _ in range(7):
        followed.rest_after_failure(A, 0, 200, 0.5, Rest.LONGER)
        rests.append(followed.next_wake_ms())
        followed.wake(10_000)
    assert rests == [200, 400, 800, 1_600, 3_200, 5_000, 5_000]
    followed.progressed(A, is_in_sync=False)
    followed.rest_after_failure(A, 0, 200, 0.5, Rest.LONGER)
    assert followed.next_wake_ms() == 200


def test_a_new_leader_epoch_ends_a_rest_and_even_a_failure() -> None:
    followed = following(A, B)
    followed.rest_after_failure(A, 0, 200, 0.5)
    followed.fail(B)
    followed.rest_after_failure(B, 0, 200, 0.5)
    assert followed.wake(10_000) == [A], "a failed partition does not come back by itself"
    followed.rest_after_failure(A, 10_000, 200, 0.5)
    assert followed.follow(A, 2, is_in_sync=False)
    assert followed.follow(B, 2, is_in_sync=False)
    assert followed.is_fetching(A)
    assert followed.is_fetching(B)
    assert followed.next_wake_ms() is None


def test_pauses_are_spread_around_what_was_asked_for() -> None:
    assert [jittered(100, chance) for chance in (0.0, 0.5, 0.99)] == [80, 100, 120]
    assert jittered(0, 0.5) == 1


# Throttles


def test_a_bucket_lets_a_rate_through_and_no_savings_of_long_ago() -> None:
    bucket = Bucket(1_000)
    used = 0
    for now_ms in range(0, 10_000, 10):
        if not bucket.is_exceeded(now_ms):
            bucket.take(100, now_ms)
            used += 100
    assert 10_000 <= used <= 11_100, "ten seconds' worth, and what one window had at first"
    bucket = Bucket(1_000)
    bucket.take(100, 0)
    bucket.take(1_000, 3_600_000)
    assert bucket.is_exceeded(3_600_000)


def test_an_overdrawn_bucket_says_how_long_it_is_exceeded() -> None:
    bucket = Bucket(1_000)
    bucket.take(3_000, 0)
    wait_ms = bucket.wait_ms(0)
    assert bucket.is_exceeded(wait_ms - 1)
    assert not bucket.is_exceeded(wait_ms)
    assert bucket.wait_ms(wait_ms) == 0


def test_a_rate_of_zero_lets_nothing_through_and_the_largest_everything() -> None:
    assert Bucket(0).is_exceeded(0)
    assert Bucket(0).wait_ms(0) == LONG_MAX
    unlimited = Bucket(LONG_MAX)
    unlimited.take(2**60, 0)
    assert not unlimited.is_exceeded(0)


def test_a_lower_rate_counts_at_once() -> None:
    bucket = Bucket(LONG_MAX)
    bucket.set_rate(1_000, 0)
    bucket.take(1_000, 0)
    assert bucket.is_exceeded(0)


def test_a_list_names_partitions_at_brokers_or_all() -> None:
    assert names(("*",), 5, 1)
    assert names(("0:1", "3:2"), 3, 2)
    assert not names(("0:1", "3:2"), 3, 1)
    assert not names(("13:2",), 3, 2)
    assert not names((), 0, 1)


def throttle(node_id: int, rate: int = 1_000, **topic: str) -> Throttle:
    configs = {name.replace("_", "."): value for name, value in topic.items()}
    image = ClusterImage(configs={ConfigResource(TOPIC_RESOURCE, "orders"): configs})
    settings: Any = EffectiveSettings(
        BrokerSettings(leader_replication_throttled_rate=rate, follower_replication_throttled_rate=rate),
        image,
    )
    return Throttle(node_id, settings)


ORDERS = LogName("orders", 0)
VISITS = LogName("visits", 0)


def test_a_leader_holds_back_only_the_replicas_that_its_topic_names_for_it() -> None:
    made = throttle(1, leader_replication_throttled_replicas="0:1")
    made.note(ORDERS, 5_000, 0)
    assert not made.allows(ORDERS, 2, 0)
    assert made.allows(VISITS, 2, 0)
    assert made.allows(LogName("orders", 1), 2, 0)
    assert made.allows(ORDERS, 2, 5_000)
    other = throttle(2, leader_replication_throttled_replicas="0:1")
    other.note(ORDERS, 5_000, 0)
    assert other.allows(ORDERS, 2, 0)


def test_a_follower_rests_with_what_it_catches_up_on_and_never_with_what_is_in_sync() -> None:
    made = throttle(2, follower_replication_throttled_replicas="*")
    made.fetched(ORDERS, 5_000, 0, is_in_sync=True)
    assert not made.rests(ORDERS, 0, is_in_sync=False), "what is in sync is not counted"
    made.fetched(ORDERS, 5_000, 0, is_in_sync=False)
    assert made.rests(ORDERS, 0, is_in_sync=False)
    assert not made.rests(ORDERS, 0, is_in_sync=True)
    assert made.rest_ms(0) == 1_000
    assert not made.rests(ORDERS, 4_001, is_in_sync=False)
