"""Topic settings. The default of a topic setting is the value of the broker setting that `broker_name` names. A setting
without `broker_name` is only a property of topics, and its default is fixed.

Names, defaults and limits are Kafka's unless a description says otherwise.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from moldau.errors import InvalidConfigError
from moldau.settings.registry import INT_MAX, LONG_MAX, Alias, setting

_THROTTLED_REPLICA = re.compile("[0-9]+:[0-9]+", re.ASCII)


def check_throttled_replicas(value: Sequence[str]) -> str | None:
    """Returns an error message unless the value is `*` or a list of partition:broker pairs."""
    if tuple(value) == ("*",) or all(_THROTTLED_REPLICA.fullmatch(pair) for pair in value):
        return None
    return "Values must be partition:broker pairs, or * alone"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSettings:
    cleanup_policy: tuple[str, ...] = setting(
        ("delete",),
        "How old records are removed: `delete` applies retention, `compact` keeps the latest record of each key, "
        "`compact,delete` does both, an empty list does neither.",
        choices=("delete", "compact"),
        broker_name="log.cleanup.policy",
    )
    compression_type: str = setting(
        "producer",
        "Codec in which batches are stored; `producer` keeps the codec that the producer chose.",
        choices=("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
        broker_name="compression.type",
    )
    compression_gzip_level: int = setting(
        -1,
        "Compression level if compression.type is `gzip`, from 1 (fastest) to 9 (smallest); -1 uses gzip's default.",
        limits=(-1, 9),
        values="-1, or an integer from 1 to 9",
        check=lambda level: "Value must be -1 or between 1 and 9" if level == 0 else None,
        broker_name="compression.gzip.level",
    )
    compression_lz4_level: int = setting(
        9, "Compression level if compression.type is `lz4`.", limits=(1, 17), broker_name="compression.lz4.level"
    )
    compression_zstd_level: int = setting(
        3,
        "Compression level if compression.type is `zstd`; negative levels are faster and compress less.",
        limits=(-131_072, 22),
        broker_name="compression.zstd.level",
    )
    delete_retention_ms: int = setting(
        86_400_000,
        "How long compaction keeps a tombstone, so that slow consumers still see the deletion.",
        limits=(0, LONG_MAX),
        broker_name="log.cleaner.delete.retention.ms",
    )
    file_delete_delay_ms: int = setting(
        60_000,
        "Delay before the files of a deleted segment are removed. Accepted for compatibility; has no effect: files "
        "are removed at once, and fetches in progress can still read them.",
        limits=(0, LONG_MAX),
        broker_name="log.segment.delete.delay.ms",
    )
    flush_messages: int = setting(
        LONG_MAX,
        "Number of records after which the log is flushed. Accepted for compatibility; has no effect: records are "
        "flushed before acks=all is acknowledged, or, if write.caching is on, by the operating system and when their "
        "segment is closed.",
        limits=(1, LONG_MAX),
        broker_name="log.flush.interval.messages",
    )
    flush_ms: int = setting(
        LONG_MAX,
        "Time after which the log is flushed. Accepted for compatibility; has no effect: see flush.messages.",
        limits=(0, LONG_MAX),
        broker_name="log.flush.interval.ms",
    )
    index_interval_bytes: int = setting(
        4096,
        "Bytes of records between two entries of the offset index and the time index.",
        limits=(0, INT_MAX),
        broker_name="log.index.interval.bytes",
    )
    max_compaction_lag_ms: int = setting(
        LONG_MAX,
        "Maximum time before a record becomes eligible for compaction, regardless of the dirty ratio.",
        limits=(1, LONG_MAX),
        broker_name="log.cleaner.max.compaction.lag.ms",
    )
    max_message_bytes: int = setting(
        1_048_588,
        "Maximum size of a record batch, after compression.",
        limits=(0, INT_MAX),
        broker_name="message.max.bytes",
    )
    message_timestamp_before_max_ms: int = setting(
        LONG_MAX,
        "How far a record's CreateTime may be behind the broker's clock; older records are rejected.",
        limits=(0, LONG_MAX),
        broker_name="log.message.timestamp.before.max.ms",
    )
    message_timestamp_after_max_ms: int = setting(
        3_600_000,
        "How far a record's CreateTime may be ahead of the broker's clock; later records are rejected.",
        limits=(0, LONG_MAX),
        broker_name="log.message.timestamp.after.max.ms",
    )
    message_timestamp_type: str = setting(
        "CreateTime",
        "Whether a record has the timestamp set by its producer (`CreateTime`) or the time at which the broker "
        "appended it (`LogAppendTime`).",
        choices=("CreateTime", "LogAppendTime"),
        broker_name="log.message.timestamp.type",
    )
    min_cleanable_dirty_ratio: float = setting(
        0.5,
        "Minimum ratio of dirty bytes to all bytes of a log before it is compacted.",
        limits=(0, 1),
        broker_name="log.cleaner.min.cleanable.ratio",
    )
    min_compaction_lag_ms: int = setting(
        0,
        "Minimum time that a record stays in the log before it can be compacted.",
        limits=(0, LONG_MAX),
        broker_name="log.cleaner.min.compaction.lag.ms",
    )
    min_insync_replicas: int = setting(
        1,
        "Minimum number of in-sync replicas that must have a record before acks=all succeeds; capped at the topic's "
        "replication factor.",
        limits=(1, INT_MAX),
        broker_name="min.insync.replicas",
    )
    preallocate: bool = setting(
        False,
        "Allocate the full size of a new segment file at once. Accepted for compatibility; has no effect: segment "
        "files grow as they are written.",
        broker_name="log.preallocate",
    )
    retention_bytes: int = setting(
        -1,
        "Maximum size of a partition before its oldest segments are deleted; -1 means no limit.",
        limits=(-1, LONG_MAX),
        broker_name="log.retention.bytes",
    )
    retention_ms: int = setting(
        604_800_000,
        "How long records are kept before the `delete` policy removes them; -1 keeps them forever.",
        limits=(-1, LONG_MAX),
        broker_name="log.retention.ms",
        aliases=(Alias("log.retention.minutes", 60_000), Alias("log.retention.hours", 3_600_000)),
    )
    segment_bytes: int = setting(
        1_073_741_824,
        "Size at which the active segment is rolled. Retention and compaction only work on closed segments. (Kafka's "
        "minimum is 1 MiB; smaller segments are allowed here to try both with little data.)",
        limits=(1024, INT_MAX),
        broker_name="log.segment.bytes",
    )
    segment_index_bytes: int = setting(
        10_485_760,
        "Maximum size of an index; a segment with a full index is rolled.",
        limits=(4, INT_MAX),
        broker_name="log.index.size.max.bytes",
    )
    segment_jitter_ms: int = setting(
        0,
        "Maximum random reduction of segment.ms, so that segments do not all roll at the same time.",
        limits=(0, LONG_MAX),
        broker_name="log.roll.jitter.ms",
        aliases=(Alias("log.roll.jitter.hours", 3_600_000),),
    )
    segment_ms: int = setting(
        604_800_000,
        "Age at which the active segment is rolled even if it is not full.",
        limits=(1, LONG_MAX),
        broker_name="log.roll.ms",
        aliases=(Alias("log.roll.hours", 3_600_000),),
    )
    unclean_leader_election_enable: bool = setting(
        False,
        "Elect a replica outside of the ISR as leader if no in-sync replica is available. The partition stays "
        "available, but records may be lost.",
        broker_name="unclean.leader.election.enable",
    )
    leader_replication_throttled_replicas: tuple[str, ...] = setting(
        (),
        "Replicas for which the leader applies leader.replication.throttled.rate: partition:broker pairs, or * for "
        "all.",
        values="comma-separated partition:broker pairs, or *",
        check=check_throttled_replicas,
        broker_name="log.leader.replication.throttled.replicas",
    )
    follower_replication_throttled_replicas: tuple[str, ...] = setting(
        (),
        "Replicas for which the follower applies follower.replication.throttled.rate: partition:broker pairs, or * "
        "for all.",
        values="comma-separated partition:broker pairs, or *",
        check=check_throttled_replicas,
        broker_name="log.follower.replication.throttled.replicas",
    )
    leader_follows_controller: bool = setting(
        False,
        "Replicate the topic to all brokers, whatever replication factor was requested, and let the active controller "
        "lead its partitions as soon as its replicas are in sync. A broker that joins gets replicas; a drained broker "
        "loses them.",
    )
    write_caching: bool = setting(
        False,
        "Acknowledge records once they are in the page cache instead of after fsync. Faster, but a power failure can "
        "lose the latest records.",
        broker_name="write.caching",
        section="Start here",
    )

    def check_conflicts(self) -> None:
        """Raises InvalidConfigError if two settings contradict each other."""
        if self.min_compaction_lag_ms > self.max_compaction_lag_ms:
            raise InvalidConfigError(
                f"min.compaction.lag.ms ({self.min_compaction_lag_ms}) is greater than "
                f"max.compaction.lag.ms ({self.max_compaction_lag_ms})"
            )
