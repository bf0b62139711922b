"""A transactional producer's requests to its coordinator and to leaders, as raw messages."""

import time
from collections.abc import Callable, Mapping
from typing import Any

from moldau.records.batch import split
from moldau.records.record import iterate_records
from moldau.wire.codec import decoder
from support.topics import unique
from support.wire import INIT_PRODUCER_ID, PRODUCE, WireClient, batch, fetch

FIND_COORDINATOR, ADD_PARTITIONS, ADD_OFFSETS, END_TXN, WRITE_MARKERS, DESCRIBE, LIST = 10, 24, 25, 26, 27, 65, 66
NONE, UNKNOWN_TOPIC, LOADING, NOT_AVAILABLE, NOT_COORDINATOR, TOPIC_DENIED, INVALID_REQUEST = 0, 3, 14, 15, 16, 29, 42
INVALID_EPOCH, INVALID_STATE, INVALID_MAPPING, INVALID_TIMEOUT, CONCURRENT, NOT_ATTEMPTED = 47, 48, 49, 50, 51, 55
FENCED, ID_NOT_FOUND, ABORTABLE, INVALID_REGEX = 90, 105, 120, 128
RETRIABLE = (LOADING, NOT_AVAILABLE, NOT_COORDINATOR, CONCURRENT)
OUT_OF_ORDER, TRANSACTIONAL_ID_DENIED = 45, 53
PATIENCE_S = 20
TRANSACTIONAL_ATTRIBUTE = 0x10
HEADER_SIZE = 5
"""Size of the header of a flexible response: correlation id and no tagged fields."""
Producer = tuple[int, int]
"""Producer id and epoch."""


def until(request: Callable[[], dict[str, Any]], *codes: int) -> dict[str, Any]:
    """Repeats a request while its error code is one of `codes`."""
    deadline = time.monotonic() + PATIENCE_S
    while (response := request())["error_code"] in codes:
        assert time.monotonic() < deadline, response
        time.sleep(0.01)
    return response


class Coordinator:
    """The coordinator of one transactional id."""

    def __init__(self, client: WireClient) -> None:
        self.client = client
        self.id = unique("tx")
        tree = {"coordinator_keys": [self.id], "key_type": 1}
        deadline = time.monotonic() + PATIENCE_S
        while (found := client.request(FIND_COORDINATOR, 4, tree)["coordinators"][0])["error_code"] == NOT_AVAILABLE:
            assert time.monotonic() < deadline, found
            time.sleep(0.05)
        assert found["error_code"] == NONE

    def init_response(
        self, producer: Producer = (-1, -1), *, version: int = 5, timeout_ms: int = 60_000, id_: str | None = None
    ) -> dict[str, Any]:
        tree = {
            "transactional_id": self.id if id_ is None else id_,
            "transaction_timeout": timeout_ms,
            "producer_id": producer[0],
            "producer_epoch": producer[1],
        }
        return self.client.request(INIT_PRODUCER_ID, version, tree)

    def init(self, producer: Producer = (-1, -1), **more: Any) -> Producer:
        """Retries as clients do, until the coordinator accepts the producer."""
        response = until(lambda: self.init_response(producer, **more), *RETRIABLE)
        assert response["error_code"] == NONE
        return response["producer_id"], response["producer_epoch"]

    def add_codes(
        self, producer: Producer, *partitions: tuple[str, int], version: int = 3, verify_only: bool = False
    ) -> list[int]:
        topics: dict[str, list[int]] = {}
        for name, index in partitions:
            topics.setdefault(name, []).append(index)
        trees = [{"name": name, "partitions": indexes} for name, indexes in topics.items()]
        if version < 4:
            tree = {
                "v3_and_below_transactional_id": self.id,
                "v3_and_below_producer_id": producer[0],
                "v3_and_below_producer_epoch": producer[1],
                "v3_and_below_topics": trees,
            }
            results = self.client.request(ADD_PARTITIONS, version, tree)["results_by_topic_v3_and_below"]
        else:
            transaction = {
                "transactional_id": self.id,
                "producer_id": producer[0],
                "producer_epoch": producer[1],
                "verify_only": verify_only,
                "topics": trees,
            }
            response = self.client.request(ADD_PARTITIONS, version, {"transactions": [transaction]})
            assert response["error_code"] == NONE
            (result,) = response["results_by_transaction"]
            assert result["transactional_id"] == self.id
            results = result["topic_results"]
        codes = {
            (topic["name"], each["partition_index"]): each["partition_error_code"]
            for topic in results
            for each in topic["results_by_partition"]
        }
        return [codes[partition] for partition in partitions]

    def add(self, producer: Producer, *partitions: tuple[str, int], version: int = 3) -> None:
        """Retries while the previous transaction is being completed, as clients do."""
        until(lambda: {"error_code": max(self.add_codes(producer, *partitions, version=version))}, *RETRIABLE)
        assert set(self.add_codes(producer, *partitions, version=version)) == {NONE}

    def end_response(self, producer: Producer, *, commit: bool, version: int) -> dict[str, Any]:
        tree = {
            "transactional_id": self.id,
            "producer_id": producer[0],
            "producer_epoch": producer[1],
            "committed": commit,
        }
        return self.client.request(END_TXN, version, tree)

    def end_code(self, producer: Producer, *, commit: bool = True, version: int = 5) -> int:
        """Returns the error code once the previous transaction is complete."""
        response = until(lambda: self.end_response(producer, commit=commit, version=version), *RETRIABLE)
        return int(response["error_code"])

    def end(self, producer: Producer, *, commit: bool = True) -> Producer:
        """Ends a transaction with TV2 and returns the producer id and epoch of the next one."""
        response = until(lambda: self.end_response(producer, commit=commit, version=5), *RETRIABLE)
        assert response["error_code"] == NONE
        return response["producer_id"], response["producer_epoch"]

    def describe(self, id_: str | None = None) -> dict[str, Any]:
        # kio cannot decode the start time of a transaction that has not started, which is -1.
        self.client.send(DESCRIBE, 0, {"transactional_ids": [self.id if id_ is None else id_]})
        frame = self.client.receive_frame()
        (state,) = decoder(DESCRIBE, 0, "response")(memoryview(frame)[HEADER_SIZE:]).transaction_states
        return {**vars(state), "topics": [vars(each) for each in state.topics]}

    def wait_for(self, state: str) -> dict[str, Any]:
        deadline = time.monotonic() + PATIENCE_S
        while (description := self.describe())["transaction_state"] != state:
            assert time.monotonic() < deadline, description
            time.sleep(0.01)
        return description


