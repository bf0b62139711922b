"""The order of requests on one connection: a request starts when all earlier requests of its connection have completed.

Each test writes several requests at once, so that the later ones arrive while the first is in progress.
"""

import select
import time
from collections.abc import Callable

import pytest
from broker_under_test import AGAINST_KAFKA, Broker

from support.requests import (
    ALTER_CONFIGS,
    DELETE_GROUPS,
    EARLIEST,
    FIND_COORDINATOR,
    JOIN_GROUP,
    LATEST,
    LEAVE_GROUP,
    LIST_GROUPS,
    OFFSET_DELETE,
    Request,
    alter_retention,
    commit_offset,
    committed_offset,
    create_partitions,
    create_topic,
    delete_records,
    delete_topic,
    describe_group,
    describe_retention,
    described_retention,
    fetch_at,
    fetch_offset,
    fetched_bytes,
    join_group,
    list_offset,
    listed_offset,
    metadata,
    partition_count,
    produce_error,
    produce_one,
    request_at_once,
    write_at_once,
)
from support.topics import Topics, unique
from support.wire import (
    CREATE_TOPICS,
    FETCH,
    INCREMENTAL_ALTER_CONFIGS,
    LIST_OFFSETS,
    PRODUCE,
    WireClient,
    batch,
    end_offset,
    produce,
)

TRIES = 10
TRANSIENT_GROUP_ERRORS = {14, 15, 16}
"""The coordinator is loading, not available, or on another node."""


# The second request sees the effect of the first


@pytest.fixture
def group(client: WireClient) -> str:
    """A group whose coordinator is ready."""
    name = unique("group")
    deadline = time.monotonic() + 20
    while True:
        assert time.monotonic() < deadline, "the group has no coordinator"
        found = client.request(FIND_COORDINATOR, 4, {"key_type": 0, "coordinator_keys": [name]})
        if found["coordinators"][0]["error_code"] == 0:
            described = client.request(*describe_group(name))
            if described["groups"][0]["error_code"] not in TRANSIENT_GROUP_ERRORS:
                return name


def assert_always_seen(attempt: Callable[[int], bool], *, eventually_in_kafka: bool = False) -> None:
    """Checks that in every attempt the second request sees the effect of the first.

    With `eventually_in_kafka`, Kafka's controller responds before the broker has applied the change, so in Kafka most
    attempts see the effect, but not all.
    """
    seen = [attempt(number) for number in range(TRIES)]
    if AGAINST_KAFKA and eventually_in_kafka:
        assert any(seen)
    else:
        assert all(seen), f"seen by {sum(seen)} of {TRIES}"


def test_list_offsets_sees_deleted_records(client: WireClient, topics: Topics) -> None:
    topic = topics.create()
    for _ in range(TRIES):
        produce(client, topic, batch())

    def attempt(number: int) -> bool:
        deleted, listed = request_at_once(client, delete_records(topic, number + 1), list_offset(topic, EARLIEST))
        assert deleted["topics"][0]["partitions"][0]["error_code"] == 0
        return listed_offset(listed) == number + 1

    assert_always_seen(attempt)


def test_metadata_sees_a_created_topic(client: WireClient) -> None:
    def attempt(_: int) -> bool:
        name = unique()
        created, described = request_at_once(client, create_topic(name), metadata(name))
        assert created["topics"][0]["error_code"] == 0
        return partition_count(described) == 1

    assert_always_seen(attempt, eventually_in_kafka=True)


def test_produce_sees_a_created_topic(client: WireClient) -> None:
    def attempt(_: int) -> bool:
        name = unique()
        _, produced = request_at_once(client, create_topic(name), produce_one(name))
        return produce_error(produced) == 0

    assert_always_seen(attempt, eventually_in_kafka=True)


