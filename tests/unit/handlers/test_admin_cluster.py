"""DescribeCluster, DescribeLogDirs and DescribeTopicPartitions in every version."""

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest

from moldau.errors import StorageError
from moldau.logs.store import LogName
from moldau.metadata.image import BrokerRegistration, PartitionRegistration, TopicImage
from moldau.settings.broker import BrokerSettings
from moldau.wire.api_keys import ApiKey
from support.admin_broker import AdminBroker, broker_image, image_of, topic_id, versions_of

CLUSTER, LOG_DIRS = ApiKey.DESCRIBE_CLUSTER, ApiKey.DESCRIBE_LOG_DIRS
PARTITIONS = ApiKey.DESCRIBE_TOPIC_PARTITIONS

NOT_REQUESTED = -(2**31)
ALL_OF_A_CLUSTER = 8096
ALL_OF_A_TOPIC = 3576


def describe_cluster(broker: AdminBroker, version: int = 2, **more: Any) -> Any:
    request = {
        "include_cluster_authorized_operations": False,
        "endpoint_type": 1,
        "include_fenced_brokers": False,
        **more,
    }
    return broker.send(CLUSTER, version, **request)


def metadata(broker: AdminBroker, topics: list[dict[str, Any]] | None) -> Any:
    return broker.send(ApiKey.METADATA, 12, topics=topics, include_topic_authorized_operations=False)


@pytest.mark.parametrize("version", versions_of(CLUSTER))
def test_a_cluster_has_an_id_a_controller_and_live_brokers(version: int) -> None:
    others = [broker_image(2, fenced=True), broker_image(3), broker_image(4, listener="INTERNAL")]
    response = describe_cluster(AdminBroker(image_of({}, brokers=others)), version)
    assert (response.error_code, response.error_message) == (0, None)
    assert (response.cluster_id, response.controller_id) == ("the-cluster", 1)
    assert [(each.broker_id, each.host, each.port, each.rack) for each in response.brokers] == [
        (1, "host1", 9001, "rack1"),
        (3, "host3", 9003, "rack3"),
    ]
    assert response.cluster_authorized_operations == NOT_REQUESTED


def test_fenced_brokers_are_included_on_request() -> None:
    broker = AdminBroker(image_of({}, brokers=[broker_image(2, fenced=True)]))
    response = describe_cluster(broker, include_fenced_brokers=True)
    assert [(each.broker_id, each.is_fenced) for each in response.brokers] == [(1, False), (2, True)]


def test_authorized_operations_are_included_on_request() -> None:
    response = describe_cluster(AdminBroker(image_of({})), include_cluster_authorized_operations=True)
    assert response.cluster_authorized_operations == ALL_OF_A_CLUSTER


@pytest.mark.parametrize(
    ("own", "described"),
    [(broker_image(1), 1), (broker_image(1, fenced=True), 2), (broker_image(1, listener="OTHERS"), 2)],
)
def test_clients_send_changes_to_the_broker_that_responds_if_they_can_reach_it(
    own: BrokerRegistration, described: int
) -> None:
    image = dataclasses.replace(image_of({}, brokers=[own, broker_image(2), broker_image(3)]), controller_id=3)
    broker = AdminBroker(image)
    assert describe_cluster(broker).controller_id == described
    assert broker.send(ApiKey.METADATA, 7, topics=[]).controller_id == described


def test_a_broker_without_lease_does_not_advertise_itself_as_leader() -> None:
    broker = AdminBroker(image_of({"a": 1}, brokers=[broker_image(2)]))
    two = PartitionRegistration(1, (2,), (2,), 2, 0, 0)
    topic = dataclasses.replace(
        broker.metadata.image.topics["a"], partitions=(PartitionRegistration(0, (1,), (1,), 1, 4, 0), two)
    )
    broker.metadata.image = dataclasses.replace(broker.metadata.image, topics={"a": topic})

    def leaders() -> list[tuple[int, int]]:
        response = broker.send(ApiKey.METADATA, 7, topics=None)
        return [(each.leader_id, each.error_code) for each in response.topics[0].partitions]

    def described_leaders() -> list[int]:
        return [each.leader_id for each in describe_partitions(broker, ["a"]).topics[0].partitions]

    assert leaders() == [(1, 0), (2, 0)]
    assert described_leaders() == [1, 2]
    broker.lifecycle.lease.is_valid = lambda: False
    assert leaders() == [(-1, 5), (2, 0)]
    assert described_leaders() == [-1, 2]


