"""The requests of transactional producers to their coordinator: FindCoordinator, InitProducerId, AddPartitionsToTxn,
AddOffsetsToTxn and EndTxn, and the requests of operators: DescribeTransactions and ListTransactions."""

import time
from typing import Any

import pytest
from broker_under_test import AGAINST_KAFKA

from support.topics import Topics, unique
from support.transaction_wire import (
    ABORTABLE,
    ADD_OFFSETS,
    ADD_PARTITIONS,
    CONCURRENT,
    FENCED,
    FIND_COORDINATOR,
    ID_NOT_FOUND,
    INVALID_EPOCH,
    INVALID_MAPPING,
    INVALID_REGEX,
    INVALID_REQUEST,
    INVALID_STATE,
    INVALID_TIMEOUT,
    LIST,
    NONE,
    NOT_ATTEMPTED,
    PATIENCE_S,
    TOPIC_DENIED,
    UNKNOWN_TOPIC,
    WRITE_MARKERS,
    Coordinator,
    Producer,
)
from support.wire import INIT_PRODUCER_ID, WireClient


@pytest.fixture
def coordinator(client: WireClient) -> Coordinator:
    return Coordinator(client)


@pytest.fixture
def topic(topics: Topics) -> str:
    return topics.create(partitions=3)


# Starting a producer


def test_a_new_transactional_id_gets_a_producer_id_with_epoch_0(coordinator: Coordinator) -> None:
    producer_id, epoch = coordinator.init()
    assert producer_id >= 0
    assert epoch == 0
    assert coordinator.init() == (producer_id, 1)
    state = coordinator.describe()
    assert (state["client_id"], state["client_host"]) == (("", "") if AGAINST_KAFKA else ("raw", "/127.0.0.1"))
    assert (state["transaction_state"], state["topics"], state["transaction_timeout"]) == ("Empty", [], 60_000)
    assert (state["producer_id"], state["producer_epoch"]) == (producer_id, 1)
    assert state["transaction_start_time"] == -1


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
def test_a_timeout_out_of_range_is_rejected(coordinator: Coordinator, timeout_ms: int) -> None:
    response = coordinator.init_response(timeout_ms=timeout_ms)
    assert (response["error_code"], response["producer_id"], response["producer_epoch"]) == (INVALID_TIMEOUT, -1, -1)


def test_invalid_requests_for_a_producer_id(coordinator: Coordinator) -> None:
    assert coordinator.init_response(id_="")["error_code"] == INVALID_REQUEST
    assert coordinator.init_response((5, -1))["error_code"] == INVALID_REQUEST
    assert coordinator.init_response((-1, 5))["error_code"] == INVALID_REQUEST


def test_a_producer_continues_with_its_epoch_and_can_repeat_the_request(coordinator: Coordinator) -> None:
    producer_id, epoch = coordinator.init()
    for _ in range(3):
        assert coordinator.init((producer_id, epoch)) == (producer_id, 1)
    assert coordinator.init((producer_id, 1)) == (producer_id, 2)


@pytest.mark.parametrize(("version", "code"), [(3, INVALID_EPOCH), (4, FENCED), (5, FENCED)])
def test_a_fenced_producer_cannot_continue(coordinator: Coordinator, version: int, code: int) -> None:
    first = coordinator.init()
    coordinator.init()
    assert coordinator.init_response(first, version=version)["error_code"] == code
    assert coordinator.init_response((first[0] + 1, 1), version=version)["error_code"] == code


def test_a_new_producer_aborts_the_ongoing_transaction(coordinator: Coordinator, topic: str) -> None:
    old = coordinator.init()
    coordinator.add(old, (topic, 0))
    assert coordinator.init_response()["error_code"] == CONCURRENT
    # The abort increases the epoch, and the new producer increases it again.
    assert coordinator.init() == (old[0], 2)
    assert coordinator.end_response(old, commit=True, version=5)["error_code"] == FENCED
    assert coordinator.end_response(old, commit=True, version=1)["error_code"] == INVALID_EPOCH
    assert coordinator.add_codes(old, (topic, 0), version=1) == [INVALID_EPOCH]
    assert coordinator.add_codes(old, (topic, 0), version=3) == [FENCED]


# Partitions


