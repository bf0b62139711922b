"""UnregisterBroker: removes a broker from the cluster's metadata.

A live broker is not rejected: it loses its leaderships at once and registers again. So move its replicas elsewhere and
stop it first. A broker that is the last one in any ISR is rejected, because no replica known to have all records would
be left.
"""

from moldau.errors import MoldauError
from moldau.server.broker import Broker
from moldau.server.error_codes import error_code, error_message
from moldau.server.registry import handles
from moldau.server.request_context import RequestContext
from moldau.wire.api_keys import ApiKey
from moldau.wire.messages import UnregisterBrokerRequest, UnregisterBrokerResponse


def error_response(
    request: UnregisterBrokerRequest, version: int, error: MoldauError
) -> UnregisterBrokerResponse:
    return {"error_code": error_code(error), "error_message": error_message(error)}


@handles(ApiKey.UNREGISTER_BROKER, versions=(0, 0), error_response=error_response)
async def unregister_broker(
    request: UnregisterBrokerRequest, session: RequestContext, broker: Broker
) -> UnregisterBrokerResponse:
    await broker.controller.unregister_broker(request.broker_id)
    return {}
