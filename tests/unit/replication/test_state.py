"""Fetch states of partitions, actions for errors, and replication quotas."""

from typing import Any
from uuid import UUID

import pytest

from moldau.client.errors import ErrorCode
from moldau.logs.store import LogName
from moldau.metadata.image import TOPIC_RESOURCE, ConfigResource, MetadataImage
from moldau.replication.fetch_session import PartitionKey
from moldau.replication.quota import ReplicationQuotaManager, TokenBucket, is_throttled_replica
from moldau.replication.state import (
    BackoffPolicy,
    FetchAction,
    PartitionFetchStates,
    action_for_error,
    add_jitter,
    should_reset_log,
)
from moldau.settings.broker import BrokerSettings
from moldau.settings.effective import EffectiveSettings
from moldau.settings.registry import LONG_MAX

A = PartitionKey(UUID(int=1), 0)
B = PartitionKey(UUID(int=1), 1)


@pytest.mark.parametrize(
    ("code", "verdict"),
    [
        (ErrorCode.none, FetchAction.APPEND),
        (ErrorCode.offset_out_of_range, FetchAction.RESET_LOG),
        (ErrorCode.not_leader_or_follower, FetchAction.AWAIT_METADATA),
        (ErrorCode.fenced_leader_epoch, FetchAction.AWAIT_METADATA),
        (ErrorCode.unknown_leader_epoch, FetchAction.AWAIT_METADATA),
        (ErrorCode.unknown_topic_id, FetchAction.AWAIT_METADATA),
        (ErrorCode.stale_broker_epoch, FetchAction.AWAIT_METADATA),
        (ErrorCode.kafka_storage_error, FetchAction.BACK_OFF),
        (ErrorCode.corrupt_message, FetchAction.BACK_OFF),
        (ErrorCode.unknown_server_error, FetchAction.BACK_OFF),
        (9999, FetchAction.BACK_OFF),
    ],
)
def test_each_partition_error_has_its_action(code: int, verdict: FetchAction) -> None:
    assert action_for_error(code, has_diverged=False) is verdict


def test_a_diverging_epoch_truncates_unless_there_is_an_error() -> None:
    assert action_for_error(ErrorCode.none, has_diverged=True) is FetchAction.TRUNCATE
    assert action_for_error(ErrorCode.fenced_leader_epoch, has_diverged=True) is FetchAction.AWAIT_METADATA


def test_only_a_log_without_common_records_is_reset() -> None:
    assert should_reset_log(offset=5, last_epoch=1, leader_start=6)
    assert should_reset_log(offset=9, last_epoch=-1, leader_start=3), "the log is empty"
    assert not should_reset_log(offset=9, last_epoch=1, leader_start=3), "it would lose records"
    assert not should_reset_log(offset=5, last_epoch=1, leader_start=-1), "the leader has not said where it begins"


def following(*keys: PartitionKey) -> PartitionFetchStates:
    fetch_states = PartitionFetchStates()
    for key in keys:
        assert fetch_states.add(key, 1, is_in_sync=False)
    return fetch_states


def test_new_partitions_and_new_epochs_are_fetched() -> None:
    fetch_states = following(A, B)
    assert not fetch_states.add(A, 1, is_in_sync=False)
    assert fetch_states.add(A, 2, is_in_sync=False)
    fetch_states.remove(B)
    assert not fetch_states.is_fetching(B)
    assert fetch_states.add(B, 1, is_in_sync=False)


def test_an_in_sync_replica_stays_in_sync_in_the_next_epoch() -> None:
    fetch_states = following(A)
    assert not fetch_states.is_in_sync(A)
    fetch_states.add(A, 2, is_in_sync=True)
    assert fetch_states.is_in_sync(A)
    fetch_states.record_success(A, is_in_sync=False)
    fetch_states.add(A, 2, is_in_sync=True)
    assert not fetch_states.is_in_sync(A), "the leader's response is newer than the metadata"


def test_a_delayed_partition_resumes_at_its_deadline() -> None:
    fetch_states = following(A, B)
    fetch_states.delay_after_failure(A, 1_000, 200, 0.5)
    assert not fetch_states.is_fetching(A)
    assert fetch_states.is_fetching(B)
    assert fetch_states.next_resume_ms() == 1_200
    assert fetch_states.resume_due(1_199) == []
    assert fetch_states.resume_due(1_200) == [A]
    assert fetch_states.is_fetching(A)
    assert fetch_states.next_resume_ms() is None


def test_delays_for_metadata_grow_up_to_the_backoff() -> None:
    fetch_states = following(A)
    should_throttle_follower = []
    for _ in range(7):
        fetch_states.delay_after_failure(A, 0, 200, 0.5, BackoffPolicy.FAST)
        should_throttle_follower.append(fetch_states.next_resume_ms())
        fetch_states.resume_due(10_000)
    assert should_throttle_follower == [10, 20, 40, 80, 160, 200, 200]
    fetch_states.record_success(A, is_in_sync=True)
    fetch_states.delay_after_failure(A, 0, 200, 0.5, BackoffPolicy.FAST)
    assert fetch_states.next_resume_ms() == 10