@pytest.mark.parametrize("version", range(6))
def test_partitions_are_added(coordinator: Coordinator, topic: str, version: int) -> None:
    producer = coordinator.init()
    assert coordinator.add_codes(producer, (topic, 0), (topic, 2), version=version) == [NONE, NONE]
    state = coordinator.describe()
    assert state["transaction_state"] == "Ongoing"
    assert [(each["topic"], sorted(each["partitions"])) for each in state["topics"]] == [(topic, [0, 2])]
    assert coordinator.add_codes(producer, (topic, 0), version=version) == [NONE]


@pytest.mark.parametrize("version", [0, 3, 4, 5])
def test_one_unknown_partition_prevents_the_others(coordinator: Coordinator, topic: str, version: int) -> None:
    producer = coordinator.init()
    partitions = [(topic, 0), (topic, 7), (unique(), 0)]
    assert coordinator.add_codes(producer, *partitions, version=version) == [
        NOT_ATTEMPTED,
        UNKNOWN_TOPIC,
        UNKNOWN_TOPIC,
    ]
    assert coordinator.describe()["transaction_state"] == "Empty"


def test_clients_cannot_add_internal_topics(coordinator: Coordinator, topic: str) -> None:
    producer = coordinator.init()
    partitions = [(topic, 0), ("__transaction_state", 0)]
    assert coordinator.add_codes(producer, *partitions) == [NOT_ATTEMPTED, TOPIC_DENIED]


def test_partitions_of_an_unknown_producer(coordinator: Coordinator, topic: str) -> None:
    assert coordinator.add_codes((1, 0), (topic, 0)) == [INVALID_MAPPING]
    producer_id, epoch = coordinator.init()
    assert coordinator.add_codes((producer_id + 1, epoch), (topic, 0)) == [INVALID_MAPPING]
    assert coordinator.add_codes((producer_id, epoch + 1), (topic, 0)) == [FENCED]


def test_leaders_verify_partitions(coordinator: Coordinator, topic: str) -> None:
    producer = coordinator.init()
    assert coordinator.add_codes(producer, (topic, 1), version=4, verify_only=True) == [ABORTABLE]
    coordinator.add(producer, (topic, 0))
    verified = coordinator.add_codes(producer, (topic, 0), (topic, 1), version=4, verify_only=True)
    assert verified == [NONE, ABORTABLE]
    assert coordinator.add_codes((producer[0], 9), (topic, 0), version=4, verify_only=True) == [FENCED]
    assert coordinator.add_codes((producer[0] + 1, 0), (topic, 0), version=4, verify_only=True) == [INVALID_MAPPING]
    assert [each["partitions"] for each in coordinator.describe()["topics"]] == [[0]]


def test_one_request_has_several_transactions(client: WireClient, topic: str) -> None:
    coordinators = [Coordinator(client) for _ in range(3)]
    producers = [each.init() for each in coordinators[:2]] + [(1, 0)]
    transactions = [
        {
            "transactional_id": coordinator.id,
            "producer_id": producer[0],
            "producer_epoch": producer[1],
            "verify_only": False,
            "topics": [{"name": topic, "partitions": [0]}],
        }
        for coordinator, producer in zip(coordinators, producers, strict=True)
    ]
    response = client.request(ADD_PARTITIONS, 5, {"transactions": transactions})
    codes = {
        each["transactional_id"]: each["topic_results"][0]["results_by_partition"][0]["partition_error_code"]
        for each in response["results_by_transaction"]
    }
    assert codes == {coordinators[0].id: NONE, coordinators[1].id: NONE, coordinators[2].id: INVALID_MAPPING}


@pytest.mark.parametrize(("version", "code"), [(1, INVALID_EPOCH), (2, FENCED), (4, FENCED)])
def test_offsets_of_a_group_are_added(coordinator: Coordinator, topics: Topics, version: int, code: int) -> None:
    ensure_offsets_topic(coordinator.client)
    producer_id, epoch = coordinator.init()
    tree = {"transactional_id": coordinator.id, "producer_id": producer_id, "producer_epoch": epoch, "group_id": "g"}
    assert coordinator.client.request(ADD_OFFSETS, version, tree)["error_code"] == NONE
    assert [each["topic"] for each in coordinator.describe()["topics"]] == ["__consumer_offsets"]
    fenced = coordinator.client.request(ADD_OFFSETS, version, {**tree, "producer_epoch": 9})
    assert fenced["error_code"] == code


