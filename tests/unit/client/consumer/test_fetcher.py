"""The fetcher under scripted faults, and the parsing of fetch responses."""

import asyncio
import random
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any
from uuid import UUID

import pytest

from moldau.client.consumer import fetch_position as partition_reading
from moldau.client.consumer.completed_fetch import (
    READ_COMMITTED,
    READ_UNCOMMITTED,
    CompletedFetch,
    LogTruncationError,
    parse_batches,
)
from moldau.client.consumer.fetch_position import EMPTY_DURATION_MIN_S, EMPTY_RESPONSES_MIN, FetchPosition
from moldau.client.consumer.fetcher import Fetcher
from moldau.client.errors import ErrorCode
from moldau.client.net.cluster import Cluster
from moldau.client.net.metadata import PartitionInfo, TopicInfo
from moldau.client.record import TopicPartition, decode_records
from moldau.records.batch import CONTROL_MASK, TRANSACTIONAL_MASK
from moldau.records.batch_builder import build_batch, encode_batch
from moldau.records.control_records import EndTransaction
from moldau.records.record import Record
from moldau.wire.api_keys import ApiKey
from moldau.wire.codec import Message
from support.control_batches import control_batch
from support.scripted_broker import NODE, Disconnect, Hang, ReceivedRequest, ScriptedBroker, ScriptedResponse, Tree
from support.scripted_cluster import HERE, ScriptedCluster, message, run

ORDERS = TopicPartition("orders", 0)
OTHER = TopicPartition("orders", 1)
DEADLINE_S = 20


def batch(offset: int, *values: str, epoch: int = 0, **settings: Any) -> bytes:
    records = [Record(value=value.encode()) for value in values]
    return build_batch(records, base_offset=offset, leader_epoch=epoch, **settings)


def answer(received: ReceivedRequest, partitions: dict[int, dict[str, Any]] | None = None) -> Tree:
    """A fetch response with the given data of the requested partitions, and none for the others."""
    return {
        "throttle_time": 0,
        "error_code": 0,
        "responses": [
            {
                "topic": topic.topic,
                "partitions": [
                    {
                        "partition_index": each.partition,
                        "error_code": 0,
                        "high_watermark": 100,
                        "last_stable_offset": 100,
                        "log_start_offset": 0,
                        "aborted_transactions": None,
                        "records": b"",
                        **(partitions or {}).get(each.partition, {}),
                    }
                    for each in topic.partitions
                ],
            }
            for topic in received.request.topics
        ],
    }


def in_turn(
    answers: Iterable[Callable[[ReceivedRequest], ScriptedResponse]],
) -> Callable[[ReceivedRequest], ScriptedResponse]:
    left = iter(answers)
    return lambda received: next(left, lambda _: Hang)(received)


def gives(*data: bytes, **fields: Any) -> Callable[[ReceivedRequest], ScriptedResponse]:
    return lambda received: answer(received, {0: {"records": b"".join(data), **fields}})


def fails(code: ErrorCode) -> Callable[[ReceivedRequest], ScriptedResponse]:
    return lambda received: answer(received, {0: {"error_code": int(code)}})


def with_fetcher(
    test: Callable[[ScriptedBroker, Fetcher], Coroutine[Any, Any, None]],
    script: Any,
    retry_backoff_ms: int = 1,
    **settings: Any,
) -> None:
    async def main() -> None:
        async with (
            asyncio.timeout(DEADLINE_S),
            ScriptedBroker({ApiKey.FETCH: script}, topics={"orders": 2}) as broker,
            Cluster(broker.bootstrap, retry_backoff_ms=retry_backoff_ms) as cluster,
            Fetcher(cluster, **settings) as fetcher,
        ):
            await test(broker, fetcher)

    asyncio.run(main())


async def take(fetcher: Fetcher) -> CompletedFetch:
    while True:
        for fetched in await fetcher.next(1_000):
            return fetched


def values(fetched: CompletedFetch) -> list[str]:
    return [
        record.value.decode()
        for each in fetched.batches
        for record in decode_records(fetched.partition, each, fetched.position)
        if record.value is not None
    ]


# What is asked and when


@pytest.mark.parametrize(
    "failure",
    [
        lambda _: Disconnect,
        fails(ErrorCode.not_leader_or_follower),
        fails(ErrorCode.unknown_leader_epoch),
        fails(ErrorCode.fenced_leader_epoch),
        fails(ErrorCode.unknown_topic_or_partition),
        fails(ErrorCode.kafka_storage_error),
        fails(ErrorCode.unknown_server_error),
        lambda received: {**answer(received), "error_code": int(ErrorCode.unknown_server_error)},
        lambda received: {**answer(received), "error_code": int(ErrorCode.fetch_session_id_not_found)},
    ],
)
def test_a_retriable_fetch_error_is_retried_with_fresh_metadata(
    failure: Callable[[ReceivedRequest], ScriptedResponse],
) -> None:
    async def test(broker: ScriptedBroker, fetcher: Fetcher) -> None:
        fetcher.assign({ORDERS: 3})
        fetched = await take(fetcher)
        assert (fetched.error, values(fetched)) == (None, ["a", "b"])
        received = [
            each.request.topics[0].partitions[0].fetch_offset for each in broker.received_requests if each.api == 1
        ]
        assert received[:3] == [3, 3, 3]
        assert broker.count(ApiKey.METADATA) > 1

    with_fetcher(test, in_turn([failure, failure, gives(batch(3, "a", "b"))]))


