"""InitProducerId: returns a producer id and epoch, and fences earlier producers with the same transactional id.

A producer without a transactional id always gets a new id, even if it had an id before.

Versions: 2 is flexible, 3 added the producer id and epoch of a producer that continues after an error, 4 the error
PRODUCER_FENCED, 5 the error TRANSACTION_ABORTABLE. Version 6 (two-phase commit) is not stable in Kafka.
"""

from moldau.error_codes import error_code
from moldau.errors import InvalidRequestError, MoldauError
from moldau.server.api import Broker, RequestContext, handles
from moldau.server.producer_fencing import with_known_code
from moldau.transactions.requests import InitProducerIdRequest as CoordinatorRequest
from moldau.transactions.requests import ProducerIdAndEpoch
from moldau.transactions.transaction_metadata import ProducerClient
from moldau.wire.messages import InitProducerIdRequest, InitProducerIdResponse

PRODUCER_FENCED_VERSION = 4


def error_response(request: InitProducerIdRequest, version: int, error: MoldauError) -> InitProducerIdResponse:
    error = with_known_code(error, version, fenced_since=PRODUCER_FENCED_VERSION)
    return {"error_code": error_code(error), "producer_id": -1, "producer_epoch": -1}


@handles(versions=(0, 5), error_response=error_response)
async def init_producer_id(
    request: InitProducerIdRequest, session: RequestContext, broker: Broker
) -> InitProducerIdResponse:
    if (request.producer_id < 0) != (request.producer_epoch < 0):
        raise InvalidRequestError("producer id and producer epoch must be sent together")
    if request.transactional_id is None:
        return {"producer_id": await broker.producer_ids.generate_producer_id(), "producer_epoch": 0}
    expected = None
    if request.producer_id >= 0:
        expected = ProducerIdAndEpoch(request.producer_id, request.producer_epoch)
    producer = await broker.transactions.init_producer_id(
        CoordinatorRequest(
            transactional_id=request.transactional_id,
            timeout_ms=request.transaction_timeout,
            expected=expected,
            client=ProducerClient(session.client_id or "", session.client_host),
        )
    )
    return {"producer_id": producer.producer_id, "producer_epoch": producer.producer_epoch}
