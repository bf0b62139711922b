"""TxnOffsetCommit: stores the offsets that a group has consumed as a part of a producer's transaction.

The offsets are pending until the transaction ends. Each partition is committed or rejected independently. A producer
adds the partition of `__consumer_offsets` to its transaction before, with AddOffsetsToTxn.

Versions: 2 added the leader epoch and the error COORDINATOR_LOAD_IN_PROGRESS, 3 the member of the group and the
flexible encoding, 4 the error TRANSACTION_ABORTABLE, 5 TV2, in which this request adds the partition itself.
"""

from functools import partial

from moldau.error_codes import error_code
from moldau.errors import (
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    MoldauError,
    PeerUnreachableError,
    UnknownTopicOrPartitionError,
)
from moldau.groups.records import NO_EXPIRY
from moldau.groups.requests import MemberIdentity, OffsetToCommit, PartitionErrors, TransactionalCommitRequest
from moldau.logs.producer_state import TransactionOwner
from moldau.metadata.image import TopicImage
from moldau.partitions.partition import Partition
from moldau.server.api import Broker, RequestContext, handles
from moldau.server.late_requests import RequestStream
from moldau.transactions.requests import AddPartitionsRequest
from moldau.transactions.transaction_metadata import TV0, TV2
from moldau.transactions.verification import client_error
from moldau.wire.messages import TxnOffsetCommitRequest, TxnOffsetCommitRequestPartition, TxnOffsetCommitResponse

LOAD_IN_PROGRESS_VERSION = 2
ABORTABLE_VERSION = 4
TV2_VERSION = 5


@handles(versions=(0, 5))
async def txn_offset_commit(
    request: TxnOffsetCommitRequest, session: RequestContext, broker: Broker
) -> TxnOffsetCommitResponse:
    if session.api_version < TV2_VERSION:
        broker.late_requests.check(
            RequestStream.OFFSETS, request.producer_id, request.producer_epoch, session.connection
        )
    image = broker.metadata.image
    offsets = tuple(
        _offset_to_commit(image.topics[topic.name], each)
        for topic in request.topics
        for each in topic.partitions
        if image.partition(topic.name, each.partition_index) is not None
    )
    errors: PartitionErrors = {}
    if offsets:
        errors = await _commit(request, offsets, session, broker)
    unknown = UnknownTopicOrPartitionError("there is no such partition")
    return {
        "topics": [
            {
                "name": topic.name,
                "partitions": [
                    {
                        "partition_index": each.partition_index,
                        "error_code": error_code(errors.get((topic.name, each.partition_index), unknown)),
                    }
                    for each in topic.partitions
                ],
            }
            for topic in request.topics
        ]
    }


def _offset_to_commit(topic: TopicImage, partition: TxnOffsetCommitRequestPartition) -> OffsetToCommit:
    return OffsetToCommit(
        topic=topic.name,
        partition=partition.partition_index,
        offset=partition.committed_offset,
        leader_epoch=partition.committed_leader_epoch,
        metadata=partition.committed_metadata,
        expire_timestamp_ms=NO_EXPIRY,
        topic_id=topic.topic_id,
    )


async def _commit(
    request: TxnOffsetCommitRequest, offsets: tuple[OffsetToCommit, ...], session: RequestContext, broker: Broker
) -> PartitionErrors:
    version = session.api_version
    commit = TransactionalCommitRequest(
        identity=MemberIdentity(
            group_id=request.group_id,
            generation=request.generation_id,
            member_id=request.member_id,
            instance_id=request.group_instance_id,
        ),
        offsets=offsets,
        producer_id=request.producer_id,
        producer_epoch=request.producer_epoch,
        client_version=TV2 if version >= TV2_VERSION else TV0,
        owner=TransactionOwner(request.transactional_id, session.client_id or "", session.client_host),
    )
    verify = partial(_verify, request.transactional_id, commit, version, broker)
    try:
        return await broker.groups.commit_transactional(commit, verify)
    except MoldauError as error:
        if isinstance(error, CoordinatorLoadInProgressError) and version < LOAD_IN_PROGRESS_VERSION:
            # Old producers fail on COORDINATOR_LOAD_IN_PROGRESS instead of retrying.
            error = CoordinatorNotAvailableError(str(error))
        return dict.fromkeys(((each.topic, each.partition) for each in offsets), error)


async def _verify(
    transactional_id: str, request: TransactionalCommitRequest, version: int, broker: Broker, partition: Partition
) -> None:
    """Asks the transaction coordinator. With TV2 it adds the partition to the transaction."""
    add = AddPartitionsRequest(
        transactional_id=transactional_id,
        producer_id=request.producer_id,
        producer_epoch=request.producer_epoch,
        partitions=frozenset({partition.name}),
        client_version=request.client_version,
    )
    error = (await broker.transaction_verifier.verify(add))[partition.name]
    if isinstance(error, PeerUnreachableError):
        # Producers retry after this error without looking up the group coordinator again.
        raise CoordinatorLoadInProgressError(f"the transaction could not be verified: {error}")
    if isinstance(error, UnknownTopicOrPartitionError):
        # The transaction coordinator does not know the group's partition yet. The error of a deleted input topic, with
        # the same code, is not retried.
        raise CoordinatorNotAvailableError(f"the transaction could not be verified: {error}")
    if error is not None:
        raise client_error(error, knows_abortable=version >= ABORTABLE_VERSION)