def test_a_leader_named_beside_an_error_gets_the_next_fetch_at_once() -> None:
    def moved(received: ReceivedRequest) -> ScriptedResponse:
        fields = {"error_code": 6, "current_leader": {"leader_id": NODE, "leader_epoch": 9}}
        return answer(received, {0: fields})

    async def test(broker: ScriptedBroker, fetcher: Fetcher) -> None:
        fetcher.assign({ORDERS: 0})
        await take(fetcher)
        epochs = [
            each.request.topics[0].partitions[0].current_leader_epoch
            for each in broker.received_requests
            if each.api == 1
        ]
        assert epochs[:2] == [0, 9]

    with_fetcher(test, in_turn([moved, gives(batch(0, "a"))]), retry_backoff_ms=60_000)


def test_a_leader_gets_the_next_fetch_only_after_its_response_was_taken() -> None:
    async def test(broker: ScriptedBroker, fetcher: Fetcher) -> None:
        fetcher.assign({ORDERS: 0, OTHER: 0})
        while fetcher.high_watermark(ORDERS) < 0:
            await asyncio.sleep(0)
        for _ in range(20):
            await asyncio.sleep(0)
        assert broker.count(ApiKey.FETCH) == 1
        assert fetcher.position(ORDERS) == 0
        assert values(await take(fetcher)) == ["a"]
        assert fetcher.position(ORDERS) == 1
        while broker.count(ApiKey.FETCH) < 2:
            await asyncio.sleep(0)
        again = {
            each.partition: each.fetch_offset for each in broker.received_requests[-1].request.topics[0].partitions
        }
        assert again == {0: 1, 1: 0}

    with_fetcher(test, in_turn([gives(batch(0, "a"))]))


def test_partitions_that_brought_something_go_to_the_end_of_the_line() -> None:
    async def test(broker: ScriptedBroker, fetcher: Fetcher) -> None:
        fetcher.assign({ORDERS: 0, OTHER: 0})
        await take(fetcher)
        while broker.count(ApiKey.FETCH) < 2:
            await asyncio.sleep(0)
        assert [each.partition for each in broker.received_requests[-1].request.topics[0].partitions] == [1, 0]

    with_fetcher(test, in_turn([gives(batch(0, "a"))]))


def test_a_response_to_a_fetch_before_a_seek_is_dropped() -> None:
    release = asyncio.Event()

    async def slowly(received: ReceivedRequest) -> ScriptedResponse:
        offset = received.request.topics[0].partitions[0].fetch_offset
        if offset == 0:
            await release.wait()
        return gives(batch(offset, f"at {offset}"))(received)

    async def test(broker: ScriptedBroker, fetcher: Fetcher) -> None:
        fetcher.assign({ORDERS: 0})
        while not broker.count(ApiKey.FETCH):
            await asyncio.sleep(0)
        fetcher.seek(ORDERS, 50)
        release.set()
        assert values(await take(fetcher)) == ["at 50"]

    with_fetcher(test, slowly)


def test_a_removed_partition_returns_nothing() -> None:
    async def test(broker: ScriptedBroker, fetcher: Fetcher) -> None:
        fetcher.assign({ORDERS: 0, OTHER: 0})
        while fetcher.high_watermark(ORDERS) < 0:
            await asyncio.sleep(0)
        fetcher.remove([ORDERS])
        assert await fetcher.next(20) == []
        assert fetcher.partitions == [OTHER]

    with_fetcher(test, in_turn([gives(batch(0, "a"))]))


@pytest.mark.parametrize("code", [ErrorCode.offset_out_of_range, ErrorCode.topic_authorization_failed])
def test_a_fatal_fetch_error_is_reported_once_until_a_seek(code: ErrorCode) -> None:
    async def test(broker: ScriptedBroker, fetcher: Fetcher) -> None:
        fetcher.assign({ORDERS: 7})
        fetched = await take(fetcher)
        assert fetched.error is not None
        assert fetched.error.code is code
        assert (fetched.position, fetched.next_offset, list(fetched.batches)) == (7, 7, [])
        assert await fetcher.next(20) == []
        fetcher.seek(ORDERS, 0)
        assert values(await take(fetcher)) == ["a"]

    with_fetcher(test, in_turn([fails(code), gives(batch(0, "a"))]))


