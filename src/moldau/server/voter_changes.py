"""What AddRaftVoter, RemoveRaftVoter and UpdateRaftVoter have in common: one change of the quorum's voters."""

from typing import Any

from moldau.errors import InvalidRequestError, MoldauError
from moldau.raft.kafka_network_channel import endpoints_from_message
from moldau.raft.messages import VoterNode
from moldau.server.broker import Broker
from moldau.server.errors import error_code, error_message
from moldau.wire.codec import Message


def voter_from_request(request: Message, broker: Broker) -> VoterNode:
    """The voter that a request describes, with the endpoint between nodes first; raises InvalidRequestError."""
    listener = broker.settings.broker.inter_broker_listener
    endpoints = sorted(
        endpoints_from_message(request.listeners), key=lambda each: each.listener.upper() != listener
    )
    voter = VoterNode(request.voter_id, request.voter_directory_id, tuple(endpoints))
    if voter.node_id < 0:
        raise InvalidRequestError(f"{voter.node_id} is no node id")
    if voter.directory_id is None:
        raise InvalidRequestError(
            "the voter's directory id is missing: it is directory.id in the meta.properties of its data directory"
        )
    if not endpoints or endpoints[0].listener.upper() != listener:
        raise InvalidRequestError(
            f"the voter has no address for the listener {listener}, on which nodes talk"
        )
    return voter


def voter_response(error: MoldauError | None) -> dict[str, Any]:
    return {"throttle_time": 0, "error_code": error_code(error), "error_message": error_message(error)}
