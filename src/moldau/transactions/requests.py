"""Requests and responses of the transaction coordinator, shared by state machine, driver and request handlers.

Errors are exceptions of `moldau.errors`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from moldau.errors import MoldauError
from moldau.transactions.transaction_metadata import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    UNKNOWN_CLIENT,
    ProducerClient,
    TopicPartition,
    TransactionState,
)


class ProducerIdAndEpoch(NamedTuple):
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH


class ProducerIdNeeded(Enum):
    """The response of an operation that changed nothing, because it has to be repeated with a new producer id."""

    PRODUCER_ID_NEEDED = "producer id needed"


PRODUCER_ID_NEEDED = ProducerIdNeeded.PRODUCER_ID_NEEDED


class BatchCommitted(Enum):
    """The response to a member of a transaction group whose batch is committed, so that it must write nothing."""

    BATCH_COMMITTED = "batch committed"


BATCH_COMMITTED = BatchCommitted.BATCH_COMMITTED


class EmptyResponse(NamedTuple):
    pass


EMPTY_RESPONSE = EmptyResponse()

PartitionErrors = Mapping[TopicPartition, MoldauError | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class InitProducerIdRequest:
    transactional_id: str
    timeout_ms: int
    expected: ProducerIdAndEpoch | None = None
    """The producer id and epoch of a producer that continues after an error; None if the producer starts."""
    client: ProducerClient = UNKNOWN_CLIENT


class AddPartitionsRequest(NamedTuple):
    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: frozenset[TopicPartition]
    client_version: int
    """The transaction version of the client, according to the version of its request."""


class EndTransactionRequest(NamedTuple):
    transactional_id: str
    producer_id: int
    producer_epoch: int
    commit: bool
    client_version: int
    """The transaction version of the client, according to the version of its request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InitGroupMemberRequest:
    group_id: str
    batch_id: int
    run_id: str
    member: str
    """The name of the member in the group, the last part of its transactional id."""
    timeout_ms: int
    client: ProducerClient = UNKNOWN_CLIENT


class GroupMember(NamedTuple):
    member: str
    producer_id: int
    producer_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EndGroupRequest:
    group_id: str
    batch_id: int
    run_id: str
    commit: bool
    is_last: bool = False
    """Whether no batch will follow."""
    members: tuple[GroupMember, ...] = ()
    """The members to commit. All others are aborted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionFilter:
    """The filters of ListTransactions, without the pattern. A transaction is listed if it passes all filters."""

    states: frozenset[TransactionState] | None = None
    """None for all states."""
    producer_ids: frozenset[int] = frozenset()
    """Empty for all producer ids."""
    duration_ms: int = -1
    """Lists transactions that have been running for longer than this time; negative for all."""


class ListedTransaction(NamedTuple):
    transactional_id: str
    producer_id: int
    state: TransactionState


class TransactionDescription(NamedTuple):
    producer_id: int
    producer_epoch: int
    state: TransactionState
    timeout_ms: int
    start_ms: int
    partitions: frozenset[TopicPartition]
    client: ProducerClient


class LongTransaction(NamedTuple):
    """An ongoing transaction that has timed out or soon will, for the log of the node."""

    transactional_id: str
    producer: ProducerIdAndEpoch
    client: ProducerClient
    partition_count: int
    open_ms: int
    timeout_ms: int
    is_timed_out: bool


class TransactionMarkers(NamedTuple):
    """The end of a transaction, to be written to its partitions."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    commit: bool
    transaction_version: int
    partitions: frozenset[TopicPartition]