def test_a_log_truncated_below_the_position_is_reported() -> None:
    async def test(broker: ScriptedBroker, fetcher: Fetcher) -> None:
        broker.leader_epoch = 4
        fetcher.assign({ORDERS: 0})
        assert values(await take(fetcher)) == ["a", "b"]
        fetched = await take(fetcher)
        assert isinstance(fetched.error, LogTruncationError)
        assert fetched.error.code is ErrorCode.offset_out_of_range
        assert "was truncated to 1" in str(fetched.error)
        assert (fetched.error.offset, fetched.error.leader_epoch) == (1, 3)
        assert broker.received_requests[-1].request.topics[0].partitions[0].last_fetched_epoch == 4

    diverging = {"diverging_epoch": {"epoch": 3, "end_offset": 1}}
    with_fetcher(test, in_turn([gives(batch(0, "a", "b", epoch=4)), gives(**diverging)]))


def last_epochs(broker: ScriptedBroker) -> list[int]:
    """What each fetch said of the batch before its position."""
    return [
        each.request.topics[0].partitions[0].last_fetched_epoch
        for each in broker.received_requests
        if each.api is ApiKey.FETCH
    ]


@pytest.mark.parametrize("end_offset", [5, 9])
def test_a_log_that_parts_behind_the_position_is_read_on(end_offset: int) -> None:
    """The epoch of a leader that wrote nothing is not in the log, though it was returned as that of the log end."""

    async def test(broker: ScriptedBroker, fetcher: Fetcher) -> None:
        broker.leader_epoch = 4
        fetcher.add({ORDERS: 5}, leader_epochs={ORDERS: 3})
        fetched = await take(fetcher)
        assert (fetched.error, values(fetched), fetched.leader_epoch) == (None, ["a"], 4)
        assert last_epochs(broker)[:2] == [3, 2]

    diverging = {"diverging_epoch": {"epoch": 2, "end_offset": end_offset}}
    with_fetcher(test, in_turn([gives(**diverging), gives(batch(5, "a", epoch=4))]))


def test_a_completed_fetch_has_the_leader_epoch_of_a_skipped_last_batch() -> None:
    async def test(broker: ScriptedBroker, fetcher: Fetcher) -> None:
        broker.leader_epoch = 4
        fetcher.assign({ORDERS: 0})
        fetched = await take(fetcher)
        assert (values(fetched), fetched.next_offset, fetched.leader_epoch) == (["a"], 2, 4)

    with_fetcher(test, in_turn([gives(batch(0, "a", epoch=3), marker(1, 5, commit=True, epoch=4))]))


class Moved(ScriptedCluster):
    """A cluster whose partition has this leader epoch; `received` records the epochs in the fetch requests."""

    def __init__(self, leader_epoch: int, topic_id: int = 1) -> None:
        super().__init__(request_timeout_ms=30_000)
        self.log = [b"a", b"b"]
        self.received_requests: list[int] = []
        self.stale = 0
        self.tell(leader_epoch, topic_id)

    def tell(self, leader_epoch: int, topic_id: int = 1) -> None:
        partitions = (PartitionInfo(0, 1, leader_epoch, (1,), (1,)),)
        self._known = {"t": TopicInfo("t", UUID(int=topic_id), partitions)}

    def refresh_soon(self) -> None:
        self.stale += 1

    async def _fetch(self, tree: Any) -> Any:
        self.received_requests.append(tree["topics"][0]["partitions"][0]["last_fetched_epoch"])
        return await super()._fetch(tree)


def test_a_leader_older_than_the_last_batch_is_not_fetched_from() -> None:
    async def scenario() -> None:
        cluster = Moved(leader_epoch=2)
        async with Fetcher(cluster) as fetcher:
            fetcher.add({HERE: 1}, leader_epochs={HERE: 3})
            await asyncio.sleep(20)
            assert cluster.received_requests == []
            assert 0 < cluster.stale <= 20_000 / cluster.retry_backoff_ms + 1
            cluster.tell(leader_epoch=3)
            assert values(await take(fetcher)) == ["b"]
            assert cluster.received_requests[0] == 3

    run(scenario)


def test_the_wait_for_a_newer_leader_is_limited() -> None:
    """The position may come from a deleted topic of the same name."""

    async def scenario() -> None:
        cluster = Moved(leader_epoch=2)
        async with Fetcher(cluster) as fetcher:
            fetcher.add({HERE: 1}, leader_epochs={HERE: 3})
            assert values(await take(fetcher)) == ["b"]
            assert 30 <= asyncio.get_running_loop().time() < 31
            assert cluster.received_requests[0] == -1

    run(scenario)


def test_a_broker_without_leader_epochs_is_fetched_from_at_once() -> None:
    async def scenario() -> None:
        cluster = Moved(leader_epoch=-1)
        async with Fetcher(cluster) as fetcher:
            fetcher.add({HERE: 1}, leader_epochs={HERE: 3})
            assert values(await take(fetcher)) == ["b"]
            assert asyncio.get_running_loop().time() < 1

    run(scenario)


