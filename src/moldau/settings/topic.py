"""The settings of a topic. Every one has a broker-wide default, of the name given as `broker_name`.

Names, defaults and limits are Kafka's, except where a doc says otherwise.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from moldau.settings.registry import INT_MAX, LONG_MAX, Alias, setting

_THROTTLED = re.compile("[0-9]+:[0-9]+", re.ASCII)


def throttled_replicas(value: Sequence[str]) -> str | None:
    """A complaint about what is neither `*` alone nor partition:broker pairs."""
    if tuple(value) == ("*",) or all(_THROTTLED.fullmatch(pair) for pair in value):
        return None
    return "Values must be partition:broker pairs, or * alone"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSettings:
    cleanup_policy: tuple[str, ...] = setting(
        ("delete",),
        "cleanup.policy",
        "What happens to old records: `delete` by retention, `compact` to the newest record of each key, "
        "both (`compact,delete`), or nothing at all when empty.",
        choices=("delete", "compact"),
        broker_name="log.cleanup.policy",
    )
    compression_type: str = setting(
        "producer",
        "compression.type",
        "The codec batches are stored in; `producer` stores them as they come.",
        choices=("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
        broker_name="compression.type",
    )
    compression_gzip_level: int = setting(
        -1,
        "compression.gzip.level",
        "How hard gzip tries when compression.type is `gzip`, from 1 (fast) to 9 (small); -1 is gzip's own "
        "default.",
        low=-1,
        high=9,
        values="-1, or a whole number from 1 to 9",
        check=lambda level: "Value must be -1 or between 1 and 9" if level == 0 else None,
        broker_name="compression.gzip.level",
    )
    compression_lz4_level: int = setting(
        9,
        "compression.lz4.level",
        "How hard lz4 tries when compression.type is `lz4`.",
        low=1,
        high=17,
        broker_name="compression.lz4.level",
    )
    compression_zstd_level: int = setting(
        3,
        "compression.zstd.level",
        "How hard zstd tries when compression.type is `zstd`; negative levels are faster still.",
        low=-131_072,
        high=22,
        broker_name="compression.zstd.level",
    )
    delete_retention_ms: int = setting(
        86_400_000,
        "delete.retention.ms",
        "How long a tombstone outlives the compaction that first kept it, so that slow readers still see the "
        "deletion.",
        low=0,
        broker_name="log.cleaner.delete.retention.ms",
    )
    file_delete_delay_ms: int = setting(
        60_000,
        "file.delete.delay.ms",
        "How long a deleted segment stays on disk under another name. It has no effect: the space is given "
        "back at once, and fetches under way still read to their end.",
        low=0,
        broker_name="log.segment.delete.delay.ms",
    )
    flush_messages: int = setting(
        LONG_MAX,
        "flush.messages",
        "Sync after this many records. It has no effect: acks=all is synced before it is acknowledged, and "
        "with write.caching the operating system decides.",
        low=1,
        broker_name="log.flush.interval.messages",
    )
    flush_ms: int = setting(
        LONG_MAX,
        "flush.ms",
        "Sync records at the latest after this time. It has no effect: see flush.messages.",
        low=0,
        broker_name="log.flush.interval.ms",
    )
    index_interval_bytes: int = setting(
        4096,
        "index.interval.bytes",
        "How many bytes of records lie between two entries of the offset and time indexes.",
        low=0,
        high=INT_MAX,
        broker_name="log.index.interval.bytes",
    )
    max_compaction_lag_ms: int = setting(
        LONG_MAX,
        "max.compaction.lag.ms",
        "The longest a record may wait for compaction, however little of the log is dirty.",
        low=1,
        broker_name="log.cleaner.max.compaction.lag.ms",
    )
    max_message_bytes: int = setting(
        1_048_588,
        "max.message.bytes",
        "The largest record batch (after compression) that the topic takes.",
        low=0,
        high=INT_MAX,
        broker_name="message.max.bytes",
    )
    message_timestamp_before_max_ms: int = setting(
        LONG_MAX,
        "message.timestamp.before.max.ms",
        "How far behind the broker's clock a record's CreateTime may be; older records are refused.",
        low=0,
        broker_name="log.message.timestamp.before.max.ms",
    )
    message_timestamp_after_max_ms: int = setting(
        3_600_000,
        "message.timestamp.after.max.ms",
        "How far ahead of the broker's clock a record's CreateTime may be; later records are refused.",
        low=0,
        broker_name="log.message.timestamp.after.max.ms",
    )
    message_timestamp_type: str = setting(
        "CreateTime",
        "message.timestamp.type",
        "Whether a record carries the time its producer gave it or the time the broker appended it.",
        choices=("CreateTime", "LogAppendTime"),
        broker_name="log.message.timestamp.type",
    )
    min_cleanable_dirty_ratio: float = setting(
        0.5,
        "min.cleanable.dirty.ratio",
        "The share of a compacted log that must be dirty before it is compacted again.",
        low=0,
        high=1,
        broker_name="log.cleaner.min.cleanable.ratio",
    )
    min_compaction_lag_ms: int = setting(
        0,
        "min.compaction.lag.ms",
        "How long a record is safe from compaction.",
        low=0,
        broker_name="log.cleaner.min.compaction.lag.ms",
    )
    min_insync_replicas: int = setting(
        1,
        "min.insync.replicas",
        "How many replicas must have a record before acks=all succeeds; never more than the topic has "
        "replicas.",
        low=1,
        high=INT_MAX,
        broker_name="min.insync.replicas",
    )
    preallocate: bool = setting(
        False,
        "preallocate",
        "Reserve a new segment's whole size on disk at once. It has no effect: segments grow as they are "
        "written.",
        broker_name="log.preallocate",
    )
    retention_bytes: int = setting(
        -1,
        "retention.bytes",
        "How large a partition may grow before its oldest segments are deleted; -1 sets no limit.",
        low=-1,
        broker_name="log.retention.bytes",
    )
    retention_ms: int = setting(
        604_800_000,
        "retention.ms",
        "How long records are kept under the delete policy; -1 keeps them for ever.",
        low=-1,
        broker_name="log.retention.ms",
        aliases=(Alias("log.retention.minutes", 60_000), Alias("log.retention.hours", 3_600_000)),
    )
    segment_bytes: int = setting(
        1_073_741_824,
        "segment.bytes",
        "The size at which a new segment file is begun. Retention and compaction work on whole closed "
        "segments. (Kafka asks for at least 1 MiB; smaller ones are allowed here, to see both at work on "
        "little data.)",
        low=1024,
        high=INT_MAX,
        broker_name="log.segment.bytes",
    )
    segment_index_bytes: int = setting(
        10_485_760,
        "segment.index.bytes",
        "The largest an index may grow; a segment whose index is full is closed.",
        low=4,
        high=INT_MAX,
        broker_name="log.index.size.max.bytes",
    )
    segment_jitter_ms: int = setting(
        0,
        "segment.jitter.ms",
        "The most by which segment.ms is shortened at random, so that not all segments roll at once.",
        low=0,
        broker_name="log.roll.jitter.ms",
        aliases=(Alias("log.roll.jitter.hours", 3_600_000),),
    )
    segment_ms: int = setting(
        604_800_000,
        "segment.ms",
        "The age at which a new segment is begun even if the old one is not full.",
        low=1,
        broker_name="log.roll.ms",
        aliases=(Alias("log.roll.hours", 3_600_000),),
    )
    unclean_leader_election_enable: bool = setting(
        False,
        "unclean.leader.election.enable",
        "Let a replica that is not in sync become leader when no other is left: available again, but records "
        "may be lost.",
        broker_name="unclean.leader.election.enable",
    )
    leader_replication_throttled_replicas: tuple[str, ...] = setting(
        (),
        "leader.replication.throttled.replicas",
        "The replicas whose leaders send at most leader.replication.throttled.rate while they catch up: "
        "partition:broker pairs, or * for all.",
        values="partition:broker, several with commas between, or *",
        check=throttled_replicas,
        broker_name="log.leader.replication.throttled.replicas",
    )
    follower_replication_throttled_replicas: tuple[str, ...] = setting(
        (),
        "follower.replication.throttled.replicas",
        "The replicas that fetch at most follower.replication.throttled.rate while they catch up: "
        "partition:broker pairs, or * for all.",
        values="partition:broker, several with commas between, or *",
        check=throttled_replicas,
        broker_name="log.follower.replication.throttled.replicas",
    )
    write_caching: bool = setting(
        False,
        "write.caching",
        "Acknowledge from the page cache instead of after fsync: faster, and a power cut may take the last "
        "records.",
        broker_name="write.caching",
        section="Start here",
    )

    def find_conflict(self) -> str | None:
        """What two settings say against each other. Settings that reach a running node one by one may do so:
        a topic's own and a broker-wide default, for one."""
        if self.min_compaction_lag_ms > self.max_compaction_lag_ms:
            return (
                f"min.compaction.lag.ms ({self.min_compaction_lag_ms}) is more than "
                f"max.compaction.lag.ms ({self.max_compaction_lag_ms})"
            )
        return None
