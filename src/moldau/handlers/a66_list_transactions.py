"""ListTransactions: returns the transactions that this broker coordinates.

Versions: 1 added a filter for long transactions (KIP-994), 2 a pattern for transactional ids (KIP-1152).
"""

from moldau.server.api import Broker, RequestContext, handles, top_level_error
from moldau.transactions.requests import TransactionFilter
from moldau.transactions.transaction_metadata import TransactionState
from moldau.wire.messages import ListTransactionsRequest, ListTransactionsResponse

STATES = {state.label: state for state in TransactionState}


@handles(versions=(0, 2), error_response=top_level_error)
async def list_transactions(
    request: ListTransactionsRequest, session: RequestContext, broker: Broker
) -> ListTransactionsResponse:
    requested = dict.fromkeys(request.state_filters)
    filter_ = TransactionFilter(
        states=frozenset(STATES[each] for each in requested if each in STATES) if requested else None,
        producer_ids=frozenset(request.producer_id_filters),
        duration_ms=request.duration_filter,
    )
    listed = await broker.transactions.list_transactions(filter_, request.transactional_id_pattern)
    return {
        "unknown_state_filters": [each for each in requested if each not in STATES],
        "transaction_states": [
            {
                "transactional_id": each.transactional_id,
                "producer_id": each.producer_id,
                "transaction_state": each.state.label,
            }
            for each in listed
        ],
    }
