"""Fetch: stored batches as they are, from an offset on; for consumers up to the high watermark, for followers all.

Answered when there are min_bytes, when a partition has an error, or after max_wait. At most max_bytes and
per partition partition_max_bytes, save that the first batch comes whole. Consumers with a fetch session get
only what changed. Records are not copied: the answer refers to where they lie, and the connection sends
them from there. Fetches of the metadata log are the quorum's (`metadata_fetch.py`).

Versions: 7 brought sessions, 9 leader epochs, 10 zstd, 11 racks and reading from followers, 12 the flexible
encoding, diverging epochs and the leader to go to, 13 topic ids in place of names, 15 the broker epoch of
followers, 16 the leader's address.
"""

from collections.abc import Iterable
from typing import Any
from uuid import UUID

from moldau.errors import MoldauError
from moldau.logs.store import EMPTY_SLICES
from moldau.partitions.partition import DivergingEpochError, LogReadInfo, OutOfLogRangeError, Partition
from moldau.server.broker import Broker
from moldau.server.current_leader import current_leader, node_endpoints
from moldau.server.delayed_fetch import DelayedFetch, FetchParams, FetchResult
from moldau.server.errors import ErrorCode, error_code
from moldau.server.fetch_session import (
    FINAL_EPOCH,
    INITIAL_EPOCH,
    INVALID_SESSION_ID,
    NO_REPLICA,
    FetchPartition,
    FetchSession,
    FetchSessionNotFoundError,
    FetchSessionTopicIdError,
    InvalidFetchSessionEpochError,
    LastSentOffsets,
)
from moldau.server.metadata_fetch import fetch_metadata, is_metadata_fetch
from moldau.server.partition_watcher import PartitionKey, PartitionWatcher
from moldau.server.registry import handles
from moldau.server.session import Session
from moldau.wire.api_keys import ApiKey

READ_COMMITTED = 1
TOPIC_ID_VERSION = 13


@handles(ApiKey.FETCH, versions=(4, 18))
async def fetch(request: Any, session: Session, broker: Broker) -> Any:
    if is_metadata_fetch(request):
        return await fetch_metadata(request, session, broker)
    params = _fetch_params(request, session)
    try:
        fetch_session, requested = _resolve_session(request, session, broker, params)
    except FetchSessionNotFoundError:
        return _error_response(ErrorCode.fetch_session_id_not_found)
    except InvalidFetchSessionEpochError:
        return _error_response(ErrorCode.invalid_fetch_session_epoch)
    except FetchSessionTopicIdError:
        return _error_response(ErrorCode.fetch_session_topic_id_error)
    watcher = PartitionWatcher() if fetch_session is None else fetch_session.watcher
    delayed = DelayedFetch(
        broker,
        requested if fetch_session is None else fetch_session.wanted,
        params,
        watcher,
        None if fetch_session is None else fetch_session.last_sent,
        bytes_max=_response_bytes_max(request, params, broker),
        committed_only=request.isolation_level == READ_COMMITTED,
    )
    keys = list(requested) if fetch_session is None else _partitions_to_read(fetch_session, params, broker)
    try:
        await delayed.run(keys, request.min_bytes, request.max_wait, session.connection.closed)
    finally:
        if fetch_session is None:
            watcher.close()
    results = [(delayed.read_partitions[key], result) for key, result in delayed.results.items()]
    if fetch_session is not None:
        is_incremental = request.session_epoch != INITIAL_EPOCH
        results = _update_session(fetch_session, results, only_changes=is_incremental)
    builder = _ResponseBuilder(broker, committed_only=request.isolation_level == READ_COMMITTED)
    return {
        "throttle_time": 0,
        "error_code": 0,
        "session_id": INVALID_SESSION_ID if fetch_session is None else fetch_session.session_id,
        "responses": builder.topic_responses(results),
        "node_endpoints": node_endpoints(broker, session.connection.listener, builder.current_leaders),
    }


def _fetch_params(request: Any, session: Session) -> FetchParams:
    state = request.get("replica_state")
    return FetchParams(
        version=session.api_version,
        listener=session.connection.listener,
        rack=request.get("rack_id", ""),
        replica_id=request.get("replica_id", -1) if state is None else state.replica_id,
        broker_epoch=-1 if state is None else state.replica_epoch,
    )


def _response_bytes_max(request: Any, params: FetchParams, broker: Broker) -> int:
    """The broker's limit is for consumers; followers keep their own."""
    bytes_max: int = request.max_bytes
    return bytes_max if params.is_replica else min(bytes_max, broker.settings.broker.fetch_max_bytes)


def _error_response(code: ErrorCode) -> dict[str, Any]:
    return {"throttle_time": 0, "error_code": int(code), "session_id": INVALID_SESSION_ID, "responses": []}


# Sessions


def _resolve_session(
    request: Any, session: Session, broker: Broker, params: FetchParams
) -> tuple[FetchSession | None, dict[PartitionKey, FetchPartition]]:
    """The session, if there is one, and the partitions that the request names."""
    sessions = broker.fetch_session_cache
    session_id, epoch = (
        request.get("session_id", INVALID_SESSION_ID),
        request.get("session_epoch", FINAL_EPOCH),
    )
    now_ms = broker.platform.clock.monotonic_ms()
    requested = {each.key: each for each in _requested_partitions(request, broker)}
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
    forgotten = _forgotten_partitions(request)
    return sessions.continue_session(
        session_id, epoch, requested, forgotten, now_ms, uses_topic_ids=by_id
    ), requested


