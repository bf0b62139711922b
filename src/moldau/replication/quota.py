"""Replication throttles (KIP-73): replicas that catch up use no more than a rate of bytes, in-sync ones are never held
back. Pure.

An operator names the replicas (partition:broker pairs in a topic's settings) and the rates (of brokers). A leader
counts what it sends, a follower what it fetches, each in a bucket of its own.
"""

from collections.abc import Sequence

from moldau.logs.store import LogName
from moldau.settings.effective import EffectiveSettings
from moldau.settings.registry import LONG_MAX

WINDOW_MS = 1_000
"""What was not used within it cannot be saved up."""


class TokenBucket:
    """Bytes that may be used: they come in at a rate, and are taken after the fact, so that it may be overdrawn by one
    answer."""

    def __init__(self, rate: int) -> None:
        self._rate = rate
        self._tokens = self._capacity()
        """In bytes times 1000, so that milliseconds give whole numbers."""
        self._refilled_ms: int | None = None

    def _capacity(self) -> int:
        return self._rate * WINDOW_MS

    def set_rate(self, rate: int, now_ms: int) -> None:
        """Bytes a second; LONG_MAX is no limit, and 0 lets nothing through."""
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
        """How long it stays exceeded; LONG_MAX where that is for as long as the rate is 0."""
        if not self.is_exceeded(now_ms):
            return 0
        return LONG_MAX if self._rate == 0 else -self._tokens // self._rate + 1

    def _refill(self, now_ms: int) -> None:
        if self._refilled_ms is not None:
            self._tokens = min(self._tokens + self._rate * (now_ms - self._refilled_ms), self._capacity())
        self._refilled_ms = now_ms


def is_throttled_replica(replicas: Sequence[str], partition: int, broker_id: int) -> bool:
    """Whether a topic's list of throttled replicas has this one."""
    return tuple(replicas) == ("*",) or f"{partition}:{broker_id}" in replicas


class ReplicationQuotaManager:
    """Both sides of one broker. Settings are looked at with every question: they change while it runs."""

    def __init__(self, node_id: int, settings: EffectiveSettings) -> None:
        self._node_id = node_id
        self._settings = settings
        self._leader_bucket = TokenBucket(settings.broker.leader_replication_throttled_rate)
        self._follower_bucket = TokenBucket(settings.broker.follower_replication_throttled_rate)

    # The leader's side, asked only for replicas that are not in sync

    def leader_may_send(self, partition: LogName, replica_id: int, now_ms: int) -> bool:
        """Whether a follower that is not in sync may get records of this partition now."""
        if not self._is_throttled_leader(partition):
            return True
        self._leader_bucket.set_rate(self._settings.broker.leader_replication_throttled_rate, now_ms)
        return not self._leader_bucket.is_exceeded(now_ms)

    def record_sent(self, partition: LogName, size: int, now_ms: int) -> None:
        """So much of it was sent to a follower that is not in sync."""
        if self._is_throttled_leader(partition):
            self._leader_bucket.set_rate(self._settings.broker.leader_replication_throttled_rate, now_ms)
            self._leader_bucket.consume(size, now_ms)

    # The follower's side

    def should_throttle_follower(self, partition: LogName, now_ms: int, *, is_in_sync: bool) -> bool:
        """Whether this partition is not fetched for the moment."""
        if is_in_sync or not self._is_throttled_follower(partition):
            return False
        self._follower_bucket.set_rate(self._settings.broker.follower_replication_throttled_rate, now_ms)
        return self._follower_bucket.is_exceeded(now_ms)

    def record_fetched(self, partition: LogName, size: int, now_ms: int, *, is_in_sync: bool) -> None:
        if not is_in_sync and self._is_throttled_follower(partition):
            self._follower_bucket.set_rate(self._settings.broker.follower_replication_throttled_rate, now_ms)
            self._follower_bucket.consume(size, now_ms)

    def throttle_time_ms(self, now_ms: int) -> int:
        """How long until a partition that rests is worth another look: no longer than a window, for rates change."""
        return min(self._follower_bucket.wait_ms(now_ms), WINDOW_MS)

    def _is_throttled_leader(self, partition: LogName) -> bool:
        settings = self._settings.topic(partition.topic)
        return is_throttled_replica(
            settings.leader_replication_throttled_replicas, partition.partition, self._node_id
        )

    def _is_throttled_follower(self, partition: LogName) -> bool:
        settings = self._settings.topic(partition.topic)
        return is_throttled_replica(
            settings.follower_replication_throttled_replicas, partition.partition, self._node_id
        )
