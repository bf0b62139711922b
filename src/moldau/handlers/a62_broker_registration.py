"""BrokerRegistration: a node that has started asks for its place in the cluster.

The answer is its broker epoch. It begins fenced, and its first heartbeats change that. Only the active controller
answers; others say NOT_CONTROLLER. v3 says under which epoch the node closed its logs; without that it is taken
to have lost what was not yet safe. A field of our own says which lives its disk has seen; without that it is taken to
have lost everything.
"""

from typing import Any

from moldau.controller.requests import BrokerRegistrationRequest
from moldau.errors import InvalidRegistrationError, MoldauError
from moldau.metadata.image import Endpoint
from moldau.server.broker import Broker
from moldau.server.errors import error_code
from moldau.server.registry import handles
from moldau.server.session import Session
from moldau.wire.api_keys import ApiKey
from moldau.wire.codec import Message


@handles(ApiKey.BROKER_REGISTRATION, versions=(3, 4), inter_broker=True)
async def broker_registration(request: Message, session: Session, broker: Broker) -> dict[str, Any]:
    try:
        epoch = await broker.controller.register_broker(_registration(request), is_remote=True)
    except MoldauError as error:
        return {"throttle_time": 0, "error_code": error_code(error), "broker_epoch": -1}
    return {"throttle_time": 0, "error_code": error_code(None), "broker_epoch": epoch}


def _registration(request: Message) -> BrokerRegistrationRequest:
    if request.incarnation_id is None:
        raise InvalidRegistrationError(f"Broker {request.broker_id} registers without an incarnation id.")
    return BrokerRegistrationRequest(
        broker_id=request.broker_id,
        incarnation_id=request.incarnation_id,
        endpoints=[
            Endpoint(each.name, each.host, each.port, each.security_protocol) for each in request.listeners
        ],
        rack=request.rack,
        cluster_id=request.cluster_id,
        previous_epoch=request.previous_broker_epoch,
        previous_incarnations=tuple(each for each in request.former_incarnation_ids if each is not None),
        features={
            each.name: (each.min_supported_version, each.max_supported_version) for each in request.features
        },
    )
