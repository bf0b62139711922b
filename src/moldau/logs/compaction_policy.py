"""When a log is compacted, and which producers' batches must outlive it. The same for every store; pure."""

from typing import NamedTuple

from moldau.logs.producer_state import ProducerStateManager
from moldau.records.batch import Batch
from moldau.settings.topic import TopicSettings

OFFSET_MAP_BYTES_MAX = 128 * 1024 * 1024
"""Memory for the keys of one round (Kafka's log.cleaner.dedupe.buffer.size); what does not fit waits for the next."""


class LogToClean(NamedTuple):
    """How much of what may be compacted has been, and how old the rest is."""

    clean_bytes: int
    dirty_bytes: int
    oldest_dirty_ms: int


def should_compact(settings: TopicSettings, log_to_clean: LogToClean, now_ms: int) -> bool:
    """Enough is dirty, or something dirty has waited for longer than max.compaction.lag.ms."""
    if not log_to_clean.dirty_bytes:
        return False
    if now_ms - log_to_clean.oldest_dirty_ms > settings.max_compaction_lag_ms:
        return True
    ratio = log_to_clean.dirty_bytes / (log_to_clean.clean_bytes + log_to_clean.dirty_bytes)
    return ratio > settings.min_cleanable_dirty_ratio


def is_past_min_lag(settings: TopicSettings, max_timestamp_ms: int, now_ms: int) -> bool:
    """Whether min.compaction.lag.ms has passed for records up to this time."""
    lag_ms = settings.min_compaction_lag_ms
    return lag_ms == 0 or max_timestamp_ms <= now_ms - lag_ms


def is_last_of_producer(batch: Batch, producers: ProducerStateManager) -> bool:
    """Whether the batch is a living producer's last: without it, its sequence could not be found in the log."""
    if batch.producer_id < 0:
        return False
    state = producers.get(batch.producer_id)
    return state is not None and state.last_offset == batch.last_offset