def test_metadata_does_not_see_a_deleted_topic(client: WireClient, topics: Topics) -> None:
    def attempt(_: int) -> bool:
        name = topics.create()
        deleted, described = request_at_once(client, delete_topic(name), metadata(name))
        assert deleted["responses"][0]["error_code"] == 0
        return partition_count(described) == 0

    assert_always_seen(attempt, eventually_in_kafka=True)


def test_metadata_sees_created_partitions(client: WireClient, topics: Topics) -> None:
    topic = topics.create()

    def attempt(number: int) -> bool:
        created, described = request_at_once(client, create_partitions(topic, number + 2), metadata(topic))
        assert created["results"][0]["error_code"] == 0
        return partition_count(described) == number + 2

    assert_always_seen(attempt, eventually_in_kafka=True)


@pytest.mark.parametrize("api_key", [INCREMENTAL_ALTER_CONFIGS, ALTER_CONFIGS])
def test_describe_configs_sees_an_altered_config(client: WireClient, topics: Topics, api_key: int) -> None:
    topic = topics.create()

    def attempt(number: int) -> bool:
        altered, described = request_at_once(
            client, alter_retention(topic, 1_000_000 + number, api_key), describe_retention(topic)
        )
        assert altered["responses"][0]["error_code"] == 0
        return described_retention(described) == 1_000_000 + number

    assert_always_seen(attempt, eventually_in_kafka=True)


@pytest.mark.parametrize("acks", [-1, 1, 0])
def test_fetch_sees_a_produced_record(client: WireClient, topics: Topics, acks: int) -> None:
    topic = topics.create()

    def attempt(number: int) -> bool:
        write_at_once(client, produce_one(topic, acks), fetch_at(topic, number))
        if acks:
            client.receive(PRODUCE, 9)
        return fetched_bytes(client.receive(FETCH, 12)[1]) > 0

    assert_always_seen(attempt)


@pytest.mark.parametrize("acks", [-1, 1, 0])
def test_list_offsets_sees_a_produced_record(client: WireClient, topics: Topics, acks: int) -> None:
    topic = topics.create()

    def attempt(number: int) -> bool:
        write_at_once(client, produce_one(topic, acks), list_offset(topic, LATEST))
        if acks:
            client.receive(PRODUCE, 9)
        return listed_offset(client.receive(LIST_OFFSETS, 7)[1]) == number + 1

    assert_always_seen(attempt)


def test_a_request_sees_all_pipelined_produces_before_it(client: WireClient, topics: Topics) -> None:
    topic = topics.create()

    def attempt(number: int) -> bool:
        *produced, listed = request_at_once(client, *[produce_one(topic)] * 20, list_offset(topic, LATEST))
        offsets = [each["responses"][0]["partition_responses"][0]["base_offset"] for each in produced]
        assert offsets == list(range(20 * number, 20 * number + 20))
        return listed_offset(listed) == 20 * number + 20

    assert_always_seen(attempt)


def test_offset_fetch_sees_a_committed_offset(client: WireClient, topics: Topics, group: str) -> None:
    topic = topics.create()

    def attempt(number: int) -> bool:
        _, fetched = request_at_once(client, commit_offset(group, topic, number), fetch_offset(group))
        return committed_offset(fetched) == number

    assert_always_seen(attempt)


def test_offset_fetch_does_not_see_a_deleted_offset(client: WireClient, topics: Topics, group: str) -> None:
    topic = topics.create()
    deleted = {"name": topic, "partitions": [{"partition_index": 0}]}

    def attempt(number: int) -> bool:
        client.request(*commit_offset(group, topic, number))
        _, fetched = request_at_once(
            client, (OFFSET_DELETE, 0, {"group_id": group, "topics": [deleted]}), fetch_offset(group)
        )
        return committed_offset(fetched) is None

    assert_always_seen(attempt)


