"""FindCoordinator: which broker looks after a group. The first who asks makes the topic that groups live in.

Transactional producers are refused for good, so that they do not wait: nobody looks after transactions.

Versions: 1 brought the kind of key, 3 the flexible encoding, 4 many keys in one request, 6 share groups.
"""

import asyncio
from typing import Any

from moldau.errors import (
    CoordinatorNotAvailableError,
    InvalidRequestError,
    MoldauError,
    TransactionalIdAuthorizationError,
)
from moldau.metadata.image import Endpoint
from moldau.server.broker import Broker
from moldau.server.cluster_view import reachable_brokers
from moldau.server.errors import error_code, error_message
from moldau.server.registry import handles
from moldau.server.session import Session
from moldau.wire.api_keys import ApiKey

GROUP, TRANSACTION = 0, 1

KEYS_PER_ITERATION = 500
"""Keys that are looked up before other requests get their turn."""


@handles(ApiKey.FIND_COORDINATOR, versions=(0, 6))
async def find_coordinator(request: Any, session: Session, broker: Broker) -> Any:
    key_type, listener = request.get("key_type", GROUP), session.connection.listener
    keys = request.get("coordinator_keys")
    if keys is None:
        return {"throttle_time": 0, **await _coordinator_response(key_type, request.key, listener, broker)}
    found = []
    # Each once, or a small request could ask for a huge answer.
    for key in dict.fromkeys(keys):
        found.append({"key": key, **await _coordinator_response(key_type, key, listener, broker)})
        if len(found) % KEYS_PER_ITERATION == 0:
            await asyncio.sleep(0)
    return {"throttle_time": 0, "coordinators": found}


async def _coordinator_response(key_type: int, key: str, listener: str, broker: Broker) -> dict[str, Any]:
    try:
        node_id, endpoint = await _find_coordinator(key_type, key, listener, broker)
    except MoldauError as error:
        return {
            "error_code": error_code(error),
            "error_message": error_message(error),
            "node_id": -1,
            "host": "",
            "port": -1,
        }
    return {
        "error_code": 0,
        "error_message": "",
        "node_id": node_id,
        "host": endpoint.host,
        "port": endpoint.port,
    }


async def _find_coordinator(key_type: int, key: str, listener: str, broker: Broker) -> tuple[int, Endpoint]:
    if key_type == TRANSACTION:
        # The one code by which every client gives up at once.
        raise TransactionalIdAuthorizationError("transactions are not served")
    if key_type != GROUP:
        raise InvalidRequestError("no such kind of coordinator is served")
    partition = await broker.groups.coordinator_partition(key)
    for each, endpoint in reachable_brokers(broker.metadata.image, listener):
        if each.broker_id == partition.leader:
            return each.broker_id, endpoint
    raise CoordinatorNotAvailableError("nobody leads the partition that the group is in")
