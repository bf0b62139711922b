"""Fetch of the metadata log: how the nodes of the cluster follow the quorum's leader. It waits for news as any Fetch
does, and is for nodes alone: to everybody else there is no such topic.

A replica says where its log ends. It gets what follows; or where its last epoch ended in the leader's log, if its own
went on from there; or the snapshot to fetch first, if the leader's log begins behind it.
"""

from typing import Any

from moldau.errors import (
    InvalidRequestError,
    MoldauError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
)
from moldau.raft.driver import METADATA_LOG, METADATA_TOPIC_ID
from moldau.raft.messages import NO_EPOCH, EpochEndOffset, QuorumFetchRequest, QuorumFetchResponse, ReplicaKey
from moldau.server.broker import Broker
from moldau.server.errors import ErrorCode, error_code
from moldau.server.raft_requests import (
    check_cluster_id,
    check_directory_id,
    leader_endpoints,
    leadership_error,
)
from moldau.server.session import Session
from moldau.wire.codec import Message

RESPONSE_BYTES_MAX = 8 * 1024 * 1024
"""Whatever is asked for: an answer is in memory as a whole."""

UNKNOWN_HIGH_WATERMARK = 2**63 - 1
"""Of a replica that cannot say which one it knows: it is not told of a new one before its time."""

_TOP_LEVEL_ERROR_VERSION = 7
"""The first whose answers can say that all of a request is wrong."""
_TOPIC_ID_VERSION = 13


def is_metadata_fetch(request: Message) -> bool:
    """Whether a Fetch names the metadata log."""
    return any(
        topic.get("topic_id") == METADATA_TOPIC_ID or topic.get("topic") == METADATA_LOG.topic
        for topic in request.topics
    )


async def fetch_metadata(request: Message, session: Session, broker: Broker) -> dict[str, Any]:
    """The answer to a Fetch that names the metadata log."""
    try:
        check_cluster_id(broker, request.get("cluster_id"))
        partition = _metadata_partition(request)
    except MoldauError as error:
        return _error_response(request, session.api_version, error_code(error))
    try:
        replica_id = _replica_id(request, session, broker)
        raft_fetch = _raft_fetch(request, partition, replica_id)
    except MoldauError as error:
        return _response(0, [_partition_response(error_code(error), None)])
    try:
        found = await broker.quorum.fetch(raft_fetch)
        code = int(leadership_error(raft_fetch.epoch, found.epoch, is_leader=found.is_leader))
    except MoldauError as error:
        code = error_code(error)
        found = QuorumFetchResponse(broker.quorum.epoch, broker.quorum.leader_id, is_leader=False)
    return _response(0, [_partition_response(code, found)]) | {
        "node_endpoints": leader_endpoints(broker, found.leader_id),
        "sent_ms": found.sent_ms,
    }


def _metadata_partition(request: Message) -> Message:
    named = [each for topic in request.topics for each in topic.partitions]
    if len(request.topics) != 1 or len(named) != 1 or named[0].partition != METADATA_LOG.partition:
        raise InvalidRequestError(f"{METADATA_LOG} is fetched by itself, not together with other partitions")
    found: Message = named[0]
    return found


def _replica_id(request: Message, session: Session, broker: Broker) -> int:
    state = request.get("replica_state")
    replica_id: int = request.get("replica_id", -1) if state is None else state.replica_id
    if replica_id < 0 or session.connection.listener != broker.settings.broker.inter_broker_listener:
        kind = (
            UnknownTopicIdError if session.api_version >= _TOPIC_ID_VERSION else UnknownTopicOrPartitionError
        )
        raise kind(f"{METADATA_LOG} is for nodes of the cluster alone")
    return replica_id


def _raft_fetch(request: Message, partition: Message, replica_id: int) -> QuorumFetchRequest:
    check_directory_id(replica_id, partition.get("replica_directory_id"))
    log_end = EpochEndOffset(partition.get("last_fetched_epoch", NO_EPOCH), partition.fetch_offset)
    bytes_max = min(request.max_bytes, partition.partition_max_bytes, RESPONSE_BYTES_MAX)
    if log_end.offset < 0 or log_end.epoch < NO_EPOCH or request.max_wait < 0 or bytes_max < 0:
        raise InvalidRequestError(
            f"node {replica_id} cannot fetch {bytes_max} bytes from {log_end.offset} behind epoch {log_end.epoch}"
        )
    return QuorumFetchRequest(
        replica=ReplicaKey(replica_id, partition.get("replica_directory_id")),
        epoch=partition.get("current_leader_epoch", NO_EPOCH),
        log_end=log_end,
        high_watermark=partition.get("high_watermark", UNKNOWN_HIGH_WATERMARK),
        max_wait_ms=request.max_wait,
        bytes_max=bytes_max,
        leader_sent_ms=request.get("heard_ms", -1),
    )


def _error_response(request: Message, version: int, code: int) -> dict[str, Any]:
    if version >= _TOP_LEVEL_ERROR_VERSION:
        return _response(code, [])
    responses = [
        {
            "topic": topic.topic,
            "partitions": [
                _partition_response(code, None) | {"partition_index": each.partition}
                for each in topic.partitions
            ],
        }
        for topic in request.topics
    ]
    return _response(0, []) | {"responses": responses}


def _response(code: int, partitions: list[dict[str, Any]]) -> dict[str, Any]:
    topic = {"topic": METADATA_LOG.topic, "topic_id": METADATA_TOPIC_ID, "partitions": partitions}
    return {
        "throttle_time": 0,
        "error_code": code,
        "session_id": 0,
        "responses": [topic] if partitions else [],
    }


def _partition_response(code: int, found: QuorumFetchResponse | None) -> dict[str, Any]:
    """`found` says who leads, with whatever code; the rest of it counts only where the code is none."""
    shown = found if code == ErrorCode.none else None
    diverging_epoch = shown and shown.diverging_epoch
    snapshot = shown and shown.snapshot
    return {
        "partition_index": METADATA_LOG.partition,
        "error_code": code,
        "high_watermark": -1 if shown is None else shown.high_watermark,
        "last_stable_offset": -1,
        "log_start_offset": -1 if shown is None else shown.log_start_offset,
        "diverging_epoch": diverging_epoch
        and {"epoch": diverging_epoch.epoch, "end_offset": diverging_epoch.offset},
        "current_leader": found and {"leader_id": found.leader_id, "leader_epoch": found.epoch},
        "snapshot_id": snapshot and {"end_offset": snapshot.end_offset, "epoch": snapshot.epoch},
        "aborted_transactions": None,
        "preferred_read_replica": -1,
        "records": b"" if shown is None else shown.records,
    }
