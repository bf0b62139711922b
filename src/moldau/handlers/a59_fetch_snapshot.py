"""FetchSnapshot: returns a chunk of a metadata snapshot to a replica whose log ends before the leader's log starts.

Only nodes send this request. Only v1 is served, because it is the first version with directory ids. Errors:

- SNAPSHOT_NOT_FOUND if the snapshot was deleted. The replica then sends a Fetch and gets the id of a newer snapshot.
- POSITION_OUT_OF_RANGE if the position is beyond the end of the snapshot.
"""

from moldau.error_codes import error_code
from moldau.errors import InvalidRequestError, MoldauError
from moldau.raft import messages as raft
from moldau.raft.raft_client import METADATA_LOG
from moldau.server.api import Broker, RequestContext, handles, top_level_error
from moldau.server.raft_requests import check_cluster_id, check_directory_id, leader_endpoints, leadership_error
from moldau.wire.messages import FetchSnapshotRequest, FetchSnapshotRequestPartitionSnapshot, FetchSnapshotResponse

CHUNK_BYTES_MAX = 8 * 1024 * 1024
"""The maximum size of a chunk. Chunks are limited because the complete response is in memory."""


@handles(versions=(1, 1), error_response=top_level_error, inter_broker=True)
async def fetch_snapshot(
    request: FetchSnapshotRequest, session: RequestContext, broker: Broker
) -> FetchSnapshotResponse:
    check_cluster_id(broker, request.cluster_id)
    partition = _snapshot_partition(request)
    snapshot = raft.SnapshotId(partition.snapshot_id.end_offset, partition.snapshot_id.epoch)
    fetch = raft.FetchSnapshotRequest(
        replica=raft.ReplicaKey(request.replica_id, partition.replica_directory_id),
        epoch=partition.current_leader_epoch,
        snapshot=snapshot,
        position=partition.position,
        bytes_max=min(request.max_bytes, CHUNK_BYTES_MAX),
        leader_sent_ms=request.heard_ms,
    )
    try:
        check_directory_id(*fetch.replica)
        if fetch.bytes_max <= 0:
            raise InvalidRequestError(f"cannot fetch {fetch.bytes_max} bytes of a snapshot")
        fetched = await broker.quorum.fetch_snapshot(fetch)
        code = int(leadership_error(fetch.epoch, fetched.epoch, is_leader=fetched.is_leader))
    except MoldauError as error:
        code = error_code(error)
        fetched = raft.FetchSnapshotResponse(broker.quorum.epoch, broker.quorum.leader_id, is_leader=False)
    return {
        "topics": [
            {
                "name": METADATA_LOG.topic,
                "partitions": [
                    {
                        "index": METADATA_LOG.partition,
                        "error_code": code,
                        "snapshot_id": {"end_offset": snapshot.end_offset, "epoch": snapshot.epoch},
                        "current_leader": {"leader_id": fetched.leader_id, "leader_epoch": fetched.epoch},
                        "size": fetched.size,
                        "position": fetched.position,
                        "unaligned_records": fetched.data,
                    }
                ],
            }
        ],
        "node_endpoints": leader_endpoints(broker, fetched.leader_id),
        "sent_ms": fetched.sent_ms,
    }


def _snapshot_partition(request: FetchSnapshotRequest) -> FetchSnapshotRequestPartitionSnapshot:
    requested = [(topic.name, each) for topic in request.topics for each in topic.partitions]
    if len(requested) != 1 or (requested[0][0], requested[0][1].partition) != METADATA_LOG:
        raise InvalidRequestError(f"only {METADATA_LOG} has snapshots")
    return requested[0][1]
