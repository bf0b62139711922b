"""DescribeProducers: returns the producer state of partitions. Operators use it to find hanging transactions.

Moldau adds three tagged fields that Kafka does not have: transactional id, client id and host of an open transaction.
"""

from moldau.error_codes import error_code, error_message
from moldau.errors import MoldauError
from moldau.logs.producer_state import ProducerState
from moldau.server.api import Broker, RequestContext, handles
from moldau.server.partition_lookup import find_partition, unique_partitions
from moldau.wire.messages import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    DescribeProducersResponsePartition,
    DescribeProducersResponseProducerState,
)


@handles(versions=(0, 0))
async def describe_producers(
    request: DescribeProducersRequest, session: RequestContext, broker: Broker
) -> DescribeProducersResponse:
    return {
        "topics": [
            {"name": name, "partitions": [_partition_response(broker, name, index) for index in indexes]}
            for name, indexes in unique_partitions(request.topics).items()
        ]
    }


def _partition_response(broker: Broker, topic: str, index: int) -> DescribeProducersResponsePartition:
    try:
        partition = find_partition(broker, topic, index)
        partition.require_leader()
    except MoldauError as error:
        return {"partition_index": index, "error_code": error_code(error), "error_message": error_message(error)}
    return {
        "partition_index": index,
        "active_producers": [_producer_response(producer) for producer in partition.log.producers],
    }


def _producer_response(producer: ProducerState) -> DescribeProducersResponseProducerState:
    first_offset = producer.transaction_first_offset
    return {
        "producer_id": producer.producer_id,
        "producer_epoch": producer.epoch,
        "last_sequence": producer.last_sequence,
        "last_timestamp": producer.last_timestamp_ms,
        "coordinator_epoch": producer.coordinator_epoch,
        "current_txn_start_offset": -1 if first_offset is None else first_offset,
        "transactional_id": producer.transaction_owner.transactional_id,
        "client_id": producer.transaction_owner.client_id,
        "client_host": producer.transaction_owner.client_host,
    }
