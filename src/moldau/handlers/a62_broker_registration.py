"""BrokerRegistration: a broker registers its incarnation with the active controller. Only nodes send this request.

The response contains the broker epoch. The broker starts fenced, and heartbeats unfence the broker. Nodes that are not
the active controller respond NOT_CONTROLLER.

v3 added the broker epoch of the last clean shutdown. If this is not the last broker epoch that the controller knows,
the controller assumes that the broker has lost unflushed records. A tagged field that Kafka does not have lists the
previous incarnations on the broker's disk. If the last known incarnation is not in this list, the controller assumes
that the broker has lost all records.
"""

from moldau.controller import requests as controller
from moldau.errors import InvalidRegistrationError
from moldau.metadata.image import Endpoint
from moldau.server.api import Broker, RequestContext, handles, top_level_error
from moldau.wire.messages import BrokerRegistrationRequest, BrokerRegistrationResponse


@handles(versions=(3, 4), error_response=top_level_error, inter_broker=True)
async def broker_registration(
    request: BrokerRegistrationRequest, session: RequestContext, broker: Broker
) -> BrokerRegistrationResponse:
    return {"broker_epoch": await broker.controller.register_broker(_registration(request), is_remote=True)}


def _registration(request: BrokerRegistrationRequest) -> controller.BrokerRegistrationRequest:
    if request.incarnation_id is None:
        raise InvalidRegistrationError(f"broker {request.broker_id} must register with an incarnation id")
    return controller.BrokerRegistrationRequest(
        broker_id=request.broker_id,
        incarnation_id=request.incarnation_id,
        endpoints=[Endpoint(each.name, each.host, each.port, each.security_protocol) for each in request.listeners],
        rack=request.rack,
        cluster_id=request.cluster_id,
        previous_epoch=request.previous_broker_epoch,
        previous_incarnations=tuple(each for each in request.former_incarnation_ids if each is not None),
        features={each.name: (each.min_supported_version, each.max_supported_version) for each in request.features},
    )
