"""The settings of a topic. Every one has a broker-wide default of the name given as `broker_name`."""

from dataclasses import dataclass

from moldau.settings.registry import setting

LONG_MAX = 2**63 - 1
INT_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicSettings:
    cleanup_policy: tuple[str, ...] = setting(
        ("delete",),
        "cleanup.policy",
        "What happens to old records: `delete` by retention, `compact` to the newest record of each key, or both.",
        choices=("delete", "compact"),
        broker_name="log.cleanup.policy",
    )
    retention_ms: int = setting(
        604_800_000,
        "retention.ms",
        "How long records are kept under the delete policy; -1 keeps them for ever.",
        low=-1,
        broker_name="log.retention.ms",
    )
    retention_bytes: int = setting(
        -1,
        "retention.bytes",
        "How large a partition may grow before its oldest segments are deleted; -1 sets no limit.",
        low=-1,
        broker_name="log.retention.bytes",
    )
    segment_bytes: int = setting(
        1_073_741_824,
        "segment.bytes",
        "The size at which a new segment file is begun. Retention and compaction work on whole closed segments.",
        low=1024,
        high=INT_MAX,
        broker_name="log.segment.bytes",
    )
    segment_ms: int = setting(
        604_800_000,
        "segment.ms",
        "The age at which a new segment is begun even if the old one is not full.",
        low=1,
        broker_name="log.roll.ms",
    )
    max_message_bytes: int = setting(
        1_048_588,
        "max.message.bytes",
        "The largest record batch (after compression) that the topic takes.",
        low=0,
        high=INT_MAX,
        broker_name="message.max.bytes",
    )
    compression_type: str = setting(
        "producer",
        "compression.type",
        "The codec batches are stored in; `producer` stores them as they come.",
        choices=("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
        broker_name="compression.type",
    )
    message_timestamp_type: str = setting(
        "CreateTime",
        "message.timestamp.type",
        "Whether a record carries the time its producer gave it or the time the broker appended it.",
        choices=("CreateTime", "LogAppendTime"),
        broker_name="log.message.timestamp.type",
    )
    write_caching: bool = setting(
        False,
        "write.caching",
        "Acknowledge from the page cache instead of after fsync: faster, and a power cut may take the last records.",
        broker_name="write.caching",
    )
