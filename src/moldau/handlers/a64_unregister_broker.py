"""UnregisterBroker: removes a broker from the cluster's metadata.

Before this request, operators should move the replicas of the broker to other brokers and stop the broker. A live
broker is not rejected. It immediately loses its partition leaderships and registers again. The request is rejected if
the broker is the only broker that is known to have all committed records of a partition.
"""

from moldau.server.api import Broker, RequestContext, handles
from moldau.wire.messages import UnregisterBrokerRequest, UnregisterBrokerResponse


@handles(versions=(0, 0), forwarded=True)
async def unregister_broker(
    request: UnregisterBrokerRequest, session: RequestContext, broker: Broker
) -> UnregisterBrokerResponse:
    await broker.controller.unregister_broker(request.broker_id)
    return {}
