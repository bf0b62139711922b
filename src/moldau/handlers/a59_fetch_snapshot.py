"""FetchSnapshot: a part of a snapshot of the metadata, for a replica that is behind the leader's log. Between nodes
only.

Only v1 is served, the first that says which disk a replica has. A snapshot that is gone since gets SNAPSHOT_NOT_FOUND
(the replica fetches again, and is told of a newer one), a position behind its end POSITION_OUT_OF_RANGE.
"""

from typing import Any

from moldau.errors import InvalidRequestError, MoldauError
from moldau.raft.driver import METADATA_LOG
from moldau.raft.messages import FetchSnapshotRequest, FetchSnapshotResponse, ReplicaKey, SnapshotId
from moldau.server.broker import Broker
from moldau.server.errors import ErrorCode, error_code
from moldau.server.raft_requests import (
    check_cluster_id,
    check_directory_id,
    leader_endpoints,
    leadership_error,
)
from moldau.server.registry import handles
from moldau.server.session import Session
from moldau.wire.api_keys import ApiKey
from moldau.wire.codec import Message

CHUNK_BYTES_MAX = 8 * 1024 * 1024
"""Whatever is asked for: an answer is in memory as a whole."""


@handles(ApiKey.FETCH_SNAPSHOT, versions=(1, 1), inter_broker=True)
async def fetch_snapshot(request: Message, session: Session, broker: Broker) -> dict[str, Any]:
    try:
        check_cluster_id(broker, request.cluster_id)
        requested = _snapshot_partition(request)
    except MoldauError as error:
        return {"throttle_time": 0, "error_code": error_code(error), "topics": []}
    snapshot_fetch = FetchSnapshotRequest(
        replica=ReplicaKey(request.replica_id, requested.replica_directory_id),
        epoch=requested.current_leader_epoch,
        snapshot=SnapshotId(requested.snapshot_id.end_offset, requested.snapshot_id.epoch),
        position=requested.position,
        bytes_max=min(request.max_bytes, CHUNK_BYTES_MAX),
        leader_sent_ms=request.heard_ms,
    )
    try:
        check_directory_id(*snapshot_fetch.replica)
        if snapshot_fetch.bytes_max <= 0:
            raise InvalidRequestError(f"{snapshot_fetch.bytes_max} bytes are no piece of a snapshot")
        found = await broker.quorum.fetch_snapshot(snapshot_fetch)
        code = int(leadership_error(snapshot_fetch.epoch, found.epoch, is_leader=found.is_leader))
    except MoldauError as error:
        code = error_code(error)
        found = FetchSnapshotResponse(broker.quorum.epoch, broker.quorum.leader_id, is_leader=False)
    partition = {
        "index": METADATA_LOG.partition,
        "error_code": code,
        "snapshot_id": {
            "end_offset": snapshot_fetch.snapshot.end_offset,
            "epoch": snapshot_fetch.snapshot.epoch,
        },
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


def _snapshot_partition(request: Message) -> Message:
    named = [(topic.name, each) for topic in request.topics for each in topic.partitions]
    if len(named) != 1 or (named[0][0], named[0][1].partition) != METADATA_LOG:
        raise InvalidRequestError(f"only {METADATA_LOG} has snapshots, and the request is for others")
    found: Message = named[0][1]
    return found
