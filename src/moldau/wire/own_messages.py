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


OWN_MESSAGES: Mapping[tuple[int, int], tuple[type, type]] = MappingProxyType(
    {
        (ApiKey.INIT_TXN_GROUP_MEMBER, 0): (InitTxnGroupMemberRequest, InitTxnGroupMemberResponse),
        (ApiKey.END_TXN_GROUP, 0): (EndTxnGroupRequest, EndTxnGroupResponse),
        (ApiKey.DESCRIBE_REPLICA_PROGRESS, 0): (DescribeReplicaProgressRequest, DescribeReplicaProgressResponse),
    }
)
"""The request and response of each API and version."""
