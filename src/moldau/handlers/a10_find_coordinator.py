"""FindCoordinator: returns the broker that coordinates a group or a transactional id.

The first request creates the topic that stores the coordinator's state.

Versions: 1 added the key type, 3 the flexible encoding, 4 several keys per request, 6 share groups.
"""

import asyncio
from typing import cast

from moldau.error_codes import error_code, error_message
from moldau.errors import CoordinatorNotAvailableError, InvalidRequestError, MoldauError
from moldau.groups.offsets_topic import OFFSETS_TOPIC
from moldau.metadata.image import Endpoint, MetadataImage
from moldau.server.api import Broker, RequestContext, handles
from moldau.server.cluster_view import reachable_brokers
from moldau.transactions.state_topic import TRANSACTION_STATE_TOPIC
from moldau.wire.messages import FindCoordinatorRequest, FindCoordinatorResponse, FindCoordinatorResponseCoordinator

GROUP, TRANSACTION = 0, 1

BATCHED_KEYS_VERSION = 4
KEYS_PER_ITERATION = 500
"""The maximum number of keys that are looked up in one iteration of the event loop."""


@handles(versions=(0, 6))
async def find_coordinator(
    request: FindCoordinatorRequest, session: RequestContext, broker: Broker
) -> FindCoordinatorResponse:
    key_type, listener = request.key_type, session.connection.listener
    state_topic = TRANSACTION_STATE_TOPIC if key_type == TRANSACTION else OFFSETS_TOPIC
    await broker.availability.wait_for_successors(lambda image: _leaders(image, state_topic))
    if session.api_version < BATCHED_KEYS_VERSION:
        found = await _coordinator(key_type, request.key or "", listener, broker)
        # Responses before version 4 have the fields of their only coordinator at the top level.
        return cast(FindCoordinatorResponse, found)
    coordinators: list[FindCoordinatorResponseCoordinator] = []
    # Look up each key only once, so that a small request cannot cause a huge response.
    for key in dict.fromkeys(request.coordinator_keys):
        coordinators.append(await _coordinator(key_type, key, listener, broker))
        if len(coordinators) % KEYS_PER_ITERATION == 0:
            await asyncio.sleep(0)
    return {"coordinators": coordinators}


def _leaders(image: MetadataImage, topic_name: str) -> set[int]:
    topic = image.topics.get(topic_name)
    return set() if topic is None else {partition.leader for partition in topic.partitions}


async def _coordinator(key_type: int, key: str, listener: str, broker: Broker) -> FindCoordinatorResponseCoordinator:
    try:
        node_id, endpoint = await _find_coordinator(key_type, key, listener, broker)
    except MoldauError as error:
        code, message = error_code(error), error_message(error)
        return {"key": key, "error_code": code, "error_message": message, "node_id": -1, "host": "", "port": -1}
    host, port = endpoint.host, endpoint.port
    return {"key": key, "error_code": 0, "error_message": "", "node_id": node_id, "host": host, "port": port}


async def _find_coordinator(key_type: int, key: str, listener: str, broker: Broker) -> tuple[int, Endpoint]:
    if key_type == GROUP:
        node_id = (await broker.groups.coordinator_partition(key)).leader
    elif key_type == TRANSACTION:
        node_id = (await broker.transactions.coordinator_partition(key)).leader
    else:
        raise InvalidRequestError(f"there is no coordinator for keys of type {key_type}")
    for each, endpoint in reachable_brokers(broker.metadata.image, listener):
        if each.broker_id == node_id and node_id not in broker.availability.suspected:
            return each.broker_id, endpoint
    raise CoordinatorNotAvailableError(f"the coordinator, node {node_id}, is not reachable")
