"""Vote: a candidate for leader of the metadata quorum requests the vote of this node. Only nodes send this request.

Only v2 is served, because it is the first version with pre-votes. With a pre-vote, a node checks whether it would win
an election before it starts a new epoch. Errors:

- FENCED_LEADER_EPOCH if the epoch of the request is older than the epoch of this node.
- INVALID_VOTER_KEY if the request is for another voter or another directory.
- INCONSISTENT_VOTER_SET if the candidate is not a known voter while this node has a live leader.
"""

from moldau.error_codes import error_code
from moldau.errors import InvalidRequestError, MoldauError
from moldau.raft import messages as raft
from moldau.raft.raft_client import METADATA_LOG
from moldau.server.api import Broker, RequestContext, handles, top_level_error
from moldau.server.raft_requests import (
    check_cluster_id,
    check_known_voter,
    epoch_error,
    leader_endpoints,
    metadata_partition,
)
from moldau.wire.messages import VoteRequest, VoteRequestPartitionData, VoteResponse

INT_MAX = 2**31 - 1


@handles(versions=(2, 2), error_response=top_level_error, inter_broker=True)
async def vote(request: VoteRequest, session: RequestContext, broker: Broker) -> VoteResponse:
    check_cluster_id(broker, request.cluster_id)
    partition = metadata_partition(request.topics)
    try:
        vote_request = _vote_request(request, partition)
        check_known_voter(vote_request.candidate.node_id, session, broker)
        reply = await broker.quorum.vote(vote_request)
        code = int(epoch_error(partition.replica_epoch, reply.epoch))
    except MoldauError as error:
        code = error_code(error)
        reply = raft.VoteResponse(broker.quorum.epoch, broker.quorum.leader_id, is_granted=False)
    return {
        "topics": [
            {
                "topic_name": METADATA_LOG.topic,
                "partitions": [
                    {
                        "partition_index": METADATA_LOG.partition,
                        "error_code": code,
                        "leader_id": reply.leader_id,
                        "leader_epoch": reply.epoch,
                        "vote_granted": reply.is_granted,
                    }
                ],
            }
        ],
        "node_endpoints": leader_endpoints(broker, reply.leader_id),
        "silent_ms": min(reply.leader_silence_ms, INT_MAX),
    }


def _vote_request(request: VoteRequest, partition: VoteRequestPartitionData) -> raft.VoteRequest:
    log_end = raft.EpochEndOffset(partition.last_offset_epoch, partition.last_offset)
    # A vote is for a new epoch, of which no log has records yet. A pre-vote has the current epoch, which may have some.
    epoch_max = partition.replica_epoch if partition.pre_vote else partition.replica_epoch - 1
    if partition.replica_id < 0 or partition.replica_epoch < 0:
        raise InvalidRequestError(
            f"node {partition.replica_id} cannot be a candidate in epoch {partition.replica_epoch}"
        )
    if not raft.NO_EPOCH <= log_end.epoch <= epoch_max or log_end.offset < 0:
        raise InvalidRequestError(
            f"the log of a candidate of epoch {partition.replica_epoch} cannot end at offset {log_end.offset} "
            f"in epoch {log_end.epoch}"
        )
    return raft.VoteRequest(
        candidate=raft.ReplicaKey(partition.replica_id, partition.replica_directory_id),
        epoch=partition.replica_epoch,
        log_end=log_end,
        is_pre_vote=partition.pre_vote,
        voter=raft.ReplicaKey(request.voter_id, partition.voter_directory_id),
    )