def test_list_groups_does_not_see_a_deleted_group(client: WireClient, topics: Topics, group: str) -> None:
    topic = topics.create()

    def attempt(number: int) -> bool:
        client.request(*commit_offset(group, topic, number))
        deleted, listed = request_at_once(
            client, (DELETE_GROUPS, 2, {"groups_names": [group]}), (LIST_GROUPS, 4, {"states_filter": []})
        )
        assert deleted["results"][0]["error_code"] == 0
        return group not in [each["group_id"] for each in listed["groups"]]

    assert_always_seen(attempt)


def test_describe_groups_sees_a_member_that_joined(client: WireClient, group: str) -> None:
    def attempt(_: int) -> bool:
        name = unique(group)
        joined, described = request_at_once(client, join_group(name), describe_group(name))
        assert joined["error_code"] == 0
        return [each["member_id"] for each in described["groups"][0]["members"]] == [joined["member_id"]]

    assert_always_seen(attempt)


def test_describe_groups_does_not_see_a_member_that_left(client: WireClient, group: str) -> None:
    def attempt(_: int) -> bool:
        joined = client.request(*join_group(group))
        left = {"group_id": group, "members": [{"member_id": joined["member_id"], "group_instance_id": None}]}
        _, described = request_at_once(client, (LEAVE_GROUP, 4, left), describe_group(group))
        return described["groups"][0]["members"] == []

    assert_always_seen(attempt)


# The first request does not see the effect of the second


def test_a_parked_fetch_does_not_see_a_later_produce(client: WireClient, topics: Topics) -> None:
    topic = topics.create()
    for number in range(TRIES):
        fetched, produced = request_at_once(client, fetch_at(topic, number, max_wait=200), produce_one(topic))
        assert fetched_bytes(fetched) == 0
        assert produce_error(produced) == 0


def test_two_fetches_of_one_session_do_not_overlap(client: WireClient, topics: Topics) -> None:
    """The first is parked until its wait is over. Only the third, which follows a produce, has something to report."""
    topic = topics.create()
    session_id = client.request(*fetch_at(topic, 0, session_epoch=0))["session_id"]
    assert session_id != 0

    def continued(epoch: int) -> Request:
        return fetch_at(topic, 0, max_wait=200, topics=[], session_id=session_id, session_epoch=epoch)

    first, second, _, third = request_at_once(client, continued(1), continued(2), produce_one(topic), continued(3))
    assert [each["error_code"] for each in (first, second, third)] == [0, 0, 0]
    assert [len(each["responses"]) for each in (first, second, third)] == [0, 0, 1]
    assert fetched_bytes(third) > 0


def test_a_request_behind_a_parked_join_does_not_start(client: WireClient, node: Broker, group: str) -> None:
    first = client.request(*join_group(group))
    topic = unique()
    with WireClient(node.bootstrap) as second:
        # The join waits for the first member, which does not join again, until that leaves.
        write_at_once(second, join_group(group), create_topic(topic))
        deadline = time.monotonic() + 0.5
        while time.monotonic() < deadline:
            assert partition_count(client.request(*metadata(topic))) == 0
        assert not select.select([second.socket], [], [], 0)[0], "the join has completed"
        left = {"group_id": group, "members": [{"member_id": first["member_id"], "group_instance_id": None}]}
        assert client.request(LEAVE_GROUP, 4, left)["error_code"] == 0
        assert second.receive(JOIN_GROUP, 3)[1]["error_code"] == 0
        assert second.receive(CREATE_TOPICS, 5)[1]["topics"][0]["error_code"] == 0


def test_requests_behind_a_failed_produce_without_response_do_not_start(node: Broker, topics: Topics) -> None:
    topic = topics.create()
    for _ in range(TRIES):
        with WireClient(node.bootstrap) as wire:
            write_at_once(wire, produce_one(unique("missing"), acks=0), produce_one(topic), metadata(topic))
            assert wire.is_closed()
    with WireClient(node.bootstrap) as wire:
        assert end_offset(wire, topic) == 0
