"""Messages of the APIs that only Moldau has, declared like kio's."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import ClassVar

from moldau.wire.api_keys import ApiKey


@dataclass(frozen=True, slots=True, kw_only=True)
class InitTxnGroupMemberRequest:
    __flexible__: ClassVar[bool] = True
    group_id: str = field(metadata={"kafka_type": "string"})
    batch_id: int = field(metadata={"kafka_type": "int64"})
    run_id: str = field(metadata={"kafka_type": "string"})
    member: str = field(metadata={"kafka_type": "string"})
    transaction_timeout_ms: int = field(metadata={"kafka_type": "int32"})


@dataclass(frozen=True, slots=True, kw_only=True)
class InitTxnGroupMemberResponse:
    __flexible__: ClassVar[bool] = True
    error_code: int = field(default=0, metadata={"kafka_type": "int16"})
    error_message: str | None = field(default=None, metadata={"kafka_type": "string"})
    is_committed: bool = field(default=False, metadata={"kafka_type": "bool"})
    producer_id: int = field(default=-1, metadata={"kafka_type": "int64"})
    producer_epoch: int = field(default=-1, metadata={"kafka_type": "int16"})


@dataclass(frozen=True, slots=True, kw_only=True)
class EndTxnGroupMember:
    __flexible__: ClassVar[bool] = True
    member: str = field(metadata={"kafka_type": "string"})
    producer_id: int = field(metadata={"kafka_type": "int64"})
    producer_epoch: int = field(metadata={"kafka_type": "int16"})


@dataclass(frozen=True, slots=True, kw_only=True)
class EndTxnGroupRequest:
    __flexible__: ClassVar[bool] = True
    group_id: str = field(metadata={"kafka_type": "string"})
    batch_id: int = field(metadata={"kafka_type": "int64"})
    run_id: str = field(metadata={"kafka_type": "string"})
    committed: bool = field(metadata={"kafka_type": "bool"})
    is_last: bool = field(metadata={"kafka_type": "bool"})
    members: tuple[EndTxnGroupMember, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EndTxnGroupResponse:
    __flexible__: ClassVar[bool] = True
    error_code: int = field(default=0, metadata={"kafka_type": "int16"})
    error_message: str | None = field(default=None, metadata={"kafka_type": "string"})


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeReplicaProgressRequestTopic:
    __flexible__: ClassVar[bool] = True
    name: str = field(metadata={"kafka_type": "string"})
    partition_indexes: tuple[int, ...] = field(metadata={"kafka_type": "int32"})


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeReplicaProgressRequest:
    __flexible__: ClassVar[bool] = True
    topics: tuple[DescribeReplicaProgressRequestTopic, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaProgress:
    __flexible__: ClassVar[bool] = True
    broker_id: int = field(metadata={"kafka_type": "int32"})
    log_end_offset: int = field(metadata={"kafka_type": "int64"})


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeReplicaProgressResponsePartition:
    __flexible__: ClassVar[bool] = True
    partition_index: int = field(metadata={"kafka_type": "int32"})
    error_code: int = field(default=0, metadata={"kafka_type": "int16"})
    error_message: str | None = field(default=None, metadata={"kafka_type": "string"})
    replicas: tuple[ReplicaProgress, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeReplicaProgressResponseTopic:
    __flexible__: ClassVar[bool] = True
    name: str = field(metadata={"kafka_type": "string"})
    partitions: tuple[DescribeReplicaProgressResponsePartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeReplicaProgressResponse:
    __flexible__: ClassVar[bool] = True
    topics: tuple[DescribeReplicaProgressResponseTopic, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribePartitionLagRequestPartition:
    __flexible__: ClassVar[bool] = True
    partition_index: int = field(metadata={"kafka_type": "int32"})
    committed_offsets: tuple[int, ...] = field(metadata={"kafka_type": "int64"})


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribePartitionLagRequestTopic:
    __flexible__: ClassVar[bool] = True
    name: str = field(metadata={"kafka_type": "string"})
    partitions: tuple[DescribePartitionLagRequestPartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribePartitionLagRequest:
    __flexible__: ClassVar[bool] = True
    topics: tuple[DescribePartitionLagRequestTopic, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadRecord:
    __flexible__: ClassVar[bool] = True
    committed_offset: int = field(metadata={"kafka_type": "int64"})
    offset: int = field(metadata={"kafka_type": "int64"})
    time_ms: int = field(default=-1, metadata={"kafka_type": "int64"})
    is_append_time: bool = field(default=False, metadata={"kafka_type": "bool"})


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribePartitionLagResponsePartition:
    __flexible__: ClassVar[bool] = True
    partition_index: int = field(metadata={"kafka_type": "int32"})
    error_code: int = field(default=0, metadata={"kafka_type": "int16"})
    error_message: str | None = field(default=None, metadata={"kafka_type": "string"})
    high_watermark: int = field(default=-1, metadata={"kafka_type": "int64"})
    last_stable_offset: int = field(default=-1, metadata={"kafka_type": "int64"})
    log_start_offset: int = field(default=-1, metadata={"kafka_type": "int64"})
    unread_records: tuple[UnreadRecord, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribePartitionLagResponseTopic:
    __flexible__: ClassVar[bool] = True
    name: str = field(metadata={"kafka_type": "string"})
    partitions: tuple[DescribePartitionLagResponsePartition, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadCommittedClient:
    __flexible__: ClassVar[bool] = True
    client_id: str = field(metadata={"kafka_type": "string"})
    client_host: str = field(metadata={"kafka_type": "string"})


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribePartitionLagResponse:
    __flexible__: ClassVar[bool] = True
    now_ms: int = field(metadata={"kafka_type": "int64"})
    read_committed_clients: tuple[ReadCommittedClient, ...] = ()
    topics: tuple[DescribePartitionLagResponseTopic, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeGroupLagRequest:
    __flexible__: ClassVar[bool] = True
    group_ids: tuple[str, ...] = field(metadata={"kafka_type": "string"})


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLagSample:
    __flexible__: ClassVar[bool] = True
    topic: str = field(metadata={"kafka_type": "string"})
    partition_index: int = field(metadata={"kafka_type": "int32"})
    sampled_ms: int = field(metadata={"kafka_type": "int64"})
    state: str = field(metadata={"kafka_type": "string"})
    committed_offset: int = field(metadata={"kafka_type": "int64"})
    high_watermark: int = field(metadata={"kafka_type": "int64"})
    last_stable_offset: int = field(metadata={"kafka_type": "int64"})
    log_start_offset: int = field(metadata={"kafka_type": "int64"})
    is_read_committed: bool = field(metadata={"kafka_type": "bool"})
    lag_records: int = field(metadata={"kafka_type": "int64"})
    lag_ms: int = field(default=-1, metadata={"kafka_type": "int64"})
    is_append_time: bool = field(default=False, metadata={"kafka_type": "bool"})
    commit_rate: float = field(default=-1.0, metadata={"kafka_type": "float64"})
    produce_rate: float = field(default=-1.0, metadata={"kafka_type": "float64"})
    commit_timestamp_ms: int = field(default=-1, metadata={"kafka_type": "int64"})
    member_id: str | None = field(default=None, metadata={"kafka_type": "string"})
    client_id: str | None = field(default=None, metadata={"kafka_type": "string"})
    client_host: str | None = field(default=None, metadata={"kafka_type": "string"})


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLagSample:
    __flexible__: ClassVar[bool] = True
    group_id: str = field(metadata={"kafka_type": "string"})
    error_code: int = field(default=0, metadata={"kafka_type": "int16"})
    error_message: str | None = field(default=None, metadata={"kafka_type": "string"})
    group_state: str = field(default="", metadata={"kafka_type": "string"})
    member_count: int = field(default=0, metadata={"kafka_type": "int32"})
    partitions: tuple[PartitionLagSample, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeGroupLagResponse:
    __flexible__: ClassVar[bool] = True
    error_code: int = field(default=0, metadata={"kafka_type": "int16"})
    error_message: str | None = field(default=None, metadata={"kafka_type": "string"})
    interval_ms: int = field(default=-1, metadata={"kafka_type": "int64"})
    now_ms: int = field(default=-1, metadata={"kafka_type": "int64"})
    groups: tuple[GroupLagSample, ...] = ()


OWN_MESSAGES: Mapping[tuple[int, int], tuple[type, type]] = MappingProxyType(
    {
        (ApiKey.INIT_TXN_GROUP_MEMBER, 0): (InitTxnGroupMemberRequest, InitTxnGroupMemberResponse),
        (ApiKey.END_TXN_GROUP, 0): (EndTxnGroupRequest, EndTxnGroupResponse),
        (ApiKey.DESCRIBE_REPLICA_PROGRESS, 0): (DescribeReplicaProgressRequest, DescribeReplicaProgressResponse),
        (ApiKey.DESCRIBE_PARTITION_LAG, 0): (DescribePartitionLagRequest, DescribePartitionLagResponse),
        (ApiKey.DESCRIBE_GROUP_LAG, 0): (DescribeGroupLagRequest, DescribeGroupLagResponse),
    }
)
"""The request and response of each API and version."""
