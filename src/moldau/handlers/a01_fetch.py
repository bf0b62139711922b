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
from moldau.logs.store import NOTHING
from moldau.partitions.partition import Diverged, Fetched, OutsideLogError, Partition
from moldau.server.broker import Broker
from moldau.server.delayed_fetch import Asker, Fetch, Result
from moldau.server.errors import ErrorCode, error_code
from moldau.server.fetch_sessions import (
    BEGIN_EPOCH,
    END_EPOCH,
    NO_REPLICA,
    NO_SESSION,
    FetchSession,
    FetchSessionNotFoundError,
    FetchSessionTopicIdError,
    InvalidFetchSessionEpochError,
    Told,
    Wanted,
)
from moldau.server.fetch_watch import PartitionKey, Watch
from moldau.server.leaders import current_leader, node_endpoints
from moldau.server.metadata_fetch import fetch_metadata, is_of_metadata
from moldau.server.registry import handles
from moldau.server.session import Session
from moldau.wire.api_keys import ApiKey

READ_COMMITTED = 1
TOPIC_ID_VERSION = 13


@handles(ApiKey.FETCH, versions=(4, 18))
async def fetch(request: Any, session: Session, broker: Broker) -> Any:
    if is_of_metadata(request):
        return await fetch_metadata(request, session, broker)
    asker = _asker(request, session)
    try:
        fetch_session, named = _resolve(request, session, broker, asker)
    except FetchSessionNotFoundError:
        return _refusal(ErrorCode.fetch_session_id_not_found)
    except InvalidFetchSessionEpochError:
        return _refusal(ErrorCode.invalid_fetch_session_epoch)
    except FetchSessionTopicIdError:
        return _refusal(ErrorCode.fetch_session_topic_id_error)
    watch = Watch() if fetch_session is None else fetch_session.watch
    under_way = Fetch(
        broker,
        named if fetch_session is None else fetch_session.wanted,
        asker,
        watch,
        None if fetch_session is None else fetch_session.told,
        bytes_max=_bytes_max(request, asker, broker),
        committed_only=request.isolation_level == READ_COMMITTED,
    )
    keys = list(named) if fetch_session is None else _worth_a_look(fetch_session, asker, broker)
    try:
        await under_way.run(keys, request.min_bytes, request.max_wait, session.connection.closed)
    finally:
        if fetch_session is None:
            watch.close()
    results = [(under_way.looked_at[key], result) for key, result in under_way.results.items()]
    if fetch_session is not None:
        is_incremental = request.session_epoch != BEGIN_EPOCH
        results = _remember(fetch_session, results, only_changes=is_incremental)
    answered = _Answer(broker, committed_only=request.isolation_level == READ_COMMITTED)
    return {
        "throttle_time": 0,
        "error_code": 0,
        "session_id": NO_SESSION if fetch_session is None else fetch_session.session_id,
        "responses": answered.by_topic(results),
        "node_endpoints": node_endpoints(broker, session.connection.listener, answered.leaders),
    }


def _asker(request: Any, session: Session) -> Asker:
    state = request.get("replica_state")
    return Asker(
        version=session.api_version,
        listener=session.connection.listener,
        rack=request.get("rack_id", ""),
        replica_id=request.get("replica_id", -1) if state is None else state.replica_id,
        broker_epoch=-1 if state is None else state.replica_epoch,
    )


def _bytes_max(request: Any, asker: Asker, broker: Broker) -> int:
    """The broker's limit is for consumers; followers keep their own."""
    bytes_max: int = request.max_bytes
    return bytes_max if asker.is_replica else min(bytes_max, broker.settings.broker.fetch_max_bytes)


def _refusal(code: ErrorCode) -> dict[str, Any]:
    return {"throttle_time": 0, "error_code": int(code), "session_id": NO_SESSION, "responses": []}


# Sessions


def _resolve(
    request: Any, session: Session, broker: Broker, asker: Asker
) -> tuple[FetchSession | None, dict[PartitionKey, Wanted]]:
    """The session, if there is one, and the partitions that the request names."""
    sessions = broker.fetch_sessions
    session_id, epoch = request.get("session_id", NO_SESSION), request.get("session_epoch", END_EPOCH)
    now_ms = broker.platform.clock.monotonic_ms()
    named = {each.key: each for each in _named(request, broker)}
    if epoch == END_EPOCH:
        sessions.end(session_id)
        return None, named
    by_id = session.api_version >= TOPIC_ID_VERSION
    if epoch == BEGIN_EPOCH:
        begun = sessions.begin(
            session.connection,
            named,
            session_id,
            now_ms,
            uses_topic_ids=by_id,
            replica_id=asker.replica_id if _is_of_cluster(asker, broker) else NO_REPLICA,
        )
        return begun, named
    forgotten = _forgotten(request)
    return sessions.resume(session_id, epoch, named, forgotten, now_ms, uses_topic_ids=by_id), named


