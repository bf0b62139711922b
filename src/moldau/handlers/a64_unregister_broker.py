"""UnregisterBroker: removes a broker from the cluster's metadata.

Before this request, operators should move the replicas of the broker to other brokers and stop the broker. A live
broker is not rejected. It immediately loses its partition leaderships and registers again. The request is rejected if
the broker is the only broker that is known to have all committed records of a partition.
"""

from moldau.errors import MoldauError
from moldau.server.broker import Broker
from moldau.server.error_codes import error_code, error_message
from moldau.server.registry import handles
from moldau.server.request_context import RequestContext
from moldau.wire.api_keys import ApiKey
from moldau.wire.messages import UnregisterBrokerRequest, UnregisterBrokerResponse


def error_response(request: UnregisterBrokerRequest, version: int, error: MoldauError) -> UnregisterBrokerResponse:
    return {"error_code": error_code(error), "error_message": error_message(error)}


@handles(ApiKey.UNREGISTER_BROKER, versions=(0, 0), error_response=error_response)
async def unregister_broker(
    request: UnregisterBrokerRequest, session: RequestContext, broker: Broker
) -> UnregisterBrokerResponse:
    await broker.controller.unregister_broker(request.broker_id)
    return {}