def test_epochs_of_a_topic_are_not_compared_with_those_of_its_successor() -> None:
    reading = FetchPosition(7, leader_epoch=5)
    old, new = (
        TopicInfo("t", UUID(int=number), (PartitionInfo(0, 1, epoch, (1,), (1,)),))
        for number, epoch in ((1, 5), (2, 0))
    )
    assert not reading.awaits_newer_leader(old, 0, 0.0, 30.0)
    assert reading.leader_epoch == 5
    assert not reading.awaits_newer_leader(new, 0, 1.0, 30.0)
    assert reading.leader_epoch == -1


def test_a_corrupt_batch_is_reported_after_the_valid_ones() -> None:
    damaged = bytearray(batch(1, "b"))
    damaged[-2] ^= 1

    async def test(broker: ScriptedBroker, fetcher: Fetcher) -> None:
        fetcher.assign({ORDERS: 0})
        fetched = await take(fetcher)
        assert values(fetched) == ["a"]
        assert fetched.error is not None
        assert fetched.error.code is ErrorCode.corrupt_message
        assert fetched.next_offset == 1
        assert await fetcher.next(20) == []

    with_fetcher(test, in_turn([gives(batch(0, "a"), bytes(damaged), batch(2, "c"))]))


def test_fetches_are_limited_to_the_free_buffer() -> None:
    async def test(broker: ScriptedBroker, fetcher: Fetcher) -> None:
        fetcher.assign({ORDERS: 0})
        await take(fetcher)
        while broker.count(ApiKey.FETCH) < 2:
            await asyncio.sleep(0)
        assert broker.received_requests[-1].request.max_bytes == 5_000

    with_fetcher(
        test, in_turn([gives(batch(0, "a"))]), max_bytes=8_000, buffered_bytes_max=5_000, partition_max_bytes=1_000
    )


def test_buffered_batches_of_a_paused_partition_do_not_starve_others() -> None:
    async def test(broker: ScriptedBroker, fetcher: Fetcher) -> None:
        fetcher.assign({ORDERS: 0, OTHER: 0})
        while fetcher.high_watermark(ORDERS) < 0:
            await asyncio.sleep(0)
        fetcher.pause([ORDERS])
        fetched = await take(fetcher)
        assert fetched.partition == OTHER
        assert broker.received_requests[-1].request.max_bytes == 1_000
        fetcher.resume([ORDERS])
        assert values(await take(fetcher)) == ["a" * 2_000]

    with_fetcher(
        test,
        in_turn([gives(batch(0, "a" * 2_000)), lambda received: answer(received, {1: {"records": batch(0, "b")}})]),
        max_bytes=2_000,
        buffered_bytes_max=2_000,
        partition_max_bytes=1_000,
    )


def test_a_negative_offset_is_rejected() -> None:
    async def test(broker: ScriptedBroker, fetcher: Fetcher) -> None:
        with pytest.raises(ValueError, match="orders-0 cannot be read from offset -1"):
            fetcher.assign({ORDERS: -1})

    with_fetcher(test, in_turn([]))


# Bounded reads


def fetches(broker: ScriptedBroker) -> list[dict[int, int]]:
    """Returns the offsets by partition of each fetch request."""
    return [
        {part.partition: part.fetch_offset for topic in each.request.topics for part in topic.partitions}
        for each in broker.received_requests
        if each.api is ApiKey.FETCH
    ]


async def read_all(fetcher: Fetcher) -> list[CompletedFetch]:
    taken: list[CompletedFetch] = []
    while not fetcher.is_finished:
        taken += await fetcher.next(1_000)
    return taken


async def a_while() -> None:
    """Long enough for a fetch that should not be to reach the broker."""
    for _ in range(50):
        await asyncio.sleep(0)
    await asyncio.sleep(0.02)


def test_a_partition_read_to_its_end_is_not_fetched_again() -> None:
    async def test(broker: ScriptedBroker, fetcher: Fetcher) -> None:
        fetcher.assign({ORDERS: 0, OTHER: 4}, until={ORDERS: 2, OTHER: 6})
        taken = await read_all(fetcher)
        assert [(each.partition, values(each), each.next_offset) for each in taken] == [
            (ORDERS, ["a", "b"], 2),
            (OTHER, ["c"], 5),
            (OTHER, ["d"], 6),
        ]
        assert (fetcher.position(ORDERS), fetcher.position(OTHER)) == (2, 6)
        await a_while()
        assert fetches(broker) == [{0: 0, 1: 4}, {1: 5}]

    both = {0: {"records": batch(0, "a", "b")}, 1: {"records": batch(4, "c")}}
    with_fetcher(
        test,
        in_turn(
            [
                lambda received: answer(received, both),
                lambda received: answer(received, {1: {"records": batch(5, "d")}}),
            ]
        ),
    )


