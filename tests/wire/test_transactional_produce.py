"""Produce in transactions: leaders ask the coordinator before a first batch, so they reject late ones (KIP-890)."""

import pytest

from support.topics import Topics, unique
from support.transaction_wire import (
    ABORTABLE,
    FENCED,
    INVALID_EPOCH,
    INVALID_MAPPING,
    INVALID_REQUEST,
    INVALID_STATE,
    NONE,
    OUT_OF_ORDER,
    TRANSACTIONAL_ID_DENIED,
    UNKNOWN_TOPIC,
    Coordinator,
    Producer,
    committed_values,
    last_stable_offset,
    produce_codes,
    transactional_batch,
    until,
)
from support.wire import WireClient, batch, end_offset, produce_tree, wait_until

TV1_VERSIONS, TV2_VERSION = (3, 10, 11), 12
NOT_VERIFIED = {3: INVALID_STATE, 10: INVALID_STATE, 11: ABORTABLE}
"""The error of a partition that is not in the transaction, by version of Produce."""


@pytest.fixture
def coordinator(client: WireClient) -> Coordinator:
    return Coordinator(client)


@pytest.fixture
def topic(topics: Topics) -> str:
    return topics.create(partitions=3)


def send(
    coordinator: Coordinator,
    producer: Producer,
    topic: str,
    *values: bytes,
    sequence: int = 0,
    version: int = TV2_VERSION,
    partition: int = 0,
) -> int:
    """Returns the error code of one transactional batch."""
    data = transactional_batch(producer, *(values or (b"value",)), sequence=sequence)
    (code,) = produce_codes(coordinator.client, coordinator.id, {(topic, partition): data}, version=version)
    return code


def end_tv1(coordinator: Coordinator, producer: Producer, *, commit: bool) -> None:
    """Ends a transaction as a client without TV2, whose epoch stays the same."""
    assert coordinator.end_code(producer, commit=commit, version=3) == NONE
    coordinator.wait_for("CompleteCommit" if commit else "CompleteAbort")


def end_tv2(coordinator: Coordinator, producer: Producer, *, commit: bool) -> Producer:
    following = coordinator.end(producer, commit=commit)
    coordinator.wait_for("CompleteCommit" if commit else "CompleteAbort")
    return following


# Transactions without TV2


@pytest.mark.parametrize("version", TV1_VERSIONS)
@pytest.mark.parametrize("commit", [True, False])
def test_a_transaction_without_tv2(coordinator: Coordinator, topic: str, version: int, commit: bool) -> None:
    producer = coordinator.init()
    coordinator.add(producer, (topic, 0))
    assert send(coordinator, producer, topic, b"a", b"b", version=version) == NONE
    assert send(coordinator, producer, topic, b"c", sequence=2, version=version) == NONE
    assert committed_values(coordinator.client, topic) == []
    assert last_stable_offset(coordinator.client, topic) == 0
    end_tv1(coordinator, producer, commit=commit)
    wait_until(lambda: last_stable_offset(coordinator.client, topic) == 4, "the transaction has ended")
    assert committed_values(coordinator.client, topic) == ([b"a", b"b", b"c"] if commit else [])


@pytest.mark.parametrize("version", TV1_VERSIONS)
def test_a_partition_that_was_not_added_is_rejected(coordinator: Coordinator, topic: str, version: int) -> None:
    producer = coordinator.init()
    assert send(coordinator, producer, topic, version=version) == NOT_VERIFIED[version]
    coordinator.add(producer, (topic, 1))
    assert send(coordinator, producer, topic, version=version) == NOT_VERIFIED[version]
    assert send(coordinator, producer, topic, version=version, partition=1) == NONE
    assert end_offset(coordinator.client, topic) == 0
    coordinator.add(producer, (topic, 0))
    assert send(coordinator, producer, topic, version=version) == NONE


