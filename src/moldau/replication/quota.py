"""Replication quotas (KIP-73), which limit the bytes per second of replicas that are not in the ISR. Pure.

Topic configs list the throttled replicas as partition:broker pairs. Broker configs set the rates.
"""

from collections.abc import Sequence

from moldau.logs.store import LogName
from moldau.settings.effective import EffectiveSettings
from moldau.settings.registry import LONG_MAX

WINDOW_MS = 1_000
"""The capacity of a bucket: as many bytes as the rate allows in this time."""


class TokenBucket:
    """A token bucket of bytes. Tokens are consumed after the transfer, so their number may become negative."""

    def __init__(self, rate: int) -> None:
        self._rate = rate
        self._tokens = self._capacity()
        """The number of tokens in thousandths of a byte, so that the refill per millisecond is an integer."""
        self._refilled_ms: int | None = None

    def _capacity(self) -> int:
        return self._rate * WINDOW_MS

    def set_rate(self, rate: int, now_ms: int) -> None:
        """Sets the rate in bytes per second. LONG_MAX means unlimited, and 0 blocks all transfers."""
        if rate != self._rate:
            self._refill(now_ms)
            self._rate = rate
            self._tokens = min(self._tokens, self._capacity())

    def is_exceeded(self, now_ms: int) -> bool:
        if self._rate >= LONG_MAX:
            return False
        self._refill(now_ms)
        return self._tokens <= 0

    def consume(self, size: int, now_ms: int) -> None:
        if self._rate < LONG_MAX:
            self._refill(now_ms)
            self._tokens -= size * 1000

    def wait_ms(self, now_ms: int) -> int:
        """Returns for how many milliseconds the quota stays exceeded; LONG_MAX if the rate is 0."""
        if not self.is_exceeded(now_ms):
            return 0
        return LONG_MAX if self._rate == 0 else -self._tokens // self._rate + 1

    def _refill(self, now_ms: int) -> None:
        if self._refilled_ms is not None:
            self._tokens = min(self._tokens + self._rate * (now_ms - self._refilled_ms), self._capacity())
        self._refilled_ms = now_ms


def is_throttled_replica(replicas: Sequence[str], partition: int, broker_id: int) -> bool:
    """Returns whether a topic's throttled replicas include this replica."""
    return tuple(replicas) == ("*",) or f"{partition}:{broker_id}" in replicas


class ReplicationQuotaManager:
    """The quotas of one broker as leader and as follower. Settings are read in each call, because they may change."""

    def __init__(self, node_id: int, settings: EffectiveSettings) -> None:
        self._node_id = node_id
        self._settings = settings
        self._leader_bucket = TokenBucket(settings.broker.leader_replication_throttled_rate)
        self._follower_bucket = TokenBucket(settings.broker.follower_replication_throttled_rate)

    # Leader, when it sends to replicas outside the ISR

    def leader_may_send(self, partition: LogName, now_ms: int) -> bool:
        return not (self._is_throttled_leader(partition, now_ms) and self._leader_bucket.is_exceeded(now_ms))

    def record_sent(self, partition: LogName, size: int, now_ms: int) -> None:
        if self._is_throttled_leader(partition, now_ms):
            self._leader_bucket.consume(size, now_ms)

    # Follower

    def should_throttle_follower(self, partition: LogName, now_ms: int, *, is_in_sync: bool) -> bool:
        is_throttled = not is_in_sync and self._is_throttled_follower(partition, now_ms)
        return is_throttled and self._follower_bucket.is_exceeded(now_ms)

    def record_fetched(self, partition: LogName, size: int, now_ms: int, *, is_in_sync: bool) -> None:
        if not is_in_sync and self._is_throttled_follower(partition, now_ms):
            self._follower_bucket.consume(size, now_ms)

    def throttle_time_ms(self, now_ms: int) -> int:
        """Returns the delay until a throttled partition is checked again; at most WINDOW_MS, because rates may
        change."""
        return min(self._follower_bucket.wait_ms(now_ms), WINDOW_MS)

    def _is_throttled_leader(self, partition: LogName, now_ms: int) -> bool:
        """Returns whether the topic lists this broker as a throttled leader. If so, applies the current rate."""
        replicas = self._settings.topic(partition.topic).leader_replication_throttled_replicas
        if not is_throttled_replica(replicas, partition.partition, self._node_id):
            return False
        self._leader_bucket.set_rate(self._settings.broker.leader_replication_throttled_rate, now_ms)
        return True

    def _is_throttled_follower(self, partition: LogName, now_ms: int) -> bool:
        """Returns whether the topic lists this broker as a throttled follower. If so, applies the current rate."""
        replicas = self._settings.topic(partition.topic).follower_replication_throttled_replicas
        if not is_throttled_replica(replicas, partition.partition, self._node_id):
            return False
        self._follower_bucket.set_rate(self._settings.broker.follower_replication_throttled_rate, now_ms)
        return True
