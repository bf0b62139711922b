"""AddPartitionsToTxn: adds partitions to the transaction of a producer, or checks that they are in it.

Versions up to 3 come from producers and have one transaction. Since 4 the request comes from the leaders of partitions,
which verify or add them when a producer writes, for several transactions at once. 2 added the error PRODUCER_FENCED,
3 the flexible encoding, 5 the error TRANSACTION_ABORTABLE.
"""

import asyncio
from collections.abc import Mapping, Sequence

from moldau.controller.topic_names import is_internal
from moldau.error_codes import error_code
from moldau.errors import MoldauError, OperationNotAttemptedError, TopicAuthorizationError, UnknownTopicOrPartitionError
from moldau.server.api import Broker, RequestContext, handles
from moldau.server.late_requests import RequestStream
from moldau.server.producer_fencing import with_known_code
from moldau.transactions.requests import AddPartitionsRequest, PartitionErrors
from moldau.transactions.transaction_metadata import TV0, TV2, TopicPartition
from moldau.wire.messages import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnRequestTopic,
    AddPartitionsToTxnRequestTransaction,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResponseResult,
    AddPartitionsToTxnResponseTopicResult,
)

PRODUCER_FENCED_VERSION = 2
BATCHED_VERSION = 4


@handles(versions=(0, 5))
async def add_partitions_to_txn(
    request: AddPartitionsToTxnRequest, session: RequestContext, broker: Broker
) -> AddPartitionsToTxnResponse:
    if request.transactions is not None:
        results = await asyncio.gather(*(_result(each, broker) for each in request.transactions))
        return {"results_by_transaction": results}
    transactional_id, topics = request.v3_and_below_transactional_id, request.v3_and_below_topics
    producer_id, producer_epoch = request.v3_and_below_producer_id, request.v3_and_below_producer_epoch
    # Versions without a list of transactions have these fields.
    assert transactional_id is not None
    assert topics is not None
    assert producer_id is not None
    assert producer_epoch is not None
    broker.late_requests.check(RequestStream.TRANSACTION, producer_id, producer_epoch, session.connection)
    errors = _partition_errors(topics, broker, are_internal_topics_allowed=False)
    if errors is None:
        add = AddPartitionsRequest(
            transactional_id=transactional_id,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            partitions=_partitions(topics),
            client_version=TV0,
        )
        errors = await _add(add, session.api_version, broker)
    return {"results_by_topic_v3_and_below": _topic_results(topics, errors)}


async def _result(
    transaction: AddPartitionsToTxnRequestTransaction, broker: Broker
) -> AddPartitionsToTxnResponseResult:
    errors = _partition_errors(transaction.topics, broker, are_internal_topics_allowed=True)
    if errors is None:
        request = AddPartitionsRequest(
            transactional_id=transaction.transactional_id,
            producer_id=transaction.producer_id,
            producer_epoch=transaction.producer_epoch,
            partitions=_partitions(transaction.topics),
            client_version=TV2,
        )
        if transaction.verify_only:
            errors = await _verify(request, broker)
        else:
            errors = await _add(request, BATCHED_VERSION, broker)
    return {
        "transactional_id": transaction.transactional_id,
        "topic_results": _topic_results(transaction.topics, errors),
    }


async def _add(request: AddPartitionsRequest, version: int, broker: Broker) -> PartitionErrors:
    try:
        await broker.transactions.add_partitions(request)
    except MoldauError as error:
        known = with_known_code(error, version, fenced_since=PRODUCER_FENCED_VERSION)
        return dict.fromkeys(request.partitions, known)
    return dict.fromkeys(request.partitions)


async def _verify(request: AddPartitionsRequest, broker: Broker) -> PartitionErrors:
    try:
        return await broker.transactions.verify_partitions(request)
    except MoldauError as error:
        return dict.fromkeys(request.partitions, error)


def _partition_errors(
    topics: Sequence[AddPartitionsToTxnRequestTopic], broker: Broker, *, are_internal_topics_allowed: bool
) -> Mapping[TopicPartition, MoldauError | None] | None:
    """Returns the errors of all partitions if at least one is invalid. The others are then not added either."""
    partitions, image = _partitions(topics), broker.metadata.image
    invalid: dict[TopicPartition, MoldauError] = {}
    for name, index in partitions:
        if is_internal(name) and not are_internal_topics_allowed:
            invalid[name, index] = TopicAuthorizationError(f"{name} is internal: clients must not write to it")
        elif image.partition(name, index) is None:
            invalid[name, index] = UnknownTopicOrPartitionError(f"there is no partition {name}-{index}")
    if not invalid:
        return None
    return {**dict.fromkeys(partitions, OperationNotAttemptedError("another partition is invalid")), **invalid}


def _partitions(topics: Sequence[AddPartitionsToTxnRequestTopic]) -> frozenset[TopicPartition]:
    return frozenset((topic.name, index) for topic in topics for index in topic.partitions)


def _topic_results(
    topics: Sequence[AddPartitionsToTxnRequestTopic], errors: PartitionErrors
) -> list[AddPartitionsToTxnResponseTopicResult]:
    return [
        {
            "name": topic.name,
            "results_by_partition": [
                {"partition_index": index, "partition_error_code": error_code(errors[topic.name, index])}
                for index in topic.partitions
            ],
        }
        for topic in topics
    ]
