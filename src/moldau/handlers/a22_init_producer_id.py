"""InitProducerId: an id for an idempotent producer.

A producer without a transactional id always gets a new id, whatever id it says it had: nothing ties the two
together. Transactional producers are refused, since there is no transaction coordinator to answer for them.
"""

from typing import Any

from moldau.errors import InvalidRequestError, MoldauError, TransactionalIdAuthorizationError
from moldau.server.broker import Broker
from moldau.server.errors import error_code
from moldau.server.registry import handles
from moldau.server.session import Session
from moldau.wire.api_keys import ApiKey


@handles(ApiKey.INIT_PRODUCER_ID, versions=(0, 5))
async def init_producer_id(request: Any, session: Session, broker: Broker) -> Any:
    try:
        if request.transactional_id == "":
            raise InvalidRequestError("a transactional id must not be empty")
        if request.transactional_id is not None:
            raise TransactionalIdAuthorizationError("transactional producers are not served")
        _check_previous(request.get("producer_id", -1), request.get("producer_epoch", -1))
        producer_id = await broker.producer_ids.generate_producer_id()
    except MoldauError as error:
        return {"throttle_time": 0, "error_code": error_code(error), "producer_id": -1, "producer_epoch": -1}
    return {"throttle_time": 0, "error_code": 0, "producer_id": producer_id, "producer_epoch": 0}


def _check_previous(producer_id: int, producer_epoch: int) -> None:
    if (producer_id < 0) != (producer_epoch < 0):
        raise InvalidRequestError("a producer id goes with its epoch, and an epoch with its producer id")