def ensure_offsets_topic(client: WireClient) -> None:
    tree = {"coordinator_keys": ["g"], "key_type": 0}
    deadline = time.monotonic() + PATIENCE_S
    while client.request(FIND_COORDINATOR, 4, tree)["coordinators"][0]["error_code"]:
        assert time.monotonic() < deadline
        time.sleep(0.05)


# The end with TV1


@pytest.mark.parametrize("commit", [True, False])
def test_a_transaction_ends_with_the_same_epoch(coordinator: Coordinator, topic: str, commit: bool) -> None:
    producer = coordinator.init()
    for _ in range(2):
        coordinator.add(producer, (topic, 0))
        assert coordinator.end_code(producer, commit=commit, version=4) == NONE
    state = coordinator.wait_for("CompleteCommit" if commit else "CompleteAbort")
    assert (state["producer_epoch"], state["topics"]) == (0, [])
    assert state["transaction_start_time"] > 0
    # A repetition succeeds, the other outcome does not.
    assert coordinator.end_code(producer, commit=commit, version=4) == NONE
    assert coordinator.end_code(producer, commit=not commit, version=4) == INVALID_STATE


def test_ends_that_tv1_rejects(coordinator: Coordinator) -> None:
    assert coordinator.end_code((1, 0), version=3) == INVALID_MAPPING
    producer_id, epoch = coordinator.init()
    for commit in (True, False):
        assert coordinator.end_code((producer_id, epoch), commit=commit, version=4) == INVALID_STATE
    assert coordinator.end_code((producer_id + 1, epoch), version=4) == INVALID_MAPPING
    for wrong in (epoch - 1, epoch + 1):
        assert coordinator.end_code((producer_id, wrong), version=4) == FENCED


# The end with TV2


def test_every_end_increases_the_epoch(coordinator: Coordinator, topic: str) -> None:
    producer_id, _ = producer = coordinator.init()
    for number, commit in enumerate([True, False, True], 1):
        coordinator.add(producer, (topic, 0), version=5)
        ended = coordinator.end(producer, commit=commit)
        assert ended == (producer_id, number)
        # A repetition returns the same epoch, the other outcome is an error.
        assert coordinator.end(producer, commit=commit) == ended
        assert coordinator.end_code(producer, commit=not commit) == INVALID_STATE
        producer = ended
    state = coordinator.wait_for("CompleteCommit")
    assert (state["producer_epoch"], state["topics"]) == (3, [])


@pytest.mark.parametrize("last_commit", [None, True, False])
def test_an_abort_without_a_transaction_increases_the_epoch(
    coordinator: Coordinator, topic: str, last_commit: bool | None
) -> None:
    producer = coordinator.init()
    if last_commit is not None:
        coordinator.add(producer, (topic, 0), version=5)
        producer = coordinator.end(producer, commit=last_commit)
    assert coordinator.end_code(producer, commit=True) == INVALID_STATE
    assert coordinator.end(producer, commit=False) == (producer[0], producer[1] + 1)
    assert coordinator.wait_for("CompleteAbort")["producer_epoch"] == producer[1] + 1


def test_ends_that_tv2_rejects(coordinator: Coordinator, topic: str) -> None:
    assert coordinator.end_code((1, 0)) == INVALID_MAPPING
    producer_id, epoch = coordinator.init()
    for wrong in (epoch - 1, epoch + 1):
        for commit in (True, False):
            assert coordinator.end_code((producer_id, wrong), commit=commit) == FENCED
    assert coordinator.end_code((producer_id + 1, epoch)) == INVALID_MAPPING
    coordinator.add((producer_id, epoch), (topic, 0), version=5)
    for wrong in (epoch - 1, epoch + 1):
        assert coordinator.end_code((producer_id, wrong)) == FENCED
    coordinator.end((producer_id, epoch))
    coordinator.wait_for("CompleteCommit")
    assert coordinator.end_code((producer_id, epoch + 2)) == FENCED
    assert coordinator.end_code((producer_id, epoch - 1)) == FENCED


