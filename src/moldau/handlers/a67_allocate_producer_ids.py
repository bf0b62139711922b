"""AllocateProducerIds: returns a block of unused producer ids to a broker. Only nodes send this request."""

from moldau.error_codes import error_code
from moldau.errors import MoldauError
from moldau.server.api import Broker, RequestContext, handles
from moldau.wire.messages import AllocateProducerIdsRequest, AllocateProducerIdsResponse


@handles(versions=(0, 0), inter_broker=True)
async def allocate_producer_ids(
    request: AllocateProducerIdsRequest, session: RequestContext, broker: Broker
) -> AllocateProducerIdsResponse:
    try:
        block = await broker.controller.allocate_producer_ids(request.broker_id, request.broker_epoch)
    except MoldauError as error:
        return {"error_code": error_code(error), "producer_id_start": -1, "producer_id_len": 0}
    return {"producer_id_start": block.start, "producer_id_len": len(block)}