def _is_cluster_replica(params: FetchParams, broker: Broker) -> bool:
    """Whether it is a follower, as far as can be told, and not a client that only says so."""
    is_inside = params.listener == broker.settings.broker.inter_broker_listener
    return params.is_replica and is_inside and params.replica_id in broker.metadata.image.brokers


def _partitions_to_read(
    fetch_session: FetchSession, params: FetchParams, broker: Broker
) -> list[PartitionKey]:
    """What has news; and from time to time all, for followers show that they are alive by what they fetch. For those in
    sync that is noted and nothing is read."""
    watcher = fetch_session.watcher
    keys = list(watcher.changed)
    now_ms = broker.platform.clock.monotonic_ms()
    if now_ms - fetch_session.last_full_scan_ms >= broker.settings.broker.replica_lag_time_max_ms // 4:
        fetch_session.last_full_scan_ms = now_ms
        keys += [
            key
            for key in fetch_session.wanted
            if key not in watcher.changed and not _is_idle_follower(watcher.partition(key), params)
        ]
    return keys


def _is_idle_follower(partition: Partition | None, params: FetchParams) -> bool:
    """Whether the asker is a follower in sync; where there is no news, it has all there is."""
    if partition is None or not params.is_replica:
        return False
    return partition.leader.on_repeated_fetch(params.replica_id, params.broker_epoch)


def _requested_partitions(request: Any, broker: Broker) -> Iterable[FetchPartition]:
    names = broker.metadata.image.topic_names
    for topic in request.topics:
        topic_id: UUID | None = topic.get("topic_id")
        name = topic.get("topic") if topic_id is None else names.get(topic_id)
        for each in topic.partitions:
            yield FetchPartition(
                topic=name,
                topic_id=topic_id,
                partition=each.partition,
                offset=each.fetch_offset,
                bytes_max=each.partition_max_bytes,
                current_leader_epoch=each.get("current_leader_epoch", -1),
                last_fetched_epoch=each.get("last_fetched_epoch", -1),
                start_offset=each.get("log_start_offset", -1),
            )


def _forgotten_partitions(request: Any) -> Iterable[PartitionKey]:
    for topic in request.get("forgotten_topics_data", ()):
        for index in topic.partitions:
            yield (topic.get("topic_id") or topic.get("topic") or "", index)


def _update_session(
    fetch_session: FetchSession, results: Iterable[tuple[FetchPartition, FetchResult]], *, only_changes: bool
) -> list[tuple[FetchPartition, FetchResult]]:
    shown = []
    for wanted, result in results:
        key = wanted.key
        if isinstance(result, MoldauError):
            fetch_session.last_sent.pop(key, None)
            changed = True
        else:
            last_sent = LastSentOffsets(result.high_watermark, result.last_stable_offset, result.start_offset)
            is_other = fetch_session.last_sent.get(key) != last_sent
            changed = result.records.size > 0 or result.preferred_read_replica >= 0 or is_other
            fetch_session.last_sent[key] = last_sent
        if changed or not only_changes:
            shown.append((wanted, result))
    return shown


# The answer


class _ResponseBuilder:
    def __init__(self, broker: Broker, *, committed_only: bool) -> None:
        self._broker = broker
        self._committed_only = committed_only
        self.current_leaders: list[dict[str, int] | None] = []
        """Those that callers are sent to."""

    def topic_responses(self, results: Iterable[tuple[FetchPartition, FetchResult]]) -> list[dict[str, Any]]:
        topics: dict[UUID | str | None, dict[str, Any]] = {}
        for wanted, result in results:
            key = wanted.topic_id or wanted.topic
            if key not in topics:
                topics[key] = {"topic": wanted.topic, "topic_id": wanted.topic_id, "partitions": []}
            topics[key]["partitions"].append(self._partition_response(wanted, result))
        return list(topics.values())

    def _partition_response(self, wanted: FetchPartition, result: FetchResult) -> dict[str, Any]:
        if isinstance(result, LogReadInfo):
            return {
                "partition_index": wanted.partition,
                "error_code": 0,
                "high_watermark": result.high_watermark,
                "last_stable_offset": result.last_stable_offset,
                "log_start_offset": result.start_offset,
                "aborted_transactions": [] if self._committed_only else None,
                "preferred_read_replica": result.preferred_read_replica,
                "records": result.records,
            }
        diverging = leader = None
        if isinstance(result, DivergingEpochError):
            diverging = {"epoch": result.epoch, "end_offset": result.end_offset}
        else:
            leader = current_leader(self._broker, wanted.topic, wanted.partition, result)
            self.current_leaders.append(leader)
        return {
            "partition_index": wanted.partition,
            "error_code": 0 if diverging is not None else error_code(result),
            "high_watermark": -1,
            "last_stable_offset": -1,
            "log_start_offset": result.start_offset if isinstance(result, OutOfLogRangeError) else -1,
            "aborted_transactions": None,
            "preferred_read_replica": -1,
            "diverging_epoch": diverging,
            "current_leader": leader,
            "records": EMPTY_SLICES,
        }
