"""InitProducerId: returns a producer id for an idempotent producer.

A producer without a transactional id always gets a new id, even if it had an id before. A transactional id is refused,
because there is no transaction coordinator. The error is the only one that all clients report at once
(docs/decisions/0026-refused-apis.md). The response has no message, so the log names the reason.
"""

from moldau.error_codes import error_code
from moldau.errors import InvalidRequestError, MoldauError, TransactionalIdAuthorizationError
from moldau.observe.logging import get_logger
from moldau.server.api import Broker, RequestContext, handles
from moldau.wire.messages import InitProducerIdRequest, InitProducerIdResponse

LOGGED_CHARACTERS_MAX = 100
"""How much of a client's transactional id or client id is logged. Both may have up to 32 KB."""

log = get_logger(__name__)


def error_response(request: InitProducerIdRequest, version: int, error: MoldauError) -> InitProducerIdResponse:
    return {"error_code": error_code(error), "producer_id": -1, "producer_epoch": -1}


@handles(versions=(0, 5), error_response=error_response)
async def init_producer_id(
    request: InitProducerIdRequest, session: RequestContext, broker: Broker
) -> InitProducerIdResponse:
    if request.transactional_id == "":
        raise InvalidRequestError("a transactional id must not be empty")
    if request.transactional_id is not None:
        log.warning(
            "refused a transactional producer: transactions are not supported",
            transactional_id=request.transactional_id[:LOGGED_CHARACTERS_MAX],
            client=(session.client_id or session.connection.peer)[:LOGGED_CHARACTERS_MAX],
        )
        raise TransactionalIdAuthorizationError("transactional producers are not supported")
    if (request.producer_id < 0) != (request.producer_epoch < 0):
        raise InvalidRequestError("producer id and producer epoch must be sent together")
    return {"producer_id": await broker.producer_ids.generate_producer_id(), "producer_epoch": 0}
