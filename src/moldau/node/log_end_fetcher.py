"""Where the log of a partition ends on some node: what the controller asks before it elects a leader uncleanly."""

from moldau.errors import ReplicaNotAvailableError
from moldau.partitions.replica_manager import ReplicaManager
from moldau.peers.client import PeerClient
from moldau.raft.messages import EpochEndOffset
from moldau.wire.api_keys import ApiKey

LANE = "controller"
DEBUGGING_REPLICA = -2
"""The replica id under which any replica answers, whether it leads or not."""
NEWEST_EPOCH = 2**31 - 1


class LogEndFetcher:
    def __init__(self, node_id: int, table: ReplicaManager, peers: PeerClient) -> None:
        self._node_id = node_id
        self._table = table
        self._peers = peers

    async def fetch(self, broker_id: int, topic: str, partition: int) -> EpochEndOffset:
        """Raises PeerUnreachableError, or ReplicaNotAvailableError where that node answers that it cannot say."""
        if broker_id == self._node_id:
            return self._own_log_end(topic, partition)
        tree = {
            "replica_id": DEBUGGING_REPLICA,
            "topics": [
                {
                    "topic": topic,
                    "partitions": [
                        {"partition": partition, "current_leader_epoch": -1, "leader_epoch": NEWEST_EPOCH}
                    ],
                }
            ],
        }
        answer = await self._peers.call(broker_id, ApiKey.OFFSET_FOR_LEADER_EPOCH, tree, lane=LANE)
        found = [(of.topic, each) for of in answer.topics for each in of.partitions]
        if [(name, each.partition, each.error_code) for name, each in found] != [(topic, partition, 0)]:
            raise ReplicaNotAvailableError(f"node {broker_id} does not say where {topic}-{partition} ends")
        return EpochEndOffset(found[0][1].leader_epoch, found[0][1].end_offset)

    def _own_log_end(self, topic: str, partition: int) -> EpochEndOffset:
        found = self._table.get(topic, partition)
        if found is None:
            raise ReplicaNotAvailableError(f"there is no replica of {topic}-{partition} here")
        return EpochEndOffset(found.log.epochs.latest, found.log.end_offset)
