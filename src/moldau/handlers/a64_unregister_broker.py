"""UnregisterBroker: the cluster does not wait for a broker any more, and it is no longer listed.

One that is alive is not refused: it loses its leaders at once, and registers anew by itself. So it is stopped first,
and its replicas are moved elsewhere before that. One that is the last in sync anywhere is refused: nothing would be
known any more to have all records.
"""

from typing import Any

from moldau.errors import MoldauError
from moldau.server.broker import Broker
from moldau.server.errors import error_code, error_message
from moldau.server.registry import handles
from moldau.server.session import Session
from moldau.wire.api_keys import ApiKey
from moldau.wire.codec import Message


@handles(ApiKey.UNREGISTER_BROKER, versions=(0, 0), forwarded=True)
async def unregister_broker(request: Message, session: Session, broker: Broker) -> dict[str, Any]:
    refusal: MoldauError | None = None
    try:
        await broker.controller.unregister_broker(request.broker_id)
    except MoldauError as error:
        refusal = error
    return {
        "throttle_time": 0,
        "error_code": error_code(refusal),
        "error_message": error_message(refusal),
    }
