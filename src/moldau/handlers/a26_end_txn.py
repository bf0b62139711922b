"""EndTxn: commits or aborts a transaction.

The response is sent when the outcome is decided, before the markers are written to the partitions. In the meantime
requests of the producer for its next transaction get CONCURRENT_TRANSACTIONS.

Versions: 2 added the error PRODUCER_FENCED, 3 the flexible encoding, 4 the error TRANSACTION_ABORTABLE. Since 5 (TV2)
the end of a transaction increases the producer epoch, and the response has the producer id and epoch to continue with.
"""

from moldau.error_codes import error_code
from moldau.errors import MoldauError
from moldau.server.api import Broker, RequestContext, handles
from moldau.server.late_requests import RequestStream
from moldau.server.producer_fencing import with_known_code
from moldau.transactions.requests import EndTransactionRequest
from moldau.transactions.transaction_metadata import TV0, TV2
from moldau.wire.messages import EndTxnRequest, EndTxnResponse

PRODUCER_FENCED_VERSION = 2
EPOCH_BUMP_VERSION = 5


def error_response(request: EndTxnRequest, version: int, error: MoldauError) -> EndTxnResponse:
    return {"error_code": error_code(with_known_code(error, version, fenced_since=PRODUCER_FENCED_VERSION))}


@handles(versions=(0, 5), error_response=error_response)
async def end_txn(request: EndTxnRequest, session: RequestContext, broker: Broker) -> EndTxnResponse:
    if session.api_version < EPOCH_BUMP_VERSION:
        broker.late_requests.check(
            RequestStream.TRANSACTION, request.producer_id, request.producer_epoch, session.connection
        )
    producer = await broker.transactions.end_transaction(
        EndTransactionRequest(
            transactional_id=request.transactional_id,
            producer_id=request.producer_id,
            producer_epoch=request.producer_epoch,
            commit=request.committed,
            client_version=TV2 if session.api_version >= EPOCH_BUMP_VERSION else TV0,
        )
    )
    return {"producer_id": producer.producer_id, "producer_epoch": producer.producer_epoch}
