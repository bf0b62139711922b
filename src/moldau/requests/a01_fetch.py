"""Fetch: stored batches as they are, from an offset on, up to the high watermark.

Answered when there are min_bytes, when a partition has an error, or after max_wait. At most max_bytes and
per partition partition_max_bytes, save that the first batch comes whole. Consumers with a fetch session get
only what changed. Records are not copied: the answer refers to where they lie, and the connection sends
them from there.

Versions: 7 brought sessions, 9 leader epochs, 10 zstd, 12 the flexible encoding and diverging epochs, 13
topic ids in place of names, 15 moved the replica id into a tagged field.
"""

from collections.abc import Iterable
from typing import Any
from uuid import UUID

from moldau.errors import MoldauError
from moldau.logs.store import NOTHING
from moldau.partitions.partition import Fetched
from moldau.requests.broker import Broker
from moldau.requests.errors import ErrorCode, error_code
from moldau.requests.fetch_sessions import (
    BEGIN_EPOCH,
    END_EPOCH,
    NO_SESSION,
    FetchSession,
    FetchSessionNotFoundError,
    FetchSessionTopicIdError,
    InvalidFetchSessionEpochError,
    PartitionKey,
    Wanted,
)
from moldau.requests.fetch_wait import Diverged, Fetch, Result
from moldau.requests.registry import handles
from moldau.requests.session import Session
from moldau.wire.api_keys import ApiKey

READ_COMMITTED = 1
TOPIC_ID_VERSION = 13


@handles(ApiKey.FETCH, versions=(4, 18))
async def fetch(request: Any, session: Session, broker: Broker) -> Any:
    try:
        fetch_session, wanted, is_incremental = _resolve(request, session, broker)
    except FetchSessionNotFoundError:
        return _refusal(ErrorCode.fetch_session_id_not_found)
    except InvalidFetchSessionEpochError:
        return _refusal(ErrorCode.invalid_fetch_session_epoch)
    except FetchSessionTopicIdError:
        return _refusal(ErrorCode.fetch_session_topic_id_error)
    under_way = Fetch(
        broker,
        wanted,
        bytes_max=min(request.max_bytes, broker.settings.broker.fetch_max_bytes),
        committed_only=request.isolation_level == READ_COMMITTED,
        replica_id=_replica_id(request),
        version=session.api_version,
    )
    await under_way.run(request.min_bytes, request.max_wait, session.connection.closed)
    results = zip(wanted, under_way.results, strict=True)
    if fetch_session is not None:
        results = _remember(fetch_session, results, is_incremental)  # type: ignore[assignment]
    return {
        "throttle_time": 0,
        "error_code": 0,
        "session_id": NO_SESSION if fetch_session is None else fetch_session.session_id,
        "responses": _by_topic(results, request.isolation_level == READ_COMMITTED),
    }


def _replica_id(request: Any) -> int:
    """The broker that says it asks as a follower; negative for consumers."""
    state = request.get("replica_state")
    replica_id: int = request.get("replica_id", -1) if state is None else state.replica_id
    return replica_id


def _refusal(code: ErrorCode) -> dict[str, Any]:
    return {"throttle_time": 0, "error_code": int(code), "session_id": NO_SESSION, "responses": []}


# Sessions


def _resolve(
    request: Any, session: Session, broker: Broker
) -> tuple[FetchSession | None, list[Wanted], bool]:
    """The session (if any), all partitions to read, and whether only changes are to be told."""
    sessions = broker.fetch_sessions
    session_id, epoch = request.get("session_id", NO_SESSION), request.get("session_epoch", END_EPOCH)
    now_ms = broker.world.clock.monotonic_ms()
    named = list(_named(request, broker))
    if epoch == END_EPOCH:
        sessions.end(session_id)
        return None, named, False
    by_id = session.api_version >= TOPIC_ID_VERSION
    if epoch == BEGIN_EPOCH:
        begun = sessions.begin(session.connection, named, session_id, now_ms, uses_topic_ids=by_id)
        return begun, named, False
    forgotten = _forgotten(request)
    fetch_session = sessions.resume(session_id, epoch, named, forgotten, now_ms, uses_topic_ids=by_id)
    return fetch_session, [_found_again(each, broker) for each in fetch_session.wanted.values()], True


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
            )


def _found_again(wanted: Wanted, broker: Broker) -> Wanted:
    """A topic id may have got its topic, or lost it, since the session was told of it."""
    if wanted.topic_id is None:
        return wanted
    return wanted._replace(topic=broker.metadata.image.topic_names.get(wanted.topic_id))


def _forgotten(request: Any) -> Iterable[PartitionKey]:
    for topic in request.get("forgotten_topics_data", ()):
        for index in topic.partitions:
            yield (topic.get("topic_id") or topic.get("topic") or "", index)


def _remember(
    fetch_session: FetchSession, results: Iterable[tuple[Wanted, Result]], only_changes: bool
) -> list[tuple[Wanted, Result]]:
    shown = []
    for wanted, result in results:
        key = wanted.key
        if isinstance(result, MoldauError):
            told: Any = None
            news = True
        else:
            told = (result.high_watermark, result.last_stable_offset, result.start_offset)
            news = result.records.size > 0 or fetch_session.told.get(key) != told
            if result.records.size > 0 and key in fetch_session.wanted:
                fetch_session.wanted[key] = fetch_session.wanted.pop(key)
        fetch_session.told[key] = told
        if news or not only_changes:
            shown.append((wanted, result))
    return shown


# The answer


def _by_topic(results: Iterable[tuple[Wanted, Result]], committed_only: bool) -> list[dict[str, Any]]:
    topics: dict[UUID | str | None, dict[str, Any]] = {}
    for wanted, result in results:
        key = wanted.topic_id or wanted.topic
        if key not in topics:
            topics[key] = {"topic": wanted.topic, "topic_id": wanted.topic_id, "partitions": []}
        topics[key]["partitions"].append(_partition(wanted.partition, result, committed_only))
    return list(topics.values())


def _partition(index: int, result: Result, committed_only: bool) -> dict[str, Any]:
    if isinstance(result, Fetched):
        return {
            "partition_index": index,
            "error_code": 0,
            "high_watermark": result.high_watermark,
            "last_stable_offset": result.last_stable_offset,
            "log_start_offset": result.start_offset,
            "aborted_transactions": [] if committed_only else None,
            "preferred_read_replica": -1,
            "records": result.records,
        }
    return {
        "partition_index": index,
        "error_code": 0 if isinstance(result, Diverged) else error_code(result),
        "high_watermark": -1,
        "last_stable_offset": -1,
        "log_start_offset": -1,
        "aborted_transactions": None,
        "preferred_read_replica": -1,
        "diverging_epoch": {"epoch": result.epoch, "end_offset": result.end_offset}
        if isinstance(result, Diverged)
        else None,
        "records": NOTHING,
    }
