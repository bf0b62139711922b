"""Queries for the log end of a replica. The controller sends them before an unclean election."""

from moldau.errors import ReplicaNotAvailableError
from moldau.partitions.replica_manager import ReplicaManager
from moldau.peers.client import PeerClient
from moldau.raft.messages import EpochEndOffset
from moldau.wire.api_keys import ApiKey

LANE = "controller"
DEBUGGING_REPLICA = -2
"""The replica id with which any replica responds, not only the leader."""
LATEST_EPOCH = 2**31 - 1


class LogEndFetcher:
    def __init__(self, node_id: int, replica_manager: ReplicaManager, peers: PeerClient) -> None:
        self._node_id = node_id
        self._replica_manager = replica_manager
        self._peers = peers

    async def fetch(self, broker_id: int, topic: str, partition: int) -> EpochEndOffset:
        """Returns the log end of a broker's replica.

        Raises PeerUnreachableError if the broker does not respond, and ReplicaNotAvailableError if it returns an error.
        """
        if broker_id == self._node_id:
            return self._own_log_end(topic, partition)
        request = {
            "replica_id": DEBUGGING_REPLICA,
            "topics": [
                {
                    "topic": topic,
                    "partitions": [{"partition": partition, "current_leader_epoch": -1, "leader_epoch": LATEST_EPOCH}],
                }
            ],
        }
        response = await self._peers.call(broker_id, ApiKey.OFFSET_FOR_LEADER_EPOCH, request, lane=LANE)
        results = [(each.topic, result) for each in response.topics for result in each.partitions]
        if [(name, result.partition, result.error_code) for name, result in results] != [(topic, partition, 0)]:
            raise ReplicaNotAvailableError(f"node {broker_id} returned no log end of {topic}-{partition}")
        return EpochEndOffset(results[0][1].leader_epoch, results[0][1].end_offset)

    def _own_log_end(self, topic: str, partition: int) -> EpochEndOffset:
        replica = self._replica_manager.get(topic, partition)
        if replica is None:
            raise ReplicaNotAvailableError(f"this node has no replica of {topic}-{partition}")
        return EpochEndOffset(replica.log.epochs.latest, replica.log.end_offset)
