"""Requests as tuples for `WireClient.request`, several of them in one write, and values of their responses."""

import struct
from typing import Any

from support.wire import (
    CREATE_TOPICS,
    DELETE_RECORDS,
    DELETE_TOPICS,
    DESCRIBE_CONFIGS,
    FETCH,
    INCREMENTAL_ALTER_CONFIGS,
    LIST_OFFSETS,
    METADATA,
    PRODUCE,
    WireClient,
    batch,
    encode,
    fetch_tree,
    produce_tree,
)

OFFSET_COMMIT, OFFSET_FETCH, FIND_COORDINATOR, JOIN_GROUP, LEAVE_GROUP = 8, 9, 10, 11, 13
DESCRIBE_GROUPS, LIST_GROUPS, ALTER_CONFIGS, CREATE_PARTITIONS, DELETE_GROUPS, OFFSET_DELETE = 15, 16, 33, 37, 42, 47

SUBSCRIPTION = bytes.fromhex("000000000001000474657374ffffffff")
"""A consumer subscription of version 0 to the topic `test`."""
EARLIEST, LATEST = -2, -1
TOPIC_RESOURCE = 2

Tree = dict[str, Any]
Request = tuple[int, int, Tree]
"""The API key, the version and the body of a request."""


def write_at_once(client: WireClient, *requests: Request) -> None:
    data = b""
    for api_key, version, tree in requests:
        client.correlation_id += 1
        frame = encode(api_key, version, tree, client.correlation_id)
        data += struct.pack(">i", len(frame)) + frame
    client.send_raw(data)


def request_at_once(client: WireClient, *requests: Request) -> list[Tree]:
    """Sends the requests in one write and returns their responses."""
    write_at_once(client, *requests)
    return [client.receive(api_key, version)[1] for api_key, version, _ in requests]


def list_offset(topic: str, timestamp: int) -> Request:
    wanted = {"partition_index": 0, "timestamp": timestamp, "current_leader_epoch": -1}
    return LIST_OFFSETS, 7, {"replica_id": -1, "topics": [{"name": topic, "partitions": [wanted]}]}


def listed_offset(response: Tree) -> int:
    (partition,) = response["topics"][0]["partitions"]
    assert partition["error_code"] == 0
    offset: int = partition["offset"]
    return offset


def delete_records(topic: str, offset: int) -> Request:
    wanted = {"partition_index": 0, "offset": offset}
    return DELETE_RECORDS, 2, {"timeout": 10_000, "topics": [{"name": topic, "partitions": [wanted]}]}


def create_topic(name: str, replication_factor: int = 1) -> Request:
    topic = {
        "name": name,
        "num_partitions": 1,
        "replication_factor": replication_factor,
        "assignments": [],
        "configs": [],
    }
    return CREATE_TOPICS, 5, {"timeout": 10_000, "topics": [topic]}


def delete_topic(name: str) -> Request:
    return DELETE_TOPICS, 6, {"timeout": 10_000, "topics": [{"name": name, "topic_id": None}]}


def create_partitions(topic: str, count: int) -> Request:
    wanted = {"name": topic, "count": count, "assignments": None}
    return CREATE_PARTITIONS, 2, {"timeout": 10_000, "topics": [wanted]}


def metadata(topic: str) -> Request:
    return METADATA, 9, {"topics": [{"name": topic}], "allow_auto_topic_creation": False}


def partition_count(response: Tree) -> int:
    """Returns the number of partitions, 0 for an unknown topic."""
    (topic,) = response["topics"]
    return len(topic["partitions"]) if topic["error_code"] == 0 else 0


def alter_retention(topic: str, retention_ms: int, api_key: int = INCREMENTAL_ALTER_CONFIGS) -> Request:
    configs = [{"name": "retention.ms", "value": str(retention_ms), "config_operation": 0}]
    resource = {"resource_type": TOPIC_RESOURCE, "resource_name": topic, "configs": configs}
    return api_key, 1, {"resources": [resource], "validate_only": False}


def describe_retention(topic: str) -> Request:
    resource = {"resource_type": TOPIC_RESOURCE, "resource_name": topic, "configuration_keys": ["retention.ms"]}
    return DESCRIBE_CONFIGS, 4, {"resources": [resource]}


def described_retention(response: Tree) -> int:
    return int(response["results"][0]["configs"][0]["value"])


def produce_one(topic: str, acks: int = -1) -> Request:
    return PRODUCE, 9, produce_tree(topic, batch(), acks=acks)


def fetch_at(topic: str, offset: int, **more: Any) -> Request:
    return FETCH, 12, fetch_tree(topic, offset, **more)


def fetched_bytes(response: Tree) -> int:
    (partition,) = response["responses"][0]["partitions"]
    assert partition["error_code"] == 0
    return len(partition["records"] or b"")


def produce_error(response: Tree) -> int:
    (partition,) = response["responses"][0]["partition_responses"]
    code: int = partition["error_code"]
    return code


def commit_offset(group: str, topic: str, offset: int) -> Request:
    partition = {"partition_index": 0, "committed_offset": offset, "committed_leader_epoch": -1}
    tree = {"group_id": group, "generation_id_or_member_epoch": -1, "member_id": ""}
    return OFFSET_COMMIT, 8, {**tree, "topics": [{"name": topic, "partitions": [partition]}]}


def fetch_offset(group: str) -> Request:
    return OFFSET_FETCH, 8, {"groups": [{"group_id": group, "topics": None}]}


def committed_offset(response: Tree) -> int | None:
    (group,) = response["groups"]
    assert group["error_code"] == 0
    return group["topics"][0]["partitions"][0]["committed_offset"] if group["topics"] else None


def join_group(group: str, rebalance_timeout_ms: int = 10_000) -> Request:
    tree = {
        "group_id": group,
        "session_timeout": 10_000,
        "rebalance_timeout": rebalance_timeout_ms,
        "member_id": "",
        "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": SUBSCRIPTION}],
    }
    return JOIN_GROUP, 3, tree


def describe_group(group: str) -> Request:
    return DESCRIBE_GROUPS, 5, {"groups": [group]}