# Records


def transactional_batch(
    producer: Producer, *values: bytes, sequence: int = 0, attributes: int = TRANSACTIONAL_ATTRIBUTE
) -> bytes:
    producer_id, epoch = producer
    return batch(values, attributes=attributes, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence)


def produce_codes(
    client: WireClient,
    transactional_id: str | None,
    batches: Mapping[tuple[str, int], bytes],
    *,
    version: int,
    **more: Any,
) -> list[int]:
    """Sends one Produce request and returns the error code of each partition."""
    topics: dict[str, list[dict[str, Any]]] = {}
    for (name, index), data in batches.items():
        topics.setdefault(name, []).append({"index": index, "records": data})
    tree = {
        "transactional_id": transactional_id,
        "acks": -1,
        "timeout": 10_000,
        "topic_data": [{"name": name, "partition_data": data} for name, data in topics.items()],
        **more,
    }
    codes = {
        (topic["name"], each["index"]): each["error_code"]
        for topic in client.request(PRODUCE, version, tree)["responses"]
        for each in topic["partition_responses"]
    }
    return [codes[partition] for partition in batches]


def committed_values(client: WireClient, topic: str, partition: int = 0) -> list[bytes]:
    """Returns what a consumer with read_committed reads, as Kafka's consumers select it."""
    values: list[bytes] = []
    aborting: set[int] = set()
    """The producers whose open transaction will be aborted."""
    offset, end = 0, last_stable_offset(client, topic, partition)
    while offset < end:
        found = fetch(client, topic, offset, partition=partition, isolation_level=1)
        assert found["error_code"] == NONE
        aborted = sorted(found["aborted_transactions"] or [], key=lambda each: int(each["first_offset"]))
        for each in split(found["records"]):
            offset = each.next_offset
            while aborted and aborted[0]["first_offset"] <= each.last_offset:
                aborting.add(aborted.pop(0)["producer_id"])
            if each.is_control:
                aborting.discard(each.producer_id)
            elif not each.is_transactional or each.producer_id not in aborting:
                values += [bytes(record.value or b"") for record in iterate_records(each)]
    return values


def last_stable_offset(client: WireClient, topic: str, partition: int = 0) -> int:
    offset: int = fetch(client, topic, 0, partition=partition, isolation_level=1)["last_stable_offset"]
    return offset
