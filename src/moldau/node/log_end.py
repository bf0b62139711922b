"""Queries for the log end of a replica. The controller sends them before an unclean election."""

from moldau.errors import ReplicaNotAvailableError
from moldau.partitions.replica_manager import ReplicaManager
from moldau.peers.client import PeerClient
from moldau.raft.messages import EpochEndOffset
from moldau.wire.api_keys import ApiKey

LANE = "log-end"
DEBUGGING_REPLICA = -2
"""The replica id of a request to which any replica responds, not only the leader."""
LATEST_EPOCH = 2**31 - 1


async def fetch_log_end(
    node_id: int, replica_manager: ReplicaManager, peers: PeerClient, broker_id: int, topic: str, partition: int
) -> EpochEndOffset:
    """Returns the log end of a broker's replica.

    Raises PeerUnreachableError if the broker does not respond, and ReplicaNotAvailableError if it returns an error.
    """
    if broker_id == node_id:
        replica = replica_manager.get(topic, partition)
        if replica is None:
            raise ReplicaNotAvailableError(f"this node has no replica of {topic}-{partition}")
        return EpochEndOffset(replica.log.epochs.latest, replica.log.end_offset)
    query = {"partition": partition, "current_leader_epoch": -1, "leader_epoch": LATEST_EPOCH}
    request = {"replica_id": DEBUGGING_REPLICA, "topics": [{"topic": topic, "partitions": [query]}]}
    response = await peers.call(broker_id, ApiKey.OFFSET_FOR_LEADER_EPOCH, request, lane=LANE)
    results = [(each.topic, result) for each in response.topics for result in each.partitions]
    if [(name, result.partition, result.error_code) for name, result in results] != [(topic, partition, 0)]:
        raise ReplicaNotAvailableError(f"node {broker_id} returned no log end of {topic}-{partition}")
    return EpochEndOffset(results[0][1].leader_epoch, results[0][1].end_offset)