def _is_of_cluster(asker: Asker, broker: Broker) -> bool:
    """Whether it is a follower, as far as can be told, and not a client that only says so."""
    is_inside = asker.listener == broker.settings.broker.inter_broker_listener
    return asker.is_replica and is_inside and asker.replica_id in broker.metadata.image.brokers


def _worth_a_look(fetch_session: FetchSession, asker: Asker, broker: Broker) -> list[PartitionKey]:
    """What has news; and from time to time all, for followers show that they are alive by what they fetch. For those in
    sync that is noted and nothing is read."""
    watch = fetch_session.watch
    keys = list(watch.news)
    now_ms = broker.platform.clock.monotonic_ms()
    if now_ms - fetch_session.looked_ms >= broker.settings.broker.replica_lag_time_max_ms // 4:
        fetch_session.looked_ms = now_ms
        keys += [
            key
            for key in fetch_session.wanted
            if key not in watch.news and not _still_follows(watch.partition(key), asker)
        ]
    return keys


def _still_follows(partition: Partition | None, asker: Asker) -> bool:
    """Whether the asker is a follower in sync; where there is no news, it has all there is."""
    if partition is None or not asker.is_replica:
        return False
    return partition.still_follows(asker.replica_id, asker.broker_epoch)


def _named(request: Any, broker: Broker) -> Iterable[Wanted]:
    names = broker.metadata.image.topic_names
    for topic in request.topics:
        topic_id: UUID | None = topic.get("topic_id")
        name = topic.get("topic") if topic_id is None else names.get(topic_id)
        for each in topic.partitions:
            yield Wanted(
                topic=name,
                topic_id=topic_id,
                partition=each.partition,
                offset=each.fetch_offset,
                bytes_max=each.partition_max_bytes,
                known_epoch=each.get("current_leader_epoch", -1),
                last_fetched_epoch=each.get("last_fetched_epoch", -1),
                start_offset=each.get("log_start_offset", -1),
            )


def _forgotten(request: Any) -> Iterable[PartitionKey]:
    for topic in request.get("forgotten_topics_data", ()):
        for index in topic.partitions:
            yield (topic.get("topic_id") or topic.get("topic") or "", index)


def _remember(
    fetch_session: FetchSession, results: Iterable[tuple[Wanted, Result]], *, only_changes: bool
) -> list[tuple[Wanted, Result]]:
    shown = []
    for wanted, result in results:
        key = wanted.key
        if isinstance(result, MoldauError):
            fetch_session.told.pop(key, None)
            news = True
        else:
            told = Told(result.high_watermark, result.last_stable_offset, result.start_offset)
            is_other = fetch_session.told.get(key) != told
            news = result.records.size > 0 or result.nearest_replica >= 0 or is_other
            fetch_session.told[key] = told
        if news or not only_changes:
            shown.append((wanted, result))
    return shown


# The answer


class _Answer:
    def __init__(self, broker: Broker, *, committed_only: bool) -> None:
        self._broker = broker
        self._committed_only = committed_only
        self.leaders: list[dict[str, int] | None] = []
        """Those that callers are sent to."""

    def by_topic(self, results: Iterable[tuple[Wanted, Result]]) -> list[dict[str, Any]]:
        topics: dict[UUID | str | None, dict[str, Any]] = {}
        for wanted, result in results:
            key = wanted.topic_id or wanted.topic
            if key not in topics:
                topics[key] = {"topic": wanted.topic, "topic_id": wanted.topic_id, "partitions": []}
            topics[key]["partitions"].append(self._partition(wanted, result))
        return list(topics.values())

    def _partition(self, wanted: Wanted, result: Result) -> dict[str, Any]:
        if isinstance(result, Fetched):
            return {
                "partition_index": wanted.partition,
                "error_code": 0,
                "high_watermark": result.high_watermark,
                "last_stable_offset": result.last_stable_offset,
                "log_start_offset": result.start_offset,
                "aborted_transactions": [] if self._committed_only else None,
                "preferred_read_replica": result.nearest_replica,
                "records": result.records,
            }
        diverging = leader = None
        if isinstance(result, Diverged):
            diverging = {"epoch": result.epoch, "end_offset": result.end_offset}
        else:
            leader = current_leader(self._broker, wanted.topic, wanted.partition, result)
            self.leaders.append(leader)
        return {
            "partition_index": wanted.partition,
            "error_code": 0 if diverging is not None else error_code(result),
            "high_watermark": -1,
            "last_stable_offset": -1,
            "log_start_offset": result.start_offset if isinstance(result, OutsideLogError) else -1,
            "aborted_transactions": None,
            "preferred_read_replica": -1,
            "diverging_epoch": diverging,
            "current_leader": leader,
            "records": NOTHING,
        }
