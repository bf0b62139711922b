"""Fetch: returns stored batches, starting at an offset.

Consumers get records up to the high watermark (with read_committed up to the last stable offset, with a list of the
aborted transactions), and followers up to the log end offset. The response is sent when min_bytes are available, when a
partition has an error, or after max_wait. A response has at most max_bytes, and at most partition_max_bytes per
partition, but its first batch is always complete. With a fetch session, the response contains only partitions that
changed. Records are not copied: the connection sends them directly from the segment files. Fetches of the metadata log
are handled by `metadata_fetch.py`.

Versions: 7 added sessions, 9 leader epochs, 10 zstd, 11 racks and fetching from followers, 12 the flexible encoding
and diverging epochs, 13 topic ids instead of names, 15 the broker epoch of followers, 16 the current leader and its
address.
"""

from collections.abc import Iterable
from functools import partial
from uuid import UUID

from moldau.error_codes import error_code
from moldau.errors import (
    FencedLeaderEpochError,
    MoldauError,
    NotLeaderOrFollowerError,
    OffsetOutOfRangeError,
    StorageError,
    UnknownLeaderEpochError,
    UnknownTopicOrPartitionError,
)
from moldau.lag.isolation_levels import ClientIdentity
from moldau.logs.store import EMPTY_SLICES
from moldau.partitions.partition import DivergingEpochError, LogReadInfo, OutOfLogRangeError, Partition
from moldau.server.api import Broker, RequestContext, handles
from moldau.server.delayed_fetch import DelayedFetch, FetchParams, FetchResult
from moldau.server.fetch_session import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    INVALID_SESSION_ID,
    NO_REPLICA,
    FetchPartition,
    FetchSession,
    LastSentOffsets,
)
from moldau.server.metadata_fetch import fetch_metadata, is_metadata_fetch, replica_state
from moldau.server.partition_lookup import current_leader, node_endpoints, topic_name
from moldau.server.partition_watcher import PartitionKey, PartitionWatcher
from moldau.wire.messages import (
    FetchRequest,
    FetchResponse,
    FetchResponseFetchableTopic,
    FetchResponseLeaderIdAndEpoch,
    FetchResponsePartitionData,
)

READ_COMMITTED = 1
ERRORS_NOT_COUNTED = (
    NotLeaderOrFollowerError,
    FencedLeaderEpochError,
    UnknownLeaderEpochError,
    OffsetOutOfRangeError,
    UnknownTopicOrPartitionError,
    StorageError,
)
"""Errors that are no failed requests in the metrics, as in Kafka: clients cause them, or expect them."""
TOPIC_ID_VERSION = 13
CURRENT_LEADER_VERSION = 16
"""The first version in which errors about the leader name the current leader, as in Kafka."""


