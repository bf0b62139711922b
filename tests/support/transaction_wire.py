"""A transactional producer's requests to its coordinator, as raw messages."""

import time
from collections.abc import Callable
from typing import Any

from moldau.wire.codec import decoder
from support.topics import unique
from support.wire import INIT_PRODUCER_ID, WireClient

FIND_COORDINATOR, ADD_PARTITIONS, ADD_OFFSETS, END_TXN, WRITE_MARKERS, DESCRIBE, LIST = 10, 24, 25, 26, 27, 65, 66
NONE, UNKNOWN_TOPIC, LOADING, NOT_AVAILABLE, NOT_COORDINATOR, TOPIC_DENIED, INVALID_REQUEST = 0, 3, 14, 15, 16, 29, 42
INVALID_EPOCH, INVALID_STATE, INVALID_MAPPING, INVALID_TIMEOUT, CONCURRENT, NOT_ATTEMPTED = 47, 48, 49, 50, 51, 55
FENCED, ID_NOT_FOUND, ABORTABLE, INVALID_REGEX = 90, 105, 120, 128
RETRIABLE = (LOADING, NOT_AVAILABLE, NOT_COORDINATOR, CONCURRENT)
PATIENCE_S = 20
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
