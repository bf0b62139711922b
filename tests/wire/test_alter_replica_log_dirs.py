"""AlterReplicaLogDirs on a broker with one log directory."""

from typing import Any

import pytest

from support.topics import Topics
from support.wire import WireClient

ALTER_REPLICA_LOG_DIRS, DESCRIBE_LOG_DIRS = 34, 35
NONE, UNKNOWN_TOPIC_OR_PARTITION, LOG_DIR_NOT_FOUND = 0, 3, 57
VERSIONS = pytest.mark.parametrize("version", [1, 2])

Directory = tuple[str, dict[str, list[int]]]
"""A path, and the partitions to move there by topic."""


@pytest.fixture
def log_dir(client: WireClient) -> str:
    (result,) = client.request(DESCRIBE_LOG_DIRS, 4, {"topics": None})["results"]
    path: str = result["log_dir"]
    return path


def alter(client: WireClient, version: int, *directories: Directory) -> dict[tuple[str, int], int]:
    """Returns the error code of each partition."""
    dirs: list[dict[str, Any]] = [
        {"path": path, "topics": [{"name": name, "partitions": indexes} for name, indexes in topics.items()]}
        for path, topics in directories
    ]
    response = client.request(ALTER_REPLICA_LOG_DIRS, version, {"dirs": dirs})
    codes = [
        ((topic["topic_name"], each["partition_index"]), each["error_code"])
        for topic in response["results"]
        for each in topic["partitions"]
    ]
    assert len(dict(codes)) == len(codes), "each partition has one result"
    assert all(topic["partitions"] for topic in response["results"])
    return dict(codes)


@VERSIONS
def test_the_current_directory_succeeds(client: WireClient, topics: Topics, log_dir: str, version: int) -> None:
    topic = topics.create(partitions=2)
    assert alter(client, version, (log_dir, {topic: [0, 1]})) == {(topic, 0): NONE, (topic, 1): NONE}


@VERSIONS
@pytest.mark.parametrize("path", ["/no/such/directory", "relative", ""])
def test_another_path_is_not_found(client: WireClient, topics: Topics, version: int, path: str) -> None:
    topic = topics.create()
    assert alter(client, version, (path, {topic: [0]})) == {(topic, 0): LOG_DIR_NOT_FOUND}


def test_paths_are_compared_exactly(client: WireClient, topics: Topics, log_dir: str) -> None:
    topic = topics.create()
    assert alter(client, 2, (log_dir + "/", {topic: [0]})) == {(topic, 0): LOG_DIR_NOT_FOUND}


@VERSIONS
def test_unknown_partitions_are_reported_one_by_one(
    client: WireClient, topics: Topics, log_dir: str, version: int
) -> None:
    topic = topics.create()
    wanted = {topic: [0, 1, -1], "missing": [0], "no spaces!": [0], "": [0], "__cluster_metadata": [0]}
    codes = alter(client, version, (log_dir, wanted))
    assert codes.pop((topic, 0)) == NONE
    assert set(codes.values()) == {UNKNOWN_TOPIC_OR_PARTITION}
    assert len(codes) == 6


def test_the_path_is_checked_before_the_partition(client: WireClient) -> None:
    assert alter(client, 2, ("/no/such/directory", {"missing": [0]})) == {("missing", 0): LOG_DIR_NOT_FOUND}


def test_the_last_directory_of_a_partition_counts(client: WireClient, topics: Topics, log_dir: str) -> None:
    topic = topics.create()
    current: Directory = (log_dir, {topic: [0, 0]})
    other: Directory = ("/no/such/directory", {topic: [0]})
    assert alter(client, 2, current, other) == {(topic, 0): LOG_DIR_NOT_FOUND}
    assert alter(client, 2, other, current) == {(topic, 0): NONE}


def test_requests_without_partitions_have_no_results(client: WireClient, topics: Topics, log_dir: str) -> None:
    assert alter(client, 2) == {}
    assert alter(client, 2, (log_dir, {})) == {}
    assert alter(client, 2, (log_dir, {topics.create(): []})) == {}