def test_each_partition_of_a_request_is_verified(coordinator: Coordinator, topic: str) -> None:
    producer = coordinator.init()
    coordinator.add(producer, (topic, 0), (topic, 2))
    batches = {(topic, index): transactional_batch(producer, b"value") for index in range(4)}
    codes = produce_codes(coordinator.client, coordinator.id, batches, version=11)
    assert codes == [NONE, ABORTABLE, NONE, UNKNOWN_TOPIC]


# Transactions with TV2


@pytest.mark.parametrize("commit", [True, False])
def test_a_transaction_with_tv2(coordinator: Coordinator, topic: str, commit: bool) -> None:
    producer = coordinator.init()
    assert send(coordinator, producer, topic, b"a", b"b") == NONE
    state = coordinator.describe()
    assert state["transaction_state"] == "Ongoing"
    assert [(each["topic"], each["partitions"]) for each in state["topics"]] == [(topic, [0])]
    assert send(coordinator, producer, topic, b"c", sequence=2) == NONE
    assert last_stable_offset(coordinator.client, topic) == 0
    end_tv2(coordinator, producer, commit=commit)
    wait_until(lambda: last_stable_offset(coordinator.client, topic) == 4, "the transaction has ended")
    assert committed_values(coordinator.client, topic) == ([b"a", b"b", b"c"] if commit else [])


def test_a_request_adds_all_its_partitions(coordinator: Coordinator, topic: str) -> None:
    producer = coordinator.init()
    batches = {(topic, index): transactional_batch(producer, b"value") for index in (0, 2, 7)}
    codes = produce_codes(coordinator.client, coordinator.id, batches, version=TV2_VERSION)
    assert codes == [NONE, NONE, UNKNOWN_TOPIC]
    (added,) = coordinator.describe()["topics"]
    assert sorted(added["partitions"]) == [0, 2]


def test_the_next_transaction_follows_at_once(coordinator: Coordinator, topic: str) -> None:
    producer = coordinator.init()
    for number in range(20):
        # The leader waits for the markers of the previous transaction, and the client repeats the request if that takes
        # too long.
        until(lambda: {"error_code": send(coordinator, producer, topic, b"%d" % number)}, 19, 51)  # noqa: B023
        producer = coordinator.end(producer, commit=number % 2 == 0)
    coordinator.wait_for("CompleteAbort")
    wait_until(lambda: last_stable_offset(coordinator.client, topic) == 40, "all transactions have ended")
    assert committed_values(coordinator.client, topic) == [b"%d" % number for number in range(0, 20, 2)]


def test_a_transaction_with_tv2_starts_with_sequence_0(coordinator: Coordinator, topic: str) -> None:
    producer = coordinator.init()
    assert send(coordinator, producer, topic, sequence=3) == OUT_OF_ORDER
    assert send(coordinator, producer, topic, sequence=0) == NONE
    assert send(coordinator, producer, topic, sequence=2) == OUT_OF_ORDER
    assert send(coordinator, producer, topic, sequence=1) == NONE


def test_a_repeated_batch_is_not_appended_twice(coordinator: Coordinator, topic: str) -> None:
    producer = coordinator.init()
    for _ in range(3):
        assert send(coordinator, producer, topic, b"a") == NONE
    end_tv2(coordinator, producer, commit=True)
    wait_until(lambda: last_stable_offset(coordinator.client, topic) == 2, "the transaction has ended")


# Invalid requests


@pytest.mark.parametrize("version", [3, 11, 12])
def test_a_transactional_batch_needs_a_transactional_id(client: WireClient, topic: str, version: int) -> None:
    batches = {(topic, 0): batch(), (topic, 1): transactional_batch((5, 0), b"value")}
    codes = produce_codes(client, None, batches, version=version)
    assert codes == [TRANSACTIONAL_ID_DENIED, TRANSACTIONAL_ID_DENIED]
    assert [end_offset(client, topic, index) for index in range(2)] == [0, 0]


