"""Hooks in the code under test. They report events that the state of a node does not show: votes, acknowledgements and
requests between nodes."""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest import mock

from moldau.controller.channel import NodeToControllerChannel
from moldau.controller.messages import alter_partition_request
from moldau.controller.requests import IsrChange, IsrChangeResult
from moldau.handlers import REGISTRY
from moldau.peers.client import PeerClient
from moldau.raft.messages import VoteRequest, VoteResponse
from moldau.raft.state_machine import RaftStateMachine
from moldau.testing.simulation.checkers.invariants import InvariantChecker
from moldau.wire.api_keys import ApiKey

ACKS_ALL = -1
REPLAYABLE_APIS = (ApiKey.VOTE, ApiKey.BEGIN_QUORUM_EPOCH, ApiKey.END_QUORUM_EPOCH)
"""The requests that are sent again later, in addition to AlterPartition. Such late requests must have no effect."""
REQUESTS_KEPT = 20
"""The number of latest requests that are kept per API."""
TO_CONTROLLER = -1


class RecordedRequest(NamedTuple):
    """A request from one node to another."""

    node_id: int
    """Target node; TO_CONTROLLER for the active controller."""
    api: ApiKey
    tree: Mapping[str, Any]
    version: int | None


RecordedRequests = Mapping[ApiKey, "deque[RecordedRequest]"]


def new_request_buffers() -> RecordedRequests:
    return {api: deque(maxlen=REQUESTS_KEPT) for api in (ApiKey.ALTER_PARTITION, *REPLAYABLE_APIS)}


@contextmanager
def install_hooks(invariants: InvariantChecker, recorded_requests: RecordedRequests) -> Iterator[None]:
    """Patches the code under test. `recorded_requests` receives the latest requests that can be replayed."""
    count_vote, call = RaftStateMachine._on_vote_response, PeerClient.call
    alter, served = NodeToControllerChannel.alter_partition, REGISTRY[ApiKey.PRODUCE]

    def record(node_id: int, api: ApiKey, tree: Mapping[str, Any], version: int | None) -> None:
        recorded_requests[api].append(RecordedRequest(node_id, api, tree, version))

    def on_vote_response(state: RaftStateMachine, by: int, request: VoteRequest, reply: VoteResponse) -> None:
        if reply.is_granted and not request.is_pre_vote:
            invariants.on_vote_granted(by, request.epoch, request.candidate.node_id)
        count_vote(state, by, request, reply)

    async def call_peer(peers: PeerClient, node_id: int, api: ApiKey, tree: Mapping[str, Any], **options: Any) -> Any:
        if api in REPLAYABLE_APIS:
            record(node_id, api, tree, options.get("version"))
        return await call(peers, node_id, api, tree, **options)

    async def alter_partition(
        channel: NodeToControllerChannel, broker_id: int, broker_epoch: int, changes: Sequence[IsrChange]
    ) -> list[IsrChangeResult]:
        tree = alter_partition_request(broker_id, broker_epoch, changes)
        record(TO_CONTROLLER, ApiKey.ALTER_PARTITION, tree, None)
        return await alter(channel, broker_id, broker_epoch, changes)

    async def produce(request: Any, session: Any, broker: Any) -> Any:
        response: Any = await served.handler(request, session, broker)
        if request.acks == ACKS_ALL:
            for topic in response["responses"]:
                for each in topic["partition_responses"]:
                    if not each.get("error_code"):
                        invariants.on_acknowledged(broker.broker_id, f"{topic.get('name')}-{each['index']}")
        return response

    with (
        mock.patch.object(RaftStateMachine, "_on_vote_response", on_vote_response),
        mock.patch.object(PeerClient, "call", call_peer),
        mock.patch.object(NodeToControllerChannel, "alter_partition", alter_partition),
        mock.patch.dict(REGISTRY, {ApiKey.PRODUCE: served._replace(handler=produce)}),
    ):
        yield