@handles(versions=(4, 18))
async def fetch(request: FetchRequest, session: RequestContext, broker: Broker) -> FetchResponse:
    if is_metadata_fetch(request):
        return await fetch_metadata(request, session, broker)
    listener = session.connection.listener
    params = FetchParams(session.api_version, listener, request.rack_id, *replica_state(request, session))
    try:
        fetch_session, requested = _resolve_session(request, session, broker, params)
    except MoldauError as error:
        return {"error_code": error_code(error)}
    if session.connection.isolation_level != request.isolation_level and not params.is_replica:
        _note_isolation_level(request.isolation_level, session, broker)
    watcher = PartitionWatcher() if fetch_session is None else fetch_session.watcher
    is_read_committed = request.isolation_level == READ_COMMITTED
    bytes_max = request.max_bytes
    delayed = DelayedFetch(
        broker,
        requested if fetch_session is None else fetch_session.partitions,
        params,
        watcher,
        None if fetch_session is None else fetch_session.last_sent,
        bytes_max=bytes_max if params.is_replica else min(bytes_max, broker.settings.broker.fetch_max_bytes),
        committed_only=is_read_committed,
    )
    keys = list(requested) if fetch_session is None else _partitions_to_read(fetch_session, params, broker)
    try:
        await delayed.run(keys, request.min_bytes, request.max_wait, session.connection.close_callbacks)
    finally:
        if fetch_session is None:
            watcher.close()
    results = [(delayed.read_partitions[key], result) for key, result in delayed.results.items()]
    if fetch_session is not None:
        is_incremental = request.session_epoch != INITIAL_EPOCH
        results = _update_session(fetch_session, results, only_changes=is_incremental)
    leaders: list[FetchResponseLeaderIdAndEpoch | None] = []
    topics: list[FetchResponseFetchableTopic] = []
    responses: dict[UUID | str | None, list[FetchResponsePartitionData]] = {}
    for partition, result in results:
        topic = partition.topic_id or partition.topic
        if topic not in responses:
            responses[topic] = []
            topics.append({"topic": partition.topic, "topic_id": partition.topic_id, "partitions": responses[topic]})
        if isinstance(result, LogReadInfo):
            response = _records_response(partition, result)
        else:
            response = _error_response(partition, result, broker, session.api_version)
            leaders.append(response.get("current_leader"))
        responses[topic].append(response)
        _count(broker, partition, result, params)
    endpoints = node_endpoints(broker, listener, leaders)
    if endpoints and not params.is_replica:
        # The response names new leaders. If this broker is shutting down, they may not know yet that they lead.
        await broker.lifecycle.wait_for_handover()
    return {
        "session_id": INVALID_SESSION_ID if fetch_session is None else fetch_session.session_id,
        "responses": topics,
        "node_endpoints": endpoints,
    }


def _count(broker: Broker, partition: FetchPartition, result: FetchResult, params: FetchParams) -> None:
    topic = partition.topic
    if isinstance(result, LogReadInfo):
        assert topic is not None
        metrics = broker.topic_metrics.of(topic)
        if params.is_replica:
            metrics.replicationbytesout += result.records.size
        else:
            metrics.totalfetchrequests += 1
            metrics.bytesout += result.records.size
    elif topic is not None and not params.is_replica and topic in broker.metadata.image.topics:
        metrics = broker.topic_metrics.of(topic)
        metrics.totalfetchrequests += 1
        metrics.failedfetchrequests += not isinstance(result, ERRORS_NOT_COUNTED)


# Sessions


def _note_isolation_level(level: int, session: RequestContext, broker: Broker) -> None:
    connection = session.connection
    is_first = connection.isolation_level is None
    connection.isolation_level = level
    client = ClientIdentity(session.client_id or "", session.client_host)
    broker.isolation_levels.note(connection.number, client, is_read_committed=level == READ_COMMITTED)
    if is_first:
        # If the connection was closed while the request waited, this calls `forget` at once.
        connection.close_callbacks.add(partial(broker.isolation_levels.forget, connection.number))


def _resolve_session(
    request: FetchRequest, session: RequestContext, broker: Broker, params: FetchParams
) -> tuple[FetchSession | None, dict[PartitionKey, FetchPartition]]:
    """Returns the fetch session, if any, and the partitions in the request."""
    sessions = broker.fetch_session_cache
    session_id, epoch = request.session_id, request.session_epoch
    now_ms = broker.platform.clock.monotonic_ms()
    requested: dict[PartitionKey, FetchPartition] = {}
    for topic in request.topics:
        name = topic_name(broker, topic.topic, topic.topic_id)
        for each in topic.partitions:
            partition = FetchPartition(
                topic=name,
                topic_id=topic.topic_id,
                partition=each.partition,
                offset=each.fetch_offset,
                bytes_max=each.partition_max_bytes,
                current_leader_epoch=each.current_leader_epoch,
                last_fetched_epoch=each.last_fetched_epoch,
                log_start_offset=each.log_start_offset,
            )
            requested[partition.key] = partition
    if epoch == FINAL_EPOCH:
        sessions.remove(session_id)
        return None, requested
    by_id = session.api_version >= TOPIC_ID_VERSION
    if epoch == INITIAL_EPOCH:
        created = sessions.create(
            session.connection,
            requested,
            session_id,
            now_ms,
            uses_topic_ids=by_id,
            replica_id=params.replica_id if _is_cluster_replica(params, broker) else NO_REPLICA,
        )
        return created, requested
    forgotten = [
        (topic.topic_id or topic.topic or "", index)
        for topic in request.forgotten_topics_data or ()
        for index in topic.partitions
    ]
    continued = sessions.continue_session(session_id, epoch, requested, forgotten, now_ms, uses_topic_ids=by_id)
    return continued, requested


