"""Fetches of the metadata log. Nodes use them to replicate the log from the leader of the quorum.

If a client fetches the metadata log, the error is that the topic is unknown. A replica sends the end offset and the
last epoch of its log. The response has one of these forms:

- The records after the end offset of the replica.
- If the logs diverge, the end offset that the replica's last epoch has in the leader's log.
- If the leader's log starts after the end offset of the replica, the id of the snapshot to fetch first.
"""

from moldau.error_codes import ErrorCode, error_code
from moldau.errors import InvalidRequestError, MoldauError, UnknownTopicIdError, UnknownTopicOrPartitionError
from moldau.raft.messages import NO_EPOCH, EpochEndOffset, QuorumFetchRequest, QuorumFetchResponse, ReplicaKey
from moldau.raft.raft_client import METADATA_LOG, METADATA_TOPIC_ID
from moldau.server.api import Broker, RequestContext
from moldau.server.raft_requests import check_cluster_id, check_directory_id, leader_endpoints, leadership_error
from moldau.wire.messages import FetchRequest, FetchRequestPartition, FetchResponse, FetchResponsePartitionData

RESPONSE_BYTES_MAX = 8 * 1024 * 1024
"""The maximum size of a response. Responses are limited because the complete response is in memory."""

_TOP_LEVEL_ERROR_VERSION = 7
_TOPIC_ID_VERSION = 13
_REPLICA_STATE_VERSION = 15


def is_metadata_fetch(request: FetchRequest) -> bool:
    return any(topic.topic_id == METADATA_TOPIC_ID or topic.topic == METADATA_LOG.topic for topic in request.topics)


def replica_state(request: FetchRequest, session: RequestContext) -> tuple[int, int]:
    """Returns the node id and the broker epoch of the fetching replica. Missing values are -1."""
    if session.api_version < _REPLICA_STATE_VERSION:
        return request.replica_id, -1
    return request.replica_state.replica_id, request.replica_state.replica_epoch


async def fetch_metadata(request: FetchRequest, session: RequestContext, broker: Broker) -> FetchResponse:
    try:
        check_cluster_id(broker, request.cluster_id)
        partition = _metadata_partition(request)
    except MoldauError as error:
        return _error_response(request, session.api_version, error_code(error))
    try:
        raft_fetch = _raft_fetch(request, partition, _replica_id(request, session, broker))
    except MoldauError as error:
        return _response(_partition_response(error_code(error), None))
    try:
        fetched = await broker.quorum.fetch(raft_fetch)
        code = int(leadership_error(raft_fetch.epoch, fetched.epoch, is_leader=fetched.is_leader))
    except MoldauError as error:
        code = error_code(error)
        fetched = QuorumFetchResponse(broker.quorum.epoch, broker.quorum.leader_id, is_leader=False)
    response = _response(_partition_response(code, fetched))
    response["node_endpoints"] = leader_endpoints(broker, fetched.leader_id)
    response["sent_ms"] = fetched.sent_ms
    return response


def _metadata_partition(request: FetchRequest) -> FetchRequestPartition:
    partitions = [each for topic in request.topics for each in topic.partitions]
    if len(request.topics) != 1 or len(partitions) != 1 or partitions[0].partition != METADATA_LOG.partition:
        raise InvalidRequestError(f"{METADATA_LOG} cannot be fetched together with other partitions")
    return partitions[0]


def _replica_id(request: FetchRequest, session: RequestContext, broker: Broker) -> int:
    replica_id, _ = replica_state(request, session)
    if replica_id < 0 or session.connection.listener != broker.settings.broker.inter_broker_listener:
        by_id = session.api_version >= _TOPIC_ID_VERSION
        kind = UnknownTopicIdError if by_id else UnknownTopicOrPartitionError
        raise kind(f"only nodes of the cluster can fetch {METADATA_LOG}")
    return replica_id


def _raft_fetch(request: FetchRequest, partition: FetchRequestPartition, replica_id: int) -> QuorumFetchRequest:
    check_directory_id(replica_id, partition.replica_directory_id)
    log_end = EpochEndOffset(partition.last_fetched_epoch, partition.fetch_offset)
    bytes_max = min(request.max_bytes, partition.partition_max_bytes, RESPONSE_BYTES_MAX)
    if log_end.offset < 0 or log_end.epoch < NO_EPOCH or request.max_wait < 0 or bytes_max < 0:
        raise InvalidRequestError(
            f"node {replica_id} cannot fetch {bytes_max} bytes at offset {log_end.offset} after epoch {log_end.epoch}"
        )
    return QuorumFetchRequest(
        replica=ReplicaKey(replica_id, partition.replica_directory_id),
        epoch=partition.current_leader_epoch,
        log_end=log_end,
        high_watermark=partition.high_watermark,
        max_wait_ms=request.max_wait,
        bytes_max=bytes_max,
        leader_sent_ms=request.heard_ms,
    )


def _error_response(request: FetchRequest, version: int, code: int) -> FetchResponse:
    if version >= _TOP_LEVEL_ERROR_VERSION:
        return {"error_code": code}
    return {
        "responses": [
            {
                "topic": topic.topic,
                "topic_id": None,
                "partitions": [_partition_response(code, None, index=each.partition) for each in topic.partitions],
            }
            for topic in request.topics
        ]
    }


def _response(partition: FetchResponsePartitionData) -> FetchResponse:
    return {"responses": [{"topic": METADATA_LOG.topic, "topic_id": METADATA_TOPIC_ID, "partitions": [partition]}]}


def _partition_response(
    code: int, fetched: QuorumFetchResponse | None, *, index: int = METADATA_LOG.partition
) -> FetchResponsePartitionData:
    """Builds the response for the partition. If `code` is an error, only the leader and epoch in `fetched` are used."""
    response: FetchResponsePartitionData = {
        "partition_index": index,
        "error_code": code,
        "high_watermark": -1,
        "aborted_transactions": None,
        "records": b"",
    }
    if fetched is None:
        return response
    response["current_leader"] = {"leader_id": fetched.leader_id, "leader_epoch": fetched.epoch}
    if code == ErrorCode.none:
        response["high_watermark"] = fetched.high_watermark
        response["log_start_offset"] = fetched.log_start_offset
        response["records"] = fetched.records
        if (diverging := fetched.diverging_epoch) is not None:
            response["diverging_epoch"] = {"epoch": diverging.epoch, "end_offset": diverging.offset}
        if (snapshot := fetched.snapshot) is not None:
            response["snapshot_id"] = {"end_offset": snapshot.end_offset, "epoch": snapshot.epoch}
    return response