def test_a_leader_whose_process_has_probably_ended_is_not_named() -> None:
    broker = AdminBroker(image_of({"a": 1, "b": 1}))
    broker.availability.suspected = {1}
    for topics in (None, [{"name": "a", "topic_id": None}], [{"name": None, "topic_id": topic_id(0)}]):
        (partition,) = metadata(broker, topics).topics[0].partitions
        assert (partition.leader_id, partition.leader_epoch, partition.error_code) == (-1, 3, 5)
        assert broker.availability.waited_for == {1}
    assert [each.leader_id for each in describe_partitions(broker, ["a"]).topics[0].partitions] == [-1]
    metadata(broker, [])
    assert broker.availability.waited_for == set()


def test_a_broker_that_was_just_fenced_is_listed_but_offline() -> None:
    broker = AdminBroker(image_of({"a": 1}, brokers=[broker_image(2, fenced=True), broker_image(3, fenced=True)]))
    moved = PartitionRegistration(0, (1, 2, 3), (1,), 1, 4, 0)
    topic = dataclasses.replace(broker.metadata.image.topics["a"], partitions=(moved,))
    broker.metadata.image = dataclasses.replace(broker.metadata.image, topics={"a": topic})
    broker.availability.recently_fenced = {2}
    response = metadata(broker, None)
    assert [each.node_id for each in response.brokers] == [1, 2]
    (partition,) = response.topics[0].partitions
    assert (partition.leader_id, partition.offline_replicas) == (1, [2, 3])
    assert [each.broker_id for each in describe_cluster(broker).brokers] == [1]


@pytest.mark.parametrize(("version", "code"), [(5, 5), (6, 72)])
def test_a_leader_without_the_clients_listener_has_listener_not_found(version: int, code: int) -> None:
    broker = AdminBroker(image_of({"a": 1}, brokers=[broker_image(1, listener="OTHERS"), broker_image(2)]))
    response = broker.send(ApiKey.METADATA, version, topics=None)
    (partition,) = response.topics[0].partitions
    assert (partition.leader_id, partition.error_code) == (-1, code)


def test_without_reachable_brokers_there_is_no_controller() -> None:
    image = dataclasses.replace(image_of({}, brokers=[broker_image(1, fenced=True)]), controller_id=1)
    assert describe_cluster(AdminBroker(image)).controller_id == -1


@pytest.mark.parametrize(("endpoint_type", "code"), [(2, 114), (0, 115), (3, 115)])
def test_the_controller_endpoint_type_is_rejected(endpoint_type: int, code: int) -> None:
    response = describe_cluster(AdminBroker(image_of({})), endpoint_type=endpoint_type)
    assert (response.error_code, response.brokers) == (code, [])
    assert response.error_message


@pytest.fixture
def keeper() -> AdminBroker:
    broker = AdminBroker(image_of({"a": 2, "b": 1}), BrokerSettings(data_dir="/kept/here"))
    broker.replica_manager.sizes = {LogName("b", 0): 30, LogName("a", 1): 20, LogName("a", 0): 10}
    return broker


def sizes(result: Any) -> dict[str, list[tuple[int, int]]]:
    assert all(
        (each.offset_lag, each.is_future_key) == (0, False) for topic in result.topics for each in topic.partitions
    )
    return {
        topic.name: [(each.partition_index, each.partition_size) for each in topic.partitions]
        for topic in result.topics
    }


@pytest.mark.parametrize("version", versions_of(LOG_DIRS))
def test_the_log_directory_has_the_sizes_of_all_partitions(keeper: AdminBroker, version: int) -> None:
    response = keeper.send(LOG_DIRS, version, topics=None)
    (result,) = response.results
    assert (result.error_code, result.log_dir) == (0, "/kept/here")
    assert sizes(result) == {"a": [(0, 10), (1, 20)], "b": [(0, 30)]}
    if version >= 3:
        assert response.error_code == 0
    if version >= 4:
        assert (result.total_bytes, result.usable_bytes) == (1000, 400)
    if version >= 5:
        assert result.is_cordoned is False


