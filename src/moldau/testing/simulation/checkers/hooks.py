"""Hooks into the code under test by which a scenario hears of what no state shows: votes, acknowledgements, and what
nodes ask of each other."""

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from moldau.controller.gateway import ControllerGateway
from moldau.controller.requests import InSyncChange, InSyncResult
from moldau.controller.wire import in_sync_tree
from moldau.handlers import REGISTRY
from moldau.peers.peers import Peers
from moldau.raft.messages import VoteReply, VoteRequest
from moldau.raft.state import QuorumState
from moldau.testing.simulation.ablations.patch import replaced
from moldau.testing.simulation.checkers.invariants import Invariants
from moldau.wire.api_keys import ApiKey

ALL = -1
MAY_BE_LATE = (ApiKey.VOTE, ApiKey.BEGIN_QUORUM_EPOCH, ApiKey.END_QUORUM_EPOCH)
"""What a network may hold back for long, besides changes of in-sync sets: it must do no harm when it comes."""
PACKETS_KEPT = 20
"""Of each kind."""
TO_CONTROLLER = -1


class Packet(NamedTuple):
    """A request from one node to another."""

    node_id: int
    """To whom; TO_CONTROLLER for whoever that is."""
    api: ApiKey
    tree: Mapping[str, Any]
    version: int | None


Packets = Mapping[ApiKey, "deque[Packet]"]


def no_packets() -> Packets:
    return {api: deque(maxlen=PACKETS_KEPT) for api in (ApiKey.ALTER_PARTITION, *MAY_BE_LATE)}


@contextmanager
def watched(invariants: Invariants, packets: Packets) -> Iterator[None]:
    """`packets` takes the last requests that may be late."""
    with (
        replaced(QuorumState, "_vote_answered", _watch_votes(invariants)),
        replaced(Peers, "call", _watch_calls(packets)),
        replaced(ControllerGateway, "alter_in_sync", _watch_in_sync(packets)),
    ):
        served = REGISTRY[ApiKey.PRODUCE]
        REGISTRY[ApiKey.PRODUCE] = served._replace(handler=_watch_produce(served.handler, invariants))
        try:
            yield
        finally:
            REGISTRY[ApiKey.PRODUCE] = served


def _watch_votes(invariants: Invariants) -> object:
    count_vote = QuorumState._vote_answered

    def vote_answered(state: QuorumState, by: int, request: VoteRequest, reply: VoteReply) -> None:
        if reply.is_granted and not request.is_pre_vote:
            invariants.voted(by, request.epoch, request.candidate.node_id)
        count_vote(state, by, request, reply)

    return vote_answered


def _watch_calls(packets: Packets) -> object:
    call = Peers.call

    async def watched_call(
        peers: Peers, node_id: int, api: ApiKey, tree: Mapping[str, Any], **options: Any
    ) -> Any:
        if api in MAY_BE_LATE:
            packets[api].append(Packet(node_id, api, tree, options.get("version")))
        return await call(peers, node_id, api, tree, **options)

    return watched_call


def _watch_in_sync(packets: Packets) -> object:
    alter, api = ControllerGateway.alter_in_sync, ApiKey.ALTER_PARTITION

    async def alter_in_sync(
        gateway: ControllerGateway, broker_id: int, broker_epoch: int, changes: Sequence[InSyncChange]
    ) -> list[InSyncResult]:
        tree = in_sync_tree(broker_id, broker_epoch, changes)
        packets[api].append(Packet(TO_CONTROLLER, api, tree, None))
        return await alter(gateway, broker_id, broker_epoch, changes)

    return alter_in_sync


def _watch_produce(handler: Callable[..., Any], invariants: Invariants) -> Any:
    async def produce(request: Any, session: Any, broker: Any) -> Any:
        answer = await handler(request, session, broker)
        if request.acks == ALL:
            for topic in answer["responses"]:
                for each in topic["partition_responses"]:
                    if each["error_code"] == 0:
                        invariants.acknowledged(broker.broker_id, f"{topic.get('name')}-{each['index']}")
        return answer

    return produce
