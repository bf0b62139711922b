"""FindCoordinator: which broker looks after a group or a transactional id. None does: there are no coordinators.

It is served all the same, because librdkafka compresses with lz4 only where it sees this API. Consumers of a group
are told what Kafka tells them while it has no coordinator, and consume by assignment; transactional producers
are refused for good, so that they do not wait.

Versions: 1 brought the kind of key, 3 the flexible encoding, 4 many keys in one request, 6 share groups.
"""

from typing import Any

from moldau.requests.broker import Broker
from moldau.requests.errors import ErrorCode
from moldau.requests.registry import handles
from moldau.requests.session import Session
from moldau.wire.api_keys import ApiKey

GROUP, TRANSACTION = 0, 1
_REFUSALS = {
    GROUP: (ErrorCode.coordinator_not_available, "consumer groups are not served: assign partitions"),
    # The one code by which every client gives up at once.
    TRANSACTION: (ErrorCode.transactional_id_authorization_failed, "transactions are not served"),
}
_UNKNOWN_KIND = (ErrorCode.invalid_request, "no such kind of coordinator is served")


@handles(ApiKey.FIND_COORDINATOR, versions=(0, 6))
async def find_coordinator(request: Any, session: Session, broker: Broker) -> Any:
    code, message = _REFUSALS.get(request.get("key_type", GROUP), _UNKNOWN_KIND)
    nobody = {"error_code": int(code), "error_message": message, "node_id": -1, "host": "", "port": -1}
    keys = dict.fromkeys(request.get("coordinator_keys", ()))
    return {"throttle_time": 0, **nobody, "coordinators": [{"key": key, **nobody} for key in keys]}
