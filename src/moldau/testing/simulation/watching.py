"""Hooks into the code under test by which the invariants hear of what no state shows: votes, and acknowledgements."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from moldau.quorum.messages import VoteReply, VoteRequest
from moldau.quorum.state import QuorumState
from moldau.requests import REGISTRY
from moldau.testing.simulation.invariants import Invariants
from moldau.testing.simulation.switching import replaced
from moldau.wire.api_keys import ApiKey

ALL = -1


@contextmanager
def watched(invariants: Invariants) -> Iterator[None]:
    count_vote = QuorumState._vote_answered
    served = REGISTRY[ApiKey.PRODUCE]

    def vote_answered(state: QuorumState, by: int, request: VoteRequest, reply: VoteReply) -> None:
        if reply.is_granted and not request.is_pre_vote:
            invariants.voted(by, request.epoch, request.candidate.node_id)
        count_vote(state, by, request, reply)

    async def produce(request: Any, session: Any, broker: Any) -> Any:
        answer = await served.handler(request, session, broker)
        if request.acks == ALL:
            for topic in answer["responses"]:
                for each in topic["partition_responses"]:
                    if each["error_code"] == 0:
                        invariants.acknowledged(broker.broker_id, f"{topic.get('name')}-{each['index']}")
        return answer

    with replaced(QuorumState, "_vote_answered", vote_answered):
        REGISTRY[ApiKey.PRODUCE] = served._replace(handler=produce)
        try:
            yield
        finally:
            REGISTRY[ApiKey.PRODUCE] = served
