"""FetchSnapshot: a part of a snapshot of the metadata, for a replica that is behind the leader's log. Between nodes
only.

Only v1 is served, the first that says which disk a replica has. A snapshot that is gone since gets SNAPSHOT_NOT_FOUND
(the replica fetches again, and is told of a newer one), a position behind its end POSITION_OUT_OF_RANGE.
"""

from typing import Any

from moldau.errors import InvalidRequestError, MoldauError
from moldau.raft.driver import METADATA_LOG
from moldau.raft.messages import ReplicaKey, SnapshotFetch, SnapshotFetched, SnapshotId
from moldau.server.broker import Broker
from moldau.server.errors import ErrorCode, error_code
from moldau.server.raft_requests import about_leadership, check_cluster, check_replica, leader_endpoints
from moldau.server.registry import handles
from moldau.server.session import Session
from moldau.wire.api_keys import ApiKey
from moldau.wire.codec import Message

PIECE_BYTES_MAX = 8 * 1024 * 1024
"""Whatever is asked for: an answer is in memory as a whole."""


@handles(ApiKey.FETCH_SNAPSHOT, versions=(1, 1), between_nodes=True)
async def fetch_snapshot(request: Message, session: Session, broker: Broker) -> dict[str, Any]:
    try:
        check_cluster(broker, request.cluster_id)
        asked = _only_partition(request)
    except MoldauError as error:
        return {"throttle_time": 0, "error_code": error_code(error), "topics": []}
    wanted = SnapshotFetch(
        replica=ReplicaKey(request.replica_id, asked.replica_directory_id),
        epoch=asked.current_leader_epoch,
        snapshot=SnapshotId(asked.snapshot_id.end_offset, asked.snapshot_id.epoch),
        position=asked.position,
        bytes_max=min(request.max_bytes, PIECE_BYTES_MAX),
        heard_ms=request.heard_ms,
    )
    try:
        check_replica(*wanted.replica)
        if wanted.bytes_max <= 0:
            raise InvalidRequestError(f"{wanted.bytes_max} bytes are no piece of a snapshot")
        found = await broker.quorum.fetch_snapshot(wanted)
        code = int(about_leadership(wanted.epoch, found.epoch, is_leader=found.is_leader))
    except MoldauError as error:
        code = error_code(error)
        found = SnapshotFetched(broker.quorum.epoch, broker.quorum.leader_id, is_leader=False)
    partition = {
        "index": METADATA_LOG.partition,
        "error_code": code,
        "snapshot_id": {"end_offset": wanted.snapshot.end_offset, "epoch": wanted.snapshot.epoch},
        "current_leader": {"leader_id": found.leader_id, "leader_epoch": found.epoch},
        "size": found.size,
        "position": found.position,
        "unaligned_records": found.data,
    }
    return {
        "throttle_time": 0,
        "error_code": int(ErrorCode.none),
        "topics": [{"name": METADATA_LOG.topic, "partitions": [partition]}],
        "node_endpoints": leader_endpoints(broker, found.leader_id),
        "sent_ms": found.sent_ms,
    }


def _only_partition(request: Message) -> Message:
    named = [(topic.name, each) for topic in request.topics for each in topic.partitions]
    if len(named) != 1 or (named[0][0], named[0][1].partition) != METADATA_LOG:
        raise InvalidRequestError(f"only {METADATA_LOG} has snapshots, and the request is for others")
    found: Message = named[0][1]
    return found
