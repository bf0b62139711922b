"""The Fetch request of a follower, as the wire wants it. Pure."""

from typing import Any
from uuid import UUID

from moldau.replication.fetch_session import FetchRequestData


def build_fetch_request(
    plan: FetchRequestData,
    *,
    cluster_id: str,
    replica_id: int,
    broker_epoch: int,
    wait_ms: int,
    bytes_max: int,
    partition_bytes_max: int,
) -> dict[str, Any]:
    topics: dict[UUID, list[dict[str, int]]] = {}
    for (topic_id, index), position in plan.to_send.items():
        topics.setdefault(topic_id, []).append(
            {
                "partition": index,
                "current_leader_epoch": position.leader_epoch,
                "fetch_offset": position.offset,
                "last_fetched_epoch": position.last_epoch,
                "log_start_offset": position.start_offset,
                "partition_max_bytes": partition_bytes_max,
            }
        )
    forgotten: dict[UUID, list[int]] = {}
    for topic_id, index in plan.to_forget:
        forgotten.setdefault(topic_id, []).append(index)
    return {
        "cluster_id": cluster_id or None,
        "replica_state": {"replica_id": replica_id, "replica_epoch": broker_epoch},
        "max_wait": wait_ms,
        "min_bytes": 1,
        "max_bytes": bytes_max,
        "isolation_level": 0,
        "session_id": plan.session_id,
        "session_epoch": plan.session_epoch,
        "topics": [{"topic_id": topic_id, "partitions": each} for topic_id, each in topics.items()],
        "forgotten_topics_data": [
            {"topic_id": topic_id, "partitions": each} for topic_id, each in forgotten.items()
        ],
        "rack_id": "",
    }