def test_a_late_end_does_not_end_the_next_transaction(coordinator: Coordinator, topic: str) -> None:
    producer = coordinator.init()
    coordinator.add(producer, (topic, 0), version=5)
    following = coordinator.end(producer)
    coordinator.add(following, (topic, 0), version=5)
    assert coordinator.end_code(producer, commit=True) == FENCED
    assert coordinator.end_code(producer, commit=False) == FENCED
    assert coordinator.describe()["transaction_state"] == "Ongoing"


def test_an_old_producer_cannot_use_a_new_epoch(coordinator: Coordinator, topic: str) -> None:
    old = coordinator.init()
    coordinator.add(old, (topic, 0), version=5)
    coordinator.end(old)
    coordinator.wait_for("CompleteCommit")
    assert coordinator.add_codes(old, (topic, 0), version=5) == [FENCED]
    assert coordinator.end_code(old, commit=True, version=4) == FENCED


def test_a_producer_continues_after_its_transaction_ended(coordinator: Coordinator, topic: str) -> None:
    producer = coordinator.init()
    coordinator.add(producer, (topic, 0), version=5)
    coordinator.end(producer)
    # The producer has not received the new epoch.
    assert coordinator.init(producer) == (producer[0], 1)
    assert coordinator.init((producer[0], 1)) == (producer[0], 2)


# Timeouts


def test_a_timed_out_transaction_is_aborted(start_node: Any, topics: Topics) -> None:
    node = start_node({})
    with WireClient(node.bootstrap) as client:
        coordinator = Coordinator(client)
        name = Topics(node.bootstrap).create()
        producer = coordinator.init(timeout_ms=1_000)
        assert coordinator.add_codes(producer, (name, 0)) == [NONE]
        # Kafka looks for timed out transactions every 10 s.
        state = coordinator.wait_for("CompleteAbort")
        assert state["producer_epoch"] == producer[1] + 1
        assert coordinator.end_code(producer, commit=True) == INVALID_STATE
        assert coordinator.end_code(producer, commit=True, version=4) == FENCED
        assert coordinator.end(producer, commit=False) == (producer[0], producer[1] + 1)
        assert coordinator.init(producer) == (producer[0], producer[1] + 1)


# Descriptions


def test_descriptions_of_unknown_transactions(coordinator: Coordinator) -> None:
    assert coordinator.describe()["error_code"] == ID_NOT_FOUND
    assert coordinator.describe("")["error_code"] == INVALID_REQUEST


def listed(client: WireClient, **filters: Any) -> dict[str, str]:
    response = client.request(LIST, 2, {"duration_filter": -1, **filters})
    assert response["error_code"] == NONE
    return {each["transactional_id"]: each["transaction_state"] for each in response["transaction_states"]}


def test_transactions_are_listed_by_filters(client: WireClient, topic: str) -> None:
    empty, ongoing = Coordinator(client), Coordinator(client)
    empty_id, _ = empty.init()
    producer = ongoing.init()
    ongoing.add(producer, (topic, 0))
    both = {empty.id: "Empty", ongoing.id: "Ongoing"}
    assert both.items() <= listed(client).items()
    assert listed(client, producer_id_filters=[empty_id, producer[0]]) == both
    assert listed(client, producer_id_filters=[empty_id, producer[0]], state_filters=["Ongoing"]) == {
        ongoing.id: "Ongoing"
    }
    mine = [empty_id, producer[0]]
    assert listed(client, producer_id_filters=mine, duration_filter=600_000) == {empty.id: "Empty"}
    time.sleep(0.01)
    assert listed(client, producer_id_filters=mine, duration_filter=0) == both
    unknown = client.request(LIST, 0, {"state_filters": ["Ongoing", "Sleeping"]})
    assert unknown["unknown_state_filters"] == ["Sleeping"]
    assert ongoing.id in [each["transactional_id"] for each in unknown["transaction_states"]]
    only_unknown = client.request(LIST, 1, {"state_filters": ["Sleeping"], "duration_filter": -1})
    assert (only_unknown["unknown_state_filters"], only_unknown["transaction_states"]) == (["Sleeping"], [])


