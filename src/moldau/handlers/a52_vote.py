"""Vote: a voter of the metadata quorum stands for leader, and asks this one for its vote. Between nodes only.

Only v2 is served, the first with pre-votes: a node asks whether it would be voted for before it disturbs anybody with
a new epoch. An older epoch than this node's gets FENCED_LEADER_EPOCH; a request for another voter, or for this node
with another disk, INVALID_VOTER_KEY; a candidate that is no voter, as long as this node hears a leader,
INCONSISTENT_VOTER_SET.
"""

from typing import Any

from moldau.errors import InvalidRequestError, MoldauError
from moldau.raft.messages import NO_EPOCH, LogEnd, ReplicaKey, VoteReply, VoteRequest
from moldau.server.broker import Broker
from moldau.server.errors import ErrorCode, error_code
from moldau.server.raft_requests import answer, check_cluster, check_sender, only_partition, refusal
from moldau.server.registry import handles
from moldau.server.session import Session
from moldau.wire.api_keys import ApiKey
from moldau.wire.codec import Message

INT_MAX = 2**31 - 1


@handles(ApiKey.VOTE, versions=(2, 2), between_nodes=True)
async def vote(request: Message, session: Session, broker: Broker) -> dict[str, Any]:
    try:
        check_cluster(broker, request.cluster_id)
        asked = only_partition(request.topics)
    except MoldauError as error:
        return refusal(error_code(error))
    try:
        wanted = _vote_request(request, asked)
        check_sender(wanted.candidate.node_id, session, broker)
        reply = await broker.quorum.vote(wanted)
        is_fenced = asked.replica_epoch < reply.epoch
        code = int(ErrorCode.fenced_leader_epoch if is_fenced else ErrorCode.none)
    except MoldauError as error:
        code = error_code(error)
        reply = VoteReply(broker.quorum.epoch, broker.quorum.leader_id, is_granted=False)
    partition = {
        "leader_id": reply.leader_id,
        "leader_epoch": reply.epoch,
        "vote_granted": reply.is_granted,
    }
    return answer(code, partition, broker) | {"silent_ms": min(reply.silent_ms, INT_MAX)}


def _vote_request(request: Message, asked: Message) -> VoteRequest:
    last = LogEnd(asked.last_offset_epoch, asked.last_offset)
    # Whoever stands for an epoch has no record of it yet; with a pre-vote the epoch is its present one.
    epoch_max = asked.replica_epoch if asked.pre_vote else asked.replica_epoch - 1
    if asked.replica_id < 0 or asked.replica_epoch < 0:
        raise InvalidRequestError(f"node {asked.replica_id} cannot stand for epoch {asked.replica_epoch}")
    if not NO_EPOCH <= last.epoch <= epoch_max or last.offset < 0:
        raise InvalidRequestError(
            f"a candidate of epoch {asked.replica_epoch} cannot have a log that ends at {last.offset} "
            f"in epoch {last.epoch}"
        )
    return VoteRequest(
        candidate=ReplicaKey(asked.replica_id, asked.replica_directory_id),
        epoch=asked.replica_epoch,
        last=last,
        is_pre_vote=asked.pre_vote,
        voter=ReplicaKey(request.voter_id, asked.voter_directory_id),
    )