@pytest.mark.parametrize("version", [3, 11, 12])
def test_a_plain_batch_may_have_a_transactional_id(client: WireClient, topic: str, version: int) -> None:
    assert produce_codes(client, unique("tx"), {(topic, 0): batch()}, version=version) == [NONE]


@pytest.mark.parametrize("version", [11, 12])
@pytest.mark.parametrize("change", [(1, 0), (0, 1)])
def test_a_request_has_one_producer(
    coordinator: Coordinator, topic: str, version: int, change: tuple[int, int]
) -> None:
    producer = coordinator.init()
    coordinator.add(producer, (topic, 0), (topic, 1), (topic, 2))
    other = (producer[0] + change[0], producer[1] + change[1])
    batches = {
        (topic, 0): transactional_batch(producer, b"value"),
        (topic, 1): transactional_batch(other, b"value"),
        (topic, 2): batch(),
    }
    codes = produce_codes(coordinator.client, coordinator.id, batches, version=version)
    assert codes == [INVALID_MAPPING] * 3
    assert [end_offset(coordinator.client, topic, index) for index in range(3)] == [0, 0, 0]


@pytest.mark.parametrize("version", [3, 11, 12])
def test_unknown_transactional_ids_and_producers(coordinator: Coordinator, topic: str, version: int) -> None:
    producer_id, epoch = coordinator.init()
    data = {(topic, 0): transactional_batch((producer_id, epoch), b"value")}
    assert produce_codes(coordinator.client, unique("tx"), data, version=version) == [INVALID_MAPPING]
    assert produce_codes(coordinator.client, "", data, version=version) == [INVALID_REQUEST]
    assert send(coordinator, (producer_id + 1000, 0), topic, version=version) == INVALID_MAPPING
    assert send(coordinator, (producer_id, epoch + 1), topic, version=version) == INVALID_EPOCH
    assert end_offset(coordinator.client, topic) == 0


@pytest.mark.parametrize("version", [3, 11, 12])
def test_a_fenced_producer_cannot_write(coordinator: Coordinator, topic: str, version: int) -> None:
    old = coordinator.init()
    coordinator.add(old, (topic, 0))
    assert send(coordinator, old, topic, version=version) == NONE
    new = coordinator.init()
    coordinator.add(new, (topic, 0), (topic, 1))
    # Partition 0 has the marker that aborted the transaction, partition 1 only the coordinator knows.
    assert send(coordinator, old, topic, sequence=1, version=version) == INVALID_EPOCH
    assert send(coordinator, old, topic, version=version, partition=1) == INVALID_EPOCH
    assert send(coordinator, new, topic, version=version) == NONE


def test_a_plain_batch_does_not_belong_to_an_open_transaction(coordinator: Coordinator, topic: str) -> None:
    producer_id, epoch = producer = coordinator.init()
    assert send(coordinator, producer, topic) == NONE
    plain = batch(producer_id=producer_id, producer_epoch=epoch, base_sequence=1)
    assert produce_codes(coordinator.client, coordinator.id, {(topic, 0): plain}, version=12) == [INVALID_STATE]


def test_a_rejected_batch_without_response_closes_the_connection(
    coordinator: Coordinator, topic: str, topics: Topics
) -> None:
    producer = coordinator.init()
    with WireClient(topics.bootstrap) as other:
        data = transactional_batch(producer, b"value")
        other.send(0, 11, produce_tree(topic, data, acks=0, transactional_id=coordinator.id))
        assert other.is_closed()
    assert end_offset(coordinator.client, topic) == 0


# Late requests (KIP-890)