def test_transactions_are_listed_by_pattern(client: WireClient) -> None:
    coordinator = Coordinator(client)
    coordinator.init()
    prefix, _, rest = coordinator.id.partition("-")
    for pattern in (f"{prefix}-{rest}", f".*{rest}", rf"\w+-{rest[:4]}[0-9a-f]{{8}}", f"({prefix}|other)-{rest}", ""):
        assert coordinator.id in listed(client, transactional_id_pattern=pattern), pattern
    for pattern in (rest, f"{prefix}-", rf"\d+-{rest}"):
        assert coordinator.id not in listed(client, transactional_id_pattern=pattern), pattern
    for pattern in ("(", "[", "*", "a{2,1}"):
        response = client.request(LIST, 2, {"duration_filter": -1, "transactional_id_pattern": pattern})
        assert response["error_code"] == INVALID_REGEX, pattern


# Markers


def write_markers(client: WireClient, *partitions: tuple[str, int], version: int = 2, **marker: Any) -> list[int]:
    topics: dict[str, list[int]] = {}
    for name, index in partitions:
        topics.setdefault(name, []).append(index)
    tree = {
        "producer_id": 5_000,
        "producer_epoch": 1,
        "transaction_result": False,
        "coordinator_epoch": 0,
        "topics": [{"name": name, "partition_indexes": indexes} for name, indexes in topics.items()],
        **marker,
    }
    (result,) = client.request(WRITE_MARKERS, version, {"markers": [tree]})["markers"]
    codes = {
        (topic["name"], each["partition_index"]): each["error_code"]
        for topic in result["topics"]
        for each in topic["partitions"]
    }
    return [codes[partition] for partition in partitions]


@pytest.mark.parametrize("version", [1, 2])
def test_markers_are_written_to_partitions(client: WireClient, topic: str, version: int) -> None:
    partitions = [(topic, 0), (topic, 2), (topic, 9), (unique(), 0)]
    assert write_markers(client, *partitions, version=version) == [NONE, NONE, UNKNOWN_TOPIC, UNKNOWN_TOPIC]
    assert client.request(WRITE_MARKERS, version, {"markers": []})["markers"] == []


# Exhausted epochs

EPOCH_MAX = 32_767
PIPELINED = 250


def exhaust(coordinator: Coordinator) -> Producer:
    """Returns a producer with the last epoch that producers can use."""
    producer_id, epoch = coordinator.init()
    client = coordinator.client
    tree = {"transactional_id": coordinator.id, "transaction_timeout": 60_000, "producer_id": -1, "producer_epoch": -1}
    while epoch < EPOCH_MAX - 1:
        count = min(PIPELINED, EPOCH_MAX - 1 - epoch)
        for _ in range(count):
            client.send(INIT_PRODUCER_ID, 5, tree)
        for _ in range(count):
            _, response = client.receive(INIT_PRODUCER_ID, 5)
            if response["error_code"] == NONE:
                epoch = response["producer_epoch"]
    return producer_id, epoch


@pytest.mark.slow
def test_the_end_of_a_transaction_changes_an_exhausted_producer_id(coordinator: Coordinator, topic: str) -> None:
    old = exhaust(coordinator)
    coordinator.add(old, (topic, 0), version=5)
    new = coordinator.end(old)
    assert new[0] != old[0]
    assert new[1] == 0
    assert coordinator.end(old) == new
    assert coordinator.end_code(old, commit=False) == INVALID_STATE
    assert coordinator.init(old) == new
    assert coordinator.end_code(old, commit=False) == INVALID_MAPPING
    coordinator.add(new, (topic, 0), version=5)
    assert coordinator.end_code(old, commit=True) == INVALID_MAPPING
    assert coordinator.end(new) == (new[0], 1)


@pytest.mark.slow
def test_a_new_producer_changes_an_exhausted_producer_id(coordinator: Coordinator, topic: str) -> None:
    old = exhaust(coordinator)
    new = coordinator.init(old)
    assert new[0] != old[0]
    assert new[1] == 0
    assert coordinator.init(old) == new
    assert coordinator.init_response((old[0], old[1] - 1))["error_code"] == FENCED


@pytest.mark.slow
def test_fencing_changes_an_exhausted_producer_id(coordinator: Coordinator, topic: str) -> None:
    old = exhaust(coordinator)
    coordinator.add(old, (topic, 0), version=5)
    assert coordinator.init_response()["error_code"] == CONCURRENT
    state = coordinator.wait_for("CompleteAbort")
    assert state["producer_id"] != old[0]
    assert state["producer_epoch"] == 0
    assert coordinator.init() == (state["producer_id"], 1)
