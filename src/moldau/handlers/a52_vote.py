"""Vote: a voter of the metadata quorum stands for leader, and asks this one for its vote. Between nodes only.

Only v2 is served, the first with pre-votes: a node asks whether it would be voted for before it disturbs anybody with
a new epoch. An older epoch than this node's gets FENCED_LEADER_EPOCH; a request for another voter, or for this node
with another disk, INVALID_VOTER_KEY; a candidate that is no voter, as long as this node hears a leader,
INCONSISTENT_VOTER_SET.
"""

from typing import Any

from moldau.errors import InvalidRequestError, MoldauError
from moldau.raft.messages import NO_EPOCH, EpochEndOffset, ReplicaKey, VoteRequest, VoteResponse
from moldau.server.broker import Broker
from moldau.server.errors import ErrorCode, error_code
from moldau.server.raft_requests import (
    check_cluster_id,
    check_known_voter,
    metadata_partition,
    raft_error_response,
    raft_response,
)
from moldau.server.registry import handles
from moldau.server.session import Session
from moldau.wire.api_keys import ApiKey
from moldau.wire.codec import Message

INT_MAX = 2**31 - 1


@handles(ApiKey.VOTE, versions=(2, 2), inter_broker=True)
async def vote(request: Message, session: Session, broker: Broker) -> dict[str, Any]:
    try:
        check_cluster_id(broker, request.cluster_id)
        requested = metadata_partition(request.topics)
    except MoldauError as error:
        return raft_error_response(error_code(error))
    try:
        vote_request = _vote_request(request, requested)
        check_known_voter(vote_request.candidate.node_id, session, broker)
        reply = await broker.quorum.vote(vote_request)
        is_fenced = requested.replica_epoch < reply.epoch
        code = int(ErrorCode.fenced_leader_epoch if is_fenced else ErrorCode.none)
    except MoldauError as error:
        code = error_code(error)
        reply = VoteResponse(broker.quorum.epoch, broker.quorum.leader_id, is_granted=False)
    partition = {
        "leader_id": reply.leader_id,
        "leader_epoch": reply.epoch,
        "vote_granted": reply.is_granted,
    }
    return raft_response(code, partition, broker) | {"silent_ms": min(reply.leader_silence_ms, INT_MAX)}


def _vote_request(request: Message, requested: Message) -> VoteRequest:
    log_end = EpochEndOffset(requested.last_offset_epoch, requested.last_offset)
    # Whoever stands for an epoch has no record of it yet; with a pre-vote the epoch is its present one.
    epoch_max = requested.replica_epoch if requested.pre_vote else requested.replica_epoch - 1
    if requested.replica_id < 0 or requested.replica_epoch < 0:
        raise InvalidRequestError(
            f"node {requested.replica_id} cannot stand for epoch {requested.replica_epoch}"
        )
    if not NO_EPOCH <= log_end.epoch <= epoch_max or log_end.offset < 0:
        raise InvalidRequestError(
            f"a candidate of epoch {requested.replica_epoch} cannot have a log that ends at {log_end.offset} "
            f"in epoch {log_end.epoch}"
        )
    return VoteRequest(
        candidate=ReplicaKey(requested.replica_id, requested.replica_directory_id),
        epoch=requested.replica_epoch,
        log_end=log_end,
        is_pre_vote=requested.pre_vote,
        voter=ReplicaKey(request.voter_id, requested.voter_directory_id),
    )