def _is_cluster_replica(params: FetchParams, broker: Broker) -> bool:
    """Returns whether the fetch is from a broker of the cluster, and not from a client with an invented replica id."""
    is_inside = params.listener == broker.settings.broker.inter_broker_listener
    return params.is_replica and is_inside and params.replica_id in broker.metadata.image.brokers


def _partitions_to_read(fetch_session: FetchSession, params: FetchParams, broker: Broker) -> list[PartitionKey]:
    """Returns the partitions that changed. At regular intervals, also returns unchanged partitions.

    Unchanged partitions of an in-sync follower are never returned. Instead, the time of the fetch is recorded at these
    intervals, so that the follower stays in the ISR.
    """
    watcher = fetch_session.watcher
    keys = list(watcher.changed)
    now_ms = broker.platform.clock.monotonic_ms()
    if now_ms - fetch_session.last_full_scan_ms >= broker.settings.broker.replica_lag_time_max_ms // 4:
        fetch_session.last_full_scan_ms = now_ms
        keys += [
            key
            for key in fetch_session.partitions
            if key not in watcher.changed and not _is_idle_follower(watcher.partition(key), params)
        ]
    return keys


def _is_idle_follower(partition: Partition | None, params: FetchParams) -> bool:
    """Returns whether an in-sync follower fetches this unchanged partition. If so, records the time of the fetch."""
    if partition is None or not params.is_replica:
        return False
    return partition.leader.on_repeated_fetch(params.replica_id, params.broker_epoch)


def _update_session(
    fetch_session: FetchSession, results: Iterable[tuple[FetchPartition, FetchResult]], *, only_changes: bool
) -> list[tuple[FetchPartition, FetchResult]]:
    """Stores the offsets in `results` as the last sent offsets. Returns the results to send: all results, or with
    `only_changes` only those that changed."""
    included = []
    for partition, result in results:
        key = partition.key
        if isinstance(result, MoldauError):
            fetch_session.last_sent.pop(key, None)
            is_changed = True
        else:
            offsets = LastSentOffsets(result.high_watermark, result.last_stable_offset, result.start_offset)
            has_new_offsets = fetch_session.last_sent.get(key) != offsets
            is_changed = result.records.size > 0 or result.preferred_read_replica >= 0 or has_new_offsets
            fetch_session.last_sent[key] = offsets
        if is_changed or not only_changes:
            included.append((partition, result))
    return included


# Response


def _records_response(partition: FetchPartition, result: LogReadInfo) -> FetchResponsePartitionData:
    aborted = result.aborted_transactions
    return {
        "partition_index": partition.partition,
        "high_watermark": result.high_watermark,
        "last_stable_offset": result.last_stable_offset,
        "log_start_offset": result.start_offset,
        "aborted_transactions": None
        if aborted is None
        else [{"producer_id": each.producer_id, "first_offset": each.first_offset} for each in aborted],
        "preferred_read_replica": result.preferred_read_replica,
        "records": result.records,
    }


def _error_response(
    partition: FetchPartition, error: MoldauError, broker: Broker, version: int
) -> FetchResponsePartitionData:
    response: FetchResponsePartitionData = {
        "partition_index": partition.partition,
        "high_watermark": -1,
        "aborted_transactions": None,
        "records": EMPTY_SLICES,
    }
    if isinstance(error, DivergingEpochError):
        response["diverging_epoch"] = {"epoch": error.epoch, "end_offset": error.end_offset}
        return response
    response["error_code"] = error_code(error)
    if version >= CURRENT_LEADER_VERSION:
        response["current_leader"] = current_leader(broker, partition.topic, partition.partition, error)
    if isinstance(error, OutOfLogRangeError):
        response["log_start_offset"] = error.start_offset
    return response
