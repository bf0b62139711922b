"""DescribeTransactions: returns the state of transactions. Operators use it to find hanging transactions.

Moldau adds two tagged fields that Kafka does not have: client id and host of the producer.
"""

from moldau.error_codes import error_code
from moldau.errors import MoldauError
from moldau.server.api import Broker, RequestContext, handles
from moldau.wire.messages import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    DescribeTransactionsResponseTransactionState,
)


@handles(versions=(0, 0))
async def describe_transactions(
    request: DescribeTransactionsRequest, session: RequestContext, broker: Broker
) -> DescribeTransactionsResponse:
    # Describe each transaction only once, so that a small request cannot cause a huge response.
    return {"transaction_states": [await _describe(each, broker) for each in dict.fromkeys(request.transactional_ids)]}


async def _describe(transactional_id: str, broker: Broker) -> DescribeTransactionsResponseTransactionState:
    try:
        description = await broker.transactions.describe(transactional_id)
    except MoldauError as error:
        return {
            "error_code": error_code(error),
            "transactional_id": transactional_id,
            "transaction_state": "",
            "transaction_timeout": 0,
            "transaction_start_time": 0,
            "producer_id": 0,
            "producer_epoch": 0,
            "topics": [],
        }
    topics: dict[str, list[int]] = {}
    for name, index in sorted(description.partitions):
        topics.setdefault(name, []).append(index)
    return {
        "error_code": 0,
        "transactional_id": transactional_id,
        "transaction_state": description.state.label,
        "transaction_timeout": description.timeout_ms,
        "transaction_start_time": description.start_ms,
        "producer_id": description.producer_id,
        "producer_epoch": description.producer_epoch,
        "client_id": description.client.client_id,
        "client_host": description.client.host,
        "topics": [{"topic": name, "partitions": indexes} for name, indexes in topics.items()],
    }