def test_only_requested_partitions_that_exist_are_described(keeper: AdminBroker) -> None:
    requested = [
        {"topic": "a", "partitions": [1, 99]},
        {"topic": "gone", "partitions": [0]},
        {"topic": "b", "partitions": []},
    ]
    (result,) = keeper.send(LOG_DIRS, topics=requested).results
    assert sizes(result) == {"a": [(1, 20)]}
    (result,) = keeper.send(LOG_DIRS, topics=[]).results
    assert sizes(result) == {}


def test_an_offline_log_directory_has_an_error(keeper: AdminBroker) -> None:
    keeper.replica_manager.space = OSError("input/output error")
    response = keeper.send(LOG_DIRS, topics=None)
    assert response.error_code == 0
    (result,) = response.results
    assert (result.error_code, result.log_dir) == (56, "/kept/here")
    assert (result.topics, result.total_bytes, result.usable_bytes) == ([], -1, -1)


def test_a_memory_store_is_described_by_its_name() -> None:
    broker = AdminBroker(image_of({}), BrokerSettings(store="memory"))
    assert broker.send(LOG_DIRS, topics=None).results[0].log_dir == "memory"


def test_a_replica_that_is_offline_or_on_another_broker_cannot_be_moved(
    keeper: AdminBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kafka answers REPLICA_NOT_AVAILABLE and not NOT_LEADER_OR_FOLLOWER if only other brokers have replicas."""

    def fail() -> None:
        raise StorageError("input/output error")

    offline = SimpleNamespace(guarded_log=SimpleNamespace(check_online=fail))
    monkeypatch.setattr(
        keeper, "replica_manager", SimpleNamespace(get=lambda name, index: offline if index == 1 else None)
    )
    topic = {"name": "a", "partitions": [0, 1]}
    response = keeper.send(ApiKey.ALTER_REPLICA_LOG_DIRS, dirs=[{"path": "/kept/here", "topics": [topic]}])
    assert [(each.partition_index, each.error_code) for each in response.results[0].partitions] == [(0, 9), (1, 56)]


@pytest.mark.parametrize("api_key", [ApiKey.DESCRIBE_PRODUCERS, ApiKey.DESCRIBE_REPLICA_PROGRESS])
def test_a_duplicate_partition_is_described_once(
    keeper: AdminBroker, monkeypatch: pytest.MonkeyPatch, api_key: ApiKey
) -> None:
    monkeypatch.setattr(keeper, "replica_manager", SimpleNamespace(get=lambda name, index: None))
    named = [("a", [0, 1, 0]), ("b", [5]), ("a", [1, 2])]
    topics = [{"name": name, "partition_indexes": indexes} for name, indexes in named]
    response = keeper.send(api_key, topics=topics)
    assert [(topic.name, [each.partition_index for each in topic.partitions]) for topic in response.topics] == [
        ("a", [0, 1, 2]),
        ("b", [5]),
    ]


def describe_partitions(
    broker: AdminBroker, names: list[str], limit: int = 2000, cursor: tuple[str, int] | None = None
) -> Any:
    return broker.send(
        PARTITIONS,
        topics=[{"name": name} for name in names],
        response_partition_limit=limit,
        cursor=None if cursor is None else {"topic_name": cursor[0], "partition_index": cursor[1]},
    )


def described(response: Any) -> list[tuple[Any, ...]]:
    return [
        (topic.name, topic.error_code, [each.partition_index for each in topic.partitions]) for topic in response.topics
    ]


def next_cursor(response: Any) -> tuple[str, int] | None:
    cursor = response.next_cursor
    return None if cursor is None else (cursor.topic_name, cursor.partition_index)


@pytest.fixture
def shelf() -> AdminBroker:
    return AdminBroker(image_of({"e": 1, "a": 5, "c": 2, "__consumer_offsets": 1}))


def test_topics_are_described_with_leaders_and_replicas(shelf: AdminBroker) -> None:
    response = describe_partitions(shelf, ["e", "a", "e"])
    assert described(response) == [("a", 0, [0, 1, 2, 3, 4]), ("e", 0, [0])]
    topic = response.topics[1]
    assert (topic.topic_id, topic.is_internal) == (topic_id(0), False)
    assert topic.topic_authorized_operations == ALL_OF_A_TOPIC
    (partition,) = topic.partitions
    assert (partition.error_code, partition.leader_id, partition.leader_epoch) == (0, 1, 3)
    assert (partition.replica_nodes, partition.isr_nodes, partition.offline_replicas) == ([1], [1], [])
    assert (partition.eligible_leader_replicas, partition.last_known_elr) == ([], [])
    assert next_cursor(response) is None


def test_internal_topics_are_marked(shelf: AdminBroker) -> None:
    assert describe_partitions(shelf, ["__consumer_offsets"]).topics[0].is_internal is True


def test_all_pages_describe_every_partition_once(shelf: AdminBroker) -> None:
    for limit in (1, 2, 3, 7, 9, 2000):
        found, cursor, pages = [], None, 0
        while pages == 0 or cursor is not None:
            response = describe_partitions(shelf, [], limit, cursor)
            page = [(name, index) for name, _, indexes in described(response) for index in indexes]
            assert len(page) <= limit
            found += page
            cursor, pages = next_cursor(response), pages + 1
            assert pages < 20
        assert found == sorted(found)
        assert len(found) == 9


@pytest.mark.parametrize(
    ("names", "limit", "cursor", "expected", "following"),
    [
        (["a", "e"], 2, None, [("a", 0, [0, 1])], ("a", 2)),
        (["a", "e"], 5, None, [("a", 0, [0, 1, 2, 3, 4])], ("e", 0)),
        (["a", "zz"], 5, None, [("a", 0, [0, 1, 2, 3, 4])], ("zz", 0)),
        (["a", "e"], 2000, ("a", 4), [("a", 0, [4]), ("e", 0, [0])], None),
        (["a", "e"], 2, ("a", 99), [("a", 0, []), ("e", 0, [0])], None),
        (["a", "e"], 5, ("e", 0), [("e", 0, [0])], None),
        (["zz", "a"], 5, ("zz", 0), [("zz", 3, [])], None),
        (["a"], 0, None, [("a", 0, [0])], ("a", 1)),
        (["a"], -1, None, [("a", 0, [0])], ("a", 1)),
        ([], 3, ("b", 0), [("c", 0, [0, 1]), ("e", 0, [0])], None),
        (["zz", "sp ace", "", "e"], 9, None, [("", 17, []), ("e", 0, [0]), ("sp ace", 17, []), ("zz", 3, [])], None),
    ],
)
def test_cursor_and_limit_select_the_page(
    shelf: AdminBroker,
    names: list[str],
    limit: int,
    cursor: tuple[str, int] | None,
    expected: list[tuple[Any, ...]],
    following: tuple[str, int] | None,
) -> None:
    response = describe_partitions(shelf, names, limit, cursor)
    assert described(response) == expected
    assert next_cursor(response) == following


def test_a_page_has_at_most_2000_partitions() -> None:
    response = describe_partitions(AdminBroker(image_of({"big": 2001})), ["big"], 2**31 - 1)
    assert len(response.topics[0].partitions) == 2000
    assert next_cursor(response) == ("big", 2000)


@pytest.mark.parametrize("cursor", [("b", 0), ("a", -1)])
def test_an_invalid_cursor_fails_every_topic(shelf: AdminBroker, cursor: tuple[str, int]) -> None:
    response = describe_partitions(shelf, ["a", "e"], 2, cursor)
    assert described(response) == [("a", 42, []), ("e", 42, [])]
    assert next_cursor(response) is None


def test_unreachable_leaders_and_replicas_are_marked() -> None:
    image = image_of({}, brokers=[broker_image(2, fenced=True), broker_image(3, listener="INTERNAL")])
    partitions = (
        PartitionRegistration(0, (1, 2, 3, 4), (1,), 1, 0, 0),
        PartitionRegistration(1, (3,), (3,), 3, 6, 0),
        PartitionRegistration(2, (1,), (1,), -1, 7, 0),
    )
    topic = TopicImage("a", topic_id(0), partitions)
    broker = AdminBroker(dataclasses.replace(image, topics={"a": topic}, topic_names={topic_id(0): "a"}))
    found = describe_partitions(broker, ["a"]).topics[0].partitions
    assert [each.leader_id for each in found] == [1, -1, -1]
    assert [each.leader_epoch for each in found] == [0, 6, 7]
    assert [each.offline_replicas for each in found] == [[2, 3, 4], [3], []]