def test_delays_after_storage_errors_grow_until_a_success() -> None:
    fetch_states = following(A)
    should_throttle_follower = []
    for _ in range(7):
        fetch_states.delay_after_failure(A, 0, 200, 0.5, BackoffPolicy.SLOW)
        should_throttle_follower.append(fetch_states.next_resume_ms())
        fetch_states.resume_due(10_000)
    assert should_throttle_follower == [200, 400, 800, 1_600, 3_200, 5_000, 5_000]
    fetch_states.record_success(A, is_in_sync=False)
    fetch_states.delay_after_failure(A, 0, 200, 0.5, BackoffPolicy.SLOW)
    assert fetch_states.next_resume_ms() == 200


def test_a_new_leader_epoch_resumes_delayed_and_failed_partitions() -> None:
    fetch_states = following(A, B)
    fetch_states.delay_after_failure(A, 0, 200, 0.5)
    fetch_states.mark_failed(B)
    fetch_states.delay_after_failure(B, 0, 200, 0.5)
    assert fetch_states.resume_due(10_000) == [A], "a failed partition does not resume by itself"
    fetch_states.delay_after_failure(A, 10_000, 200, 0.5)
    assert fetch_states.add(A, 2, is_in_sync=False)
    assert fetch_states.add(B, 2, is_in_sync=False)
    assert fetch_states.is_fetching(A)
    assert fetch_states.is_fetching(B)
    assert fetch_states.next_resume_ms() is None


def test_jitter_spreads_delays_around_the_backoff() -> None:
    assert [add_jitter(100, random_fraction) for random_fraction in (0.0, 0.5, 0.99)] == [80, 100, 120]
    assert add_jitter(0, 0.5) == 1


# Replication quotas


def test_a_bucket_allows_its_rate_and_keeps_one_window_of_savings() -> None:
    bucket = TokenBucket(1_000)
    used = 0
    for now_ms in range(0, 10_000, 10):
        if not bucket.is_exceeded(now_ms):
            bucket.consume(100, now_ms)
            used += 100
    assert 10_000 <= used <= 11_100, "ten seconds plus the initial window"
    bucket = TokenBucket(1_000)
    bucket.consume(100, 0)
    bucket.consume(1_000, 3_600_000)
    assert bucket.is_exceeded(3_600_000)


def test_an_overdrawn_bucket_returns_how_long_it_is_exceeded() -> None:
    bucket = TokenBucket(1_000)
    bucket.consume(3_000, 0)
    wait_ms = bucket.wait_ms(0)
    assert bucket.is_exceeded(wait_ms - 1)
    assert not bucket.is_exceeded(wait_ms)
    assert bucket.wait_ms(wait_ms) == 0


def test_a_rate_of_zero_blocks_and_the_largest_is_unlimited() -> None:
    assert TokenBucket(0).is_exceeded(0)
    assert TokenBucket(0).wait_ms(0) == LONG_MAX
    unlimited = TokenBucket(LONG_MAX)
    unlimited.consume(2**60, 0)
    assert not unlimited.is_exceeded(0)


def test_a_lower_rate_takes_effect_at_once() -> None:
    bucket = TokenBucket(LONG_MAX)
    bucket.set_rate(1_000, 0)
    bucket.consume(1_000, 0)
    assert bucket.is_exceeded(0)


def test_throttled_replicas_are_pairs_or_a_wildcard() -> None:
    assert is_throttled_replica(("*",), 5, 1)
    assert is_throttled_replica(("0:1", "3:2"), 3, 2)
    assert not is_throttled_replica(("0:1", "3:2"), 3, 1)
    assert not is_throttled_replica(("13:2",), 3, 2)
    assert not is_throttled_replica((), 0, 1)


def make_quota(node_id: int, rate: int = 1_000, **topic: str) -> ReplicationQuotaManager:
    configs = {name.replace("_", "."): value for name, value in topic.items()}
    image = MetadataImage(configs={ConfigResource(TOPIC_RESOURCE, "orders"): configs})
    settings: Any = EffectiveSettings(
        BrokerSettings(leader_replication_throttled_rate=rate, follower_replication_throttled_rate=rate), image
    )
    return ReplicationQuotaManager(node_id, settings)


ORDERS = LogName("orders", 0)
VISITS = LogName("visits", 0)


def test_a_leader_throttles_only_its_listed_replicas() -> None:
    quota = make_quota(1, leader_replication_throttled_replicas="0:1")
    quota.record_sent(ORDERS, 5_000, 0)
    assert not quota.leader_may_send(ORDERS, 0)
    assert quota.leader_may_send(VISITS, 0)
    assert quota.leader_may_send(LogName("orders", 1), 0)
    assert quota.leader_may_send(ORDERS, 5_000)
    other = make_quota(2, leader_replication_throttled_replicas="0:1")
    other.record_sent(ORDERS, 5_000, 0)
    assert other.leader_may_send(ORDERS, 0)


def test_a_follower_throttles_only_partitions_that_are_not_in_sync() -> None:
    quota = make_quota(2, follower_replication_throttled_replicas="*")
    quota.record_fetched(ORDERS, 5_000, 0, is_in_sync=True)
    assert not quota.should_throttle_follower(ORDERS, 0, is_in_sync=False), (
        "bytes of in-sync partitions are not counted"
    )
    quota.record_fetched(ORDERS, 5_000, 0, is_in_sync=False)
    assert quota.should_throttle_follower(ORDERS, 0, is_in_sync=False)
    assert not quota.should_throttle_follower(ORDERS, 0, is_in_sync=True)
    assert quota.throttle_time_ms(0) == 1_000
    assert not quota.should_throttle_follower(ORDERS, 4_001, is_in_sync=False)