def test_a_bounded_read_returns_the_batch_around_its_end_and_none_after() -> None:
    damaged = bytearray(batch(4, "e"))
    damaged[-2] ^= 1

    async def test(broker: ScriptedBroker, fetcher: Fetcher) -> None:
        fetcher.assign({ORDERS: 0}, until={ORDERS: 3})
        (fetched,) = await read_all(fetcher)
        assert [each.base_offset for each in fetched.batches] == [0, 2]
        assert (fetched.next_offset, fetched.error) == (3, None)

    with_fetcher(test, in_turn([gives(batch(0, "a", "b"), batch(2, "c", "d"), bytes(damaged))]))


def test_an_empty_bounded_read_sends_no_fetch() -> None:
    async def test(broker: ScriptedBroker, fetcher: Fetcher) -> None:
        fetcher.assign({ORDERS: 3, OTHER: 9}, until={ORDERS: 3, OTHER: 5})
        assert fetcher.is_finished
        await a_while()
        assert fetches(broker) == []

    with_fetcher(test, in_turn([]))


@pytest.mark.parametrize("isolation_level", [READ_UNCOMMITTED, READ_COMMITTED])
def test_a_gap_before_the_end_is_skipped_after_repeated_empty_responses(
    isolation_level: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(partition_reading, "EMPTY_DURATION_MIN_S", 0)

    async def test(broker: ScriptedBroker, fetcher: Fetcher) -> None:
        fetcher.assign({ORDERS: 0}, until={ORDERS: 10})
        taken = await read_all(fetcher)
        assert [(values(each), each.position, each.next_offset, each.is_empty) for each in taken] == [
            (["a"], 0, 1, False),
            ([], 1, 10, True),
        ]
        await a_while()
        assert fetches(broker) == [{0: 0}, *[{0: 1}] * EMPTY_RESPONSES_MIN]
        # The high watermark has passed the end, so the fetch does not wait at the broker.
        waits_ms = [each.request.max_wait for each in broker.received_requests if each.api is ApiKey.FETCH]
        assert waits_ms == [0, 0, *[500] * (EMPTY_RESPONSES_MIN - 1)]

    with_fetcher(
        test, in_turn([gives(batch(0, "a")), *[gives()] * EMPTY_RESPONSES_MIN]), isolation_level=isolation_level
    )


class SlowStorage(ScriptedCluster):
    """A leader that cannot read its records for a while and returns empty responses until then."""

    def __init__(self, slow_s: float, answer_s: float) -> None:
        super().__init__()
        self.log = [b"a", b"b", b"c"]
        self.slow_s, self.answer_s = slow_s, answer_s

    async def _fetch(self, tree: Any) -> Any:
        if asyncio.get_running_loop().time() < self.slow_s:
            await asyncio.sleep(self.answer_s)
            return self._fetched(b"")
        return await super()._fetch(tree)


@pytest.mark.parametrize(("slow_s", "answer_s"), [(0.01, 0), (0.6, 0), (1.9, 0), (1.9, 0.5), (8, 2.5)])
def test_empty_responses_for_a_while_lose_no_records(slow_s: float, answer_s: float) -> None:
    async def scenario() -> None:
        cluster = SlowStorage(slow_s, answer_s)
        async with Fetcher(cluster) as fetcher:
            fetcher.assign({HERE: 0}, until={HERE: 3})
            taken = await read_all(fetcher)
            assert [(values(each), each.next_offset, each.is_empty) for each in taken] == [(["a", "b", "c"], 3, False)]
            assert cluster.fetches < 20

    run(scenario)


def test_only_consecutive_empty_responses_count() -> None:
    """Of a log that loses records and gets them again nothing is known yet."""
    reading = FetchPosition(0, until=5)
    assert not any(reading.record_empty_response(at / 10) for at in range(EMPTY_RESPONSES_MIN + 5))
    assert reading.record_empty_response(EMPTY_DURATION_MIN_S)
    reading.empty_responses = 0
    assert not reading.record_empty_response(100.0)
    assert not reading.is_end_available


@pytest.mark.parametrize(
    ("isolation_level", "marks"),
    [
        (READ_UNCOMMITTED, {"high_watermark": 9, "last_stable_offset": 9}),
        (READ_COMMITTED, {"high_watermark": 100, "last_stable_offset": 9}),
    ],
)
def test_a_bounded_read_waits_for_the_high_watermark(isolation_level: int, marks: Tree) -> None:
    async def test(broker: ScriptedBroker, fetcher: Fetcher) -> None:
        fetcher.assign({ORDERS: 9}, until={ORDERS: 10})
        taken = await read_all(fetcher)
        assert [(values(each), each.next_offset) for each in taken] == [(["j"], 10)]
        received = [each.request.max_wait for each in broker.received_requests if each.api is ApiKey.FETCH]
        assert received == [0, 500, 500]

    with_fetcher(test, in_turn([gives(**marks), gives(**marks), gives(batch(9, "j"))]), isolation_level=isolation_level)


def test_an_empty_partition_behind_full_ones_is_not_taken_as_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    """A byte limit leaves the last partitions of a response empty, whatever is in their logs."""
    monkeypatch.setattr(partition_reading, "EMPTY_DURATION_MIN_S", 0)
    monkeypatch.setattr(partition_reading, "EMPTY_RESPONSES_MIN", 1)

    async def test(broker: ScriptedBroker, fetcher: Fetcher) -> None:
        fetcher.assign({ORDERS: 0, OTHER: 0}, until={ORDERS: 5, OTHER: 5})
        taken = await read_all(fetcher)
        assert [(each.partition, values(each), each.next_offset) for each in taken] == [
            (ORDERS, ["a"], 1),
            (OTHER, ["b"], 1),
            (ORDERS, [], 5),
            (OTHER, [], 5),
        ]
        assert fetches(broker)[:3] == [{0: 0, 1: 0}, {1: 0, 0: 1}, {0: 1, 1: 1}]

    with_fetcher(
        test,
        in_turn(
            [
                gives(batch(0, "a")),
                lambda received: answer(received, {1: {"records": batch(0, "b")}}),
                lambda received: answer(received),
            ]
        ),
    )


def test_a_partition_missing_from_the_response_is_fetched_again() -> None:
    def throttled(received: ReceivedRequest) -> ScriptedResponse:
        return {**answer(received), "responses": []}

    async def test(broker: ScriptedBroker, fetcher: Fetcher) -> None:
        fetcher.assign({ORDERS: 0}, until={ORDERS: 1})
        assert [values(each) for each in await read_all(fetcher)] == [["a"]]

    with_fetcher(test, in_turn([throttled, gives(batch(0, "a"))]))


def test_a_seek_keeps_the_end_and_an_end_of_its_own_needs_an_offset() -> None:
    async def test(broker: ScriptedBroker, fetcher: Fetcher) -> None:
        fetcher.assign({ORDERS: 0}, until={ORDERS: 2})
        await read_all(fetcher)
        fetcher.seek(ORDERS, 1)
        assert not fetcher.is_finished
        assert [values(each) for each in await read_all(fetcher)] == [["b"]]
        with pytest.raises(ValueError, match="orders-1 has an end offset but no start offset"):
            fetcher.add({ORDERS: 0}, until={OTHER: 4})

    with_fetcher(test, lambda received: gives(batch(0, "a", "b"))(received))


async def waits_for_ever_at_100(received: ReceivedRequest) -> ScriptedResponse:
    offset = received.request.topics[0].partitions[0].fetch_offset
    if offset == 100:
        await asyncio.Event().wait()
    return gives(batch(offset, f"at {offset}"))(received)


async def waits_at_the_broker(broker: ScriptedBroker, fetcher: Fetcher) -> None:
    fetcher.assign({ORDERS: 100})
    while not broker.count(ApiKey.FETCH):
        await asyncio.sleep(0)


@pytest.mark.parametrize("leave", [lambda it: it.assign({ORDERS: 50}), lambda it: it.seek(ORDERS, 50)])
def test_an_abandoned_long_poll_does_not_block_later_fetches(leave: Callable[[Fetcher], None]) -> None:
    async def test(broker: ScriptedBroker, fetcher: Fetcher) -> None:
        await waits_at_the_broker(broker, fetcher)
        leave(fetcher)
        assert (await take(fetcher)).position == 50
        assert len({each.connection for each in broker.received_requests if each.api is ApiKey.FETCH}) == 2

    with_fetcher(test, waits_for_ever_at_100)


def test_the_long_poll_of_a_closed_fetcher_does_not_block_the_next_one() -> None:
    async def main() -> None:
        async with (
            asyncio.timeout(DEADLINE_S),
            ScriptedBroker({ApiKey.FETCH: waits_for_ever_at_100}, topics={"orders": 2}) as broker,
            Cluster(broker.bootstrap, retry_backoff_ms=1) as cluster,
        ):
            async with Fetcher(cluster) as first:
                await waits_at_the_broker(broker, first)
            async with Fetcher(cluster) as second:
                second.assign({ORDERS: 50})
                assert (await take(second)).position == 50

    asyncio.run(main())


def test_a_long_poll_that_is_wanted_for_one_of_its_partitions_stays() -> None:
    async def test(broker: ScriptedBroker, fetcher: Fetcher) -> None:
        fetcher.assign({ORDERS: 0, OTHER: 0})
        while not broker.count(ApiKey.FETCH):
            await asyncio.sleep(0)
        fetcher.remove([ORDERS])
        release.set()
        assert (await take(fetcher)).partition == OTHER
        assert broker.connections == connections

    connections = 2
    release = asyncio.Event()

    async def slowly(received: ReceivedRequest) -> ScriptedResponse:
        await release.wait()
        return answer(received, {1: {"records": batch(0, "a")}})

    with_fetcher(test, slowly)


def test_of_two_leaders_the_first_response_wins() -> None:
    """A partition moves while the old leader's response is in flight: no record may be lost or returned twice."""

    class Moving(ScriptedCluster):
        leader = 1

        def known_leader_of(self, partition: TopicPartition) -> int:
            return self.leader

        async def call(self, node_id: int | None, api: ApiKey, tree: Any, **_: Any) -> Message:
            offset = tree["topics"][0]["partitions"][0]["fetch_offset"]
            data = build_batch([Record(value=b"%d" % (offset + n)) for n in range(2)], base_offset=offset)
            await asyncio.sleep(0.3 if node_id == 1 else 0.1)
            found = message(self._fetched(data))
            assert isinstance(found, Message)
            return found

    async def scenario() -> None:
        cluster = Moving()
        async with Fetcher(cluster) as fetcher:
            here = TopicPartition("t", 0)
            fetcher.assign({here: 0}, until={here: 6})
            await asyncio.sleep(0.05)
            cluster.leader = 2
            fetcher.resume([here])
            await asyncio.sleep(1)
            read = [value for each in await read_all(fetcher) for value in values(each)]
            assert read == ["0", "1", "2", "3", "4", "5"]

    run(scenario)


def test_an_invalid_fetch_response_is_reported_once() -> None:
    class Senseless(ScriptedCluster):
        async def call(self, *_: Any, **__: Any) -> Message:
            self.fetches += 1
            await asyncio.sleep(0.01)
            return Message(error_code=0)

    async def scenario() -> None:
        cluster = Senseless()
        async with Fetcher(cluster) as fetcher:
            fetcher.assign({TopicPartition("t", 0): 0})
            error = (await take(fetcher)).error
            assert error is not None
            assert "the response of node 1: AttributeError" in str(error)
            await asyncio.sleep(1)
            assert cluster.fetches == 1

    run(scenario)


def test_a_fetch_cancelled_before_its_start_releases_its_reservation() -> None:
    async def test(broker: ScriptedBroker, fetcher: Fetcher) -> None:
        fetcher.assign({ORDERS: 0})
        fetcher.seek(ORDERS, 7)
        assert (await take(fetcher)).position == 7
        assert fetches(broker)[0] == {0: 7}

    with_fetcher(test, in_turn([gives(batch(7, "a"))]))


# What is in an answer


def contents(
    data: bytes, position: int = 0, isolation: int = READ_UNCOMMITTED, aborted: Sequence[Message] = ()
) -> tuple[list[int], int, ErrorCode | None]:
    found = parse_batches(ORDERS, Message(records=memoryview(data), aborted_transactions=aborted), position, isolation)
    code = None if found.error is None else found.error.code
    return [each.base_offset for each in found.batches], found.next_offset, code


def test_a_truncated_last_batch_is_left_for_the_next_fetch() -> None:
    data = batch(0, "a") + batch(1, "b")
    for end in range(len(batch(0, "a")), len(data)):
        assert contents(data[:end]) == ([0], 1, None)
    assert contents(data) == ([0, 1], 2, None)


def test_a_truncated_first_batch_is_an_error() -> None:
    assert contents(batch(0, "a" * 100)[:-1]) == ([], 0, ErrorCode.message_too_large)


def test_batches_below_the_position_are_left_out_but_not_the_one_around_it() -> None:
    data = batch(0, "a", "b") + batch(2, "c", "d") + batch(4, "e")
    assert contents(data, position=3) == ([2, 4], 5, None)


@pytest.mark.parametrize("size", [-13, -12, 0, 5, 48])
def test_a_size_that_cannot_be_is_damage(size: int) -> None:
    data = bytearray(batch(0, "a"))
    data[8:12] = size.to_bytes(4, "big", signed=True)
    assert contents(bytes(data)) == ([], 0, ErrorCode.corrupt_message)


def marker(offset: int, producer_id: int, *, commit: bool, epoch: int = 0) -> bytes:
    return control_batch(
        EndTransaction(commit, 0),
        timestamp=0,
        base_offset=offset,
        leader_epoch=epoch,
        producer_id=producer_id,
        producer_epoch=0,
    )


def test_control_records_are_passed_over() -> None:
    assert contents(batch(0, "a") + marker(1, 5, commit=True)) == ([0], 2, None)
    assert contents(marker(0, 5, commit=True)) == ([], 1, None)


def test_aborted_transactions_are_visible_to_read_uncommitted_only() -> None:
    one = {"producer_id": 1, "producer_epoch": 0, "base_sequence": 0, "transactional": True}
    two = {**one, "producer_id": 2}
    data = b"".join(
        [
            batch(0, "aborted", **one),
            batch(1, "committed", **two),
            batch(2, "plain"),
            batch(3, "aborted too", **one),
            marker(4, 1, commit=False),
            batch(5, "the next one", **one),
            marker(6, 2, commit=True),
            marker(7, 1, commit=True),
        ]
    )
    aborted = [Message(producer_id=1, first_offset=0)]
    assert contents(data, isolation=READ_COMMITTED, aborted=aborted) == ([1, 2, 5], 8, None)
    assert contents(data) == ([0, 1, 2, 3, 5], 8, None)


def test_nothing_is_returned_if_aborted_transactions_cannot_be_determined() -> None:
    one = {"producer_id": 1, "producer_epoch": 0, "base_sequence": 0, "transactional": True}
    unreadable = build_batch([Record(key=b"\0", value=b"")], base_offset=1, control=True, **one)
    aborted = [Message(producer_id=1, first_offset=0)]
    data = batch(0, "aborted", **one) + unreadable
    assert contents(data, isolation=READ_COMMITTED, aborted=aborted) == ([], 0, ErrorCode.corrupt_message)


def test_the_list_of_aborted_transactions_needs_no_order() -> None:
    one = {"producer_id": 1, "producer_epoch": 0, "base_sequence": 0, "transactional": True}
    two = {**one, "producer_id": 2}
    data = b"".join(
        [
            batch(0, "aborted", **one),
            marker(1, 1, commit=False),
            batch(2, "committed", **one),
            marker(3, 1, commit=True),
            batch(4, "aborted", **two),
            batch(5, "aborted", **one),
            marker(6, 1, commit=False),
            marker(7, 2, commit=False),
        ]
    )
    aborted = [Message(producer_id=pid, first_offset=first) for pid, first in ((1, 5), (2, 4), (1, 0))]
    assert contents(data, isolation=READ_COMMITTED, aborted=aborted) == ([2], 8, None)


def test_batches_that_compaction_has_emptied_are_passed_over() -> None:
    one = {"producer_id": 1, "producer_epoch": 0, "base_sequence": 0, "transactional": True}
    emptied_marker = encode_batch(
        b"",
        base_offset=4,
        leader_epoch=0,
        attributes=TRANSACTIONAL_MASK | CONTROL_MASK,
        last_offset_delta=0,
        base_timestamp=0,
        max_timestamp=0,
        producer_id=1,
        producer_epoch=0,
        base_sequence=-1,
        count=0,
    )
    data = batch(2, "aborted", **one) + marker(3, 1, commit=False) + emptied_marker + batch(5, "committed", **one)
    aborted = [Message(producer_id=1, first_offset=0)]
    assert contents(data, isolation=READ_COMMITTED, aborted=aborted) == ([5], 6, None)


@pytest.mark.parametrize("seed", range(50))
def test_read_committed_reads_exactly_the_committed_batches(seed: int) -> None:
    """Random interleaved transactions, read from a random position of a log from which batches were compacted."""
    generator = random.Random(seed)
    log: list[tuple[int, int, bytes, bool]] = []
    """Offset, producer id (-1 for a plain batch), batch, and whether it is a marker."""
    open_since: dict[int, int] = {}
    aborted: list[tuple[int, int, int]] = []
    """Producer id, first offset and marker of each aborted transaction."""
    committed: dict[int, int] = {}
    """The producer id of each committed batch."""
    pending: dict[int, list[int]] = {}
    for offset in range(60):
        pid = generator.randrange(-1, 4)
        if pid >= 0 and pid in open_since and generator.random() < 0.3:
            commit = generator.random() < 0.5
            log.append((offset, pid, marker(offset, pid, commit=commit), True))
            first, offsets = open_since.pop(pid), pending.pop(pid)
            if commit:
                committed.update(dict.fromkeys(offsets, pid))
            else:
                aborted.append((pid, first, offset))
        elif pid >= 0:
            fields = {"producer_id": pid, "producer_epoch": 0, "base_sequence": offset, "transactional": True}
            log.append((offset, pid, batch(offset, "x", **fields), False))
            open_since.setdefault(pid, offset)
            pending.setdefault(pid, []).append(offset)
        else:
            log.append((offset, pid, batch(offset, "x"), False))
            committed[offset] = pid
    last_stable_offset = min([60, *open_since.values()])
    position = generator.randrange(max(1, last_stable_offset))
    kept = [each for each in log if position <= each[0] < last_stable_offset and (each[3] or generator.random() < 0.8)]
    visible = [Message(producer_id=pid, first_offset=first) for pid, first, last in aborted if last >= position]
    generator.shuffle(visible)
    data = b"".join(each[2] for each in kept)
    found, next_offset, error = contents(data, position, READ_COMMITTED, visible)
    assert error is None
    assert found == [each[0] for each in kept if each[0] in committed]
    assert next_offset == (kept[-1][0] + 1 if kept else position)