@pytest.mark.parametrize("version", TV1_VERSIONS)
@pytest.mark.parametrize("commit", [True, False])
def test_a_late_batch_does_not_open_a_transaction_again(
    coordinator: Coordinator, topic: str, version: int, commit: bool
) -> None:
    """Without the verification, the transaction would stay open, and consumers would wait for ever."""
    producer = coordinator.init()
    coordinator.add(producer, (topic, 0), (topic, 1))
    assert send(coordinator, producer, topic, b"in time", version=version) == NONE
    end_tv1(coordinator, producer, commit=commit)
    wait_until(lambda: last_stable_offset(coordinator.client, topic) == 2, "the transaction has ended")
    assert send(coordinator, producer, topic, b"late", sequence=1, version=version) == NOT_VERIFIED[version]
    assert send(coordinator, producer, topic, b"late", version=version, partition=1) == NOT_VERIFIED[version]
    # Also a repetition of a batch that is in the log.
    assert send(coordinator, producer, topic, b"in time", version=version) == NOT_VERIFIED[version]
    for index, offset in ((0, 2), (1, 1)):
        wait_until(lambda: last_stable_offset(coordinator.client, topic, index) == offset, "nothing is open")  # noqa: B023
        assert end_offset(coordinator.client, topic, index) == offset
    assert committed_values(coordinator.client, topic) == ([b"in time"] if commit else [])


@pytest.mark.parametrize("commit", [True, False])
def test_a_late_batch_with_tv2_is_fenced(coordinator: Coordinator, topic: str, commit: bool) -> None:
    producer = coordinator.init()
    assert send(coordinator, producer, topic, b"in time") == NONE
    end_tv2(coordinator, producer, commit=commit)
    wait_until(lambda: last_stable_offset(coordinator.client, topic) == 2, "the transaction has ended")
    assert send(coordinator, producer, topic, b"late", sequence=1) == INVALID_EPOCH
    assert send(coordinator, producer, topic, b"in time") == INVALID_EPOCH
    # This partition has no state of the producer, so only the coordinator can reject the batch.
    assert send(coordinator, producer, topic, b"late", partition=1) == INVALID_EPOCH
    assert [end_offset(coordinator.client, topic, index) for index in range(2)] == [2, 0]
    assert coordinator.describe()["transaction_state"] == ("CompleteCommit" if commit else "CompleteAbort")


@pytest.mark.parametrize("commit", [True, False])
def test_a_late_batch_with_tv2_does_not_enter_the_next_transaction(
    coordinator: Coordinator, topic: str, commit: bool
) -> None:
    first = coordinator.init()
    assert send(coordinator, first, topic, b"first") == NONE
    second = end_tv2(coordinator, first, commit=False)
    assert second == (first[0], first[1] + 1)
    assert send(coordinator, second, topic, b"second") == NONE
    for partition in range(3):
        assert send(coordinator, first, topic, b"late", sequence=1, partition=partition) == INVALID_EPOCH
    # A late request to end the first transaction does not end the second.
    assert coordinator.end_response(first, commit=True, version=5)["error_code"] == FENCED
    assert send(coordinator, second, topic, b"more", sequence=1) == NONE
    end_tv2(coordinator, second, commit=commit)
    wait_until(lambda: last_stable_offset(coordinator.client, topic) == 5, "both transactions have ended")
    assert committed_values(coordinator.client, topic) == ([b"second", b"more"] if commit else [])
    assert [end_offset(coordinator.client, topic, index) for index in (1, 2)] == [0, 0]


def test_a_late_batch_without_tv2_can_enter_the_next_transaction(coordinator: Coordinator, topic: str) -> None:
    """The epoch stays the same, so nobody can tell the transactions apart. TV2 exists for this reason."""
    producer = coordinator.init()
    coordinator.add(producer, (topic, 0))
    end_tv1(coordinator, producer, commit=False)
    coordinator.add(producer, (topic, 0))
    assert send(coordinator, producer, topic, b"late", version=11) == NONE
    end_tv1(coordinator, producer, commit=True)
    wait_until(lambda: last_stable_offset(coordinator.client, topic) == 3, "both transactions have ended")
    assert committed_values(coordinator.client, topic) == [b"late"]
