"""Fetch: sessions, byte limits, delayed fetches and epochs, with the handler of a real in-memory node."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from moldau.errors import FetchSessionIdNotFoundError, FetchSessionTopicIdError, InvalidFetchSessionEpochError
from moldau.handlers.a01_fetch import fetch
from moldau.metadata.image import PartitionRegistration
from moldau.partitions.partition import Partition
from moldau.records.batch import Batch
from moldau.records.batch_builder import build_batch
from moldau.records.record import Record
from moldau.server.api import ClientConnection, RequestContext
from moldau.server.fetch_session import EVICTION_MIN_MS, FetchPartition, FetchSessionCache
from moldau.server.partition_watcher import PartitionKey
from moldau.testing import Broker
from moldau.wire.api_keys import ApiKey
from support.admin_broker import decoded_request


def client() -> ClientConnection:
    return ClientConnection("127.0.0.1:5", "PLAINTEXT")


def wanted(partition: int = 0, offset: int = 0) -> FetchPartition:
    return FetchPartition("orders", None, partition, offset, 1000, -1, -1)


def named(*partitions: FetchPartition) -> dict[PartitionKey, FetchPartition]:
    return {each.key: each for each in partitions}


# The cache of sessions


def test_a_session_continues_only_with_the_next_epoch() -> None:
    sessions = FetchSessionCache(random.Random(1), 10)
    session = sessions.create(client(), named(wanted(0), wanted(1)), 0, 0, uses_topic_ids=False)
    assert session is not None
    resumed = sessions.continue_session(
        session.session_id, 1, named(wanted(1, 5)), [("orders", 0)], 0, uses_topic_ids=False
    )
    assert [(each.partition, each.offset) for each in resumed.partitions.values()] == [(1, 5)]
    assert resumed.epoch == 2
    with pytest.raises(InvalidFetchSessionEpochError):
        sessions.continue_session(session.session_id, 1, {}, [], 0, uses_topic_ids=False)
    with pytest.raises(FetchSessionTopicIdError):
        sessions.continue_session(session.session_id, 2, {}, [], 0, uses_topic_ids=True)
    with pytest.raises(FetchSessionIdNotFoundError):
        sessions.continue_session(session.session_id + 1, 1, {}, [], 0, uses_topic_ids=False)


def test_a_new_session_replaces_the_earlier_one_of_its_connection() -> None:
    sessions = FetchSessionCache(random.Random(1), 10)
    connection = client()
    for _ in range(100):
        assert sessions.create(connection, named(wanted()), 0, 0, uses_topic_ids=False) is not None
    assert len(sessions) == 1
    sessions.remove_all(connection)
    assert len(sessions) == 0


def test_a_full_cache_evicts_only_idle_sessions() -> None:
    sessions = FetchSessionCache(random.Random(1), 2)
    assert sessions.create(client(), named(wanted()), 0, 0, uses_topic_ids=False) is not None
    assert sessions.create(client(), named(wanted()), 0, 10, uses_topic_ids=False) is not None
    assert sessions.create(client(), named(wanted()), 0, 20, uses_topic_ids=False) is None
    assert sessions.create(client(), named(wanted()), 0, EVICTION_MIN_MS, uses_topic_ids=False) is not None
    assert len(sessions) == 2


def test_a_fetch_without_partitions_gets_no_session() -> None:
    assert FetchSessionCache(random.Random(1), 2).create(client(), {}, 0, 0, uses_topic_ids=False) is None


# The request


class Fetcher:
    """Fetches over one connection."""

    def __init__(self, broker: Broker, version: int = 12) -> None:
        self._broker = broker.node.broker
        self._session = RequestContext(client(), version, "test")

    def close(self) -> None:
        self._session.connection.close_callbacks.close()

    @property
    def read_committed_client_count(self) -> int:
        return len(self._broker.isolation_levels.read_committed_clients())

    def partition(self, index: int) -> Partition:
        found = self._broker.replica_manager.get("orders", index)
        assert found is not None
        return found

    async def append(self, partition: int, *values: bytes) -> None:
        found = self.partition(partition)
        appended = await found.append([Batch(build_batch([Record(value=value) for value in values]))])
        commit_future = found.commit_future(appended.next_offset, appended.leader_epoch, acks_all=True)
        await (asyncio.sleep(0) if commit_future is None else commit_future)

    async def fetch(
        self,
        offsets: dict[int, int],
        *,
        session: tuple[int, int] = (0, -1),
        max_wait: int = 0,
        min_bytes: int = 1,
        max_bytes: int = 1_000_000,
        partition_max_bytes: int = 1_000_000,
        forgotten: list[int] | None = None,
        isolation_level: int = 0,
        **more: int,
    ) -> dict[str, Any]:
        partitions = [
            {"partition": index, "fetch_offset": offset, "partition_max_bytes": partition_max_bytes, **more}
            for index, offset in offsets.items()
        ]
        request = decoded_request(
            ApiKey.FETCH,
            self._session.api_version,
            max_wait=max_wait,
            min_bytes=min_bytes,
            max_bytes=max_bytes,
            isolation_level=isolation_level,
            session_id=session[0],
            session_epoch=session[1],
            topics=[{"topic": "orders", "partitions": partitions}] if partitions else [],
            forgotten_topics_data=[{"topic": "orders", "partitions": forgotten}] if forgotten else [],
        )
        response: dict[str, Any] = await fetch(request, self._session, self._broker)
        return response


def sizes(response: dict[str, Any]) -> dict[int, int]:
    return {
        each["partition_index"]: each["records"].size for topic in response["responses"] for each in topic["partitions"]
    }


def codes(response: dict[str, Any]) -> dict[int, int]:
    return {
        each["partition_index"]: each.get("error_code", 0)
        for topic in response["responses"]
        for each in topic["partitions"]
    }


def on_broker(
    test: Callable[[Fetcher], Awaitable[None]], version: int = 12, settings: Mapping[str, str] | None = None
) -> None:
    async def main() -> None:
        async with Broker(topics={"orders": 3}, settings=settings) as broker:
            await test(Fetcher(broker, version))

    asyncio.run(asyncio.wait_for(main(), 10))


@pytest.mark.parametrize("is_closed_first", [False, True])
def test_the_isolation_level_of_a_closed_connection_is_forgotten(is_closed_first: bool) -> None:
    async def test(fetcher: Fetcher) -> None:
        if is_closed_first:
            # The client has disconnected while its request waited for the node to be ready.
            fetcher.close()
        await fetcher.fetch({0: 0}, isolation_level=1)
        if not is_closed_first:
            assert fetcher.read_committed_client_count == 1
            fetcher.close()
        assert fetcher.read_committed_client_count == 0

    on_broker(test)


def test_an_incremental_fetch_returns_only_changes() -> None:
    async def test(fetcher: Fetcher) -> None:
        await fetcher.append(0, b"a")
        first = await fetcher.fetch({0: 0, 1: 0, 2: 0}, session=(0, 0))
        session_id = first["session_id"]
        assert session_id != 0
        assert set(sizes(first)) == {0, 1, 2}
        assert sizes(first)[0] > 0
        assert sizes(await fetcher.fetch({0: 1}, session=(session_id, 1))) == {}
        await fetcher.append(2, b"b")
        assert set(sizes(await fetcher.fetch({}, session=(session_id, 2)))) == {2}
        response = await fetcher.fetch({}, session=(session_id, 3), forgotten=[2])
        assert sizes(response) == {}
        assert (await fetcher.fetch({}, session=(session_id, 9))).get("error_code", 0) == 71
        assert (await fetcher.fetch({}, session=(session_id, -1))).get("error_code", 0) == 0
        assert (await fetcher.fetch({}, session=(session_id, 4))).get("error_code", 0) == 70

    on_broker(test)


def test_a_delayed_fetch_completes_at_min_bytes() -> None:
    async def test(fetcher: Fetcher) -> None:
        waiting = asyncio.create_task(fetcher.fetch({0: 0, 1: 0}, max_wait=5000, min_bytes=200))
        await asyncio.sleep(0.01)
        await fetcher.append(1, b"x" * 50)
        await asyncio.sleep(0.01)
        assert not waiting.done()
        await fetcher.append(0, b"x" * 50)
        response = await waiting
        assert min(sizes(response).values()) > 50

    on_broker(test)


def test_a_delayed_fetch_returns_what_there_is_after_max_wait() -> None:
    async def test(fetcher: Fetcher) -> None:
        await fetcher.append(0, b"a")
        response = await fetcher.fetch({0: 0}, max_wait=30, min_bytes=10_000)
        assert sizes(response)[0] > 0
        assert sizes(await fetcher.fetch({0: 1}, max_wait=30)) == {0: 0}

    on_broker(test)


FOR_EVER_MS = 60_000
"""Longer than a test may take: whoever is answered did not wait."""


@pytest.mark.parametrize("store", ["memory", "files"])
def test_a_fetch_with_more_records_than_its_limit_does_not_wait(store: str, tmp_path: Path) -> None:
    async def test(fetcher: Fetcher) -> None:
        for _ in range(30):
            await fetcher.append(0, b"x" * 1000)
        await fetcher.append(1, b"x" * 1000)
        whole = sizes(await fetcher.fetch({0: 0}))[0]
        response = await fetcher.fetch({0: 0}, max_wait=FOR_EVER_MS, partition_max_bytes=10_000, min_bytes=10_000)
        assert 1000 < sizes(response)[0] <= 10_000
        response = await fetcher.fetch({0: 0}, max_wait=FOR_EVER_MS, max_bytes=10_000, min_bytes=10_000)
        assert 1000 < sizes(response)[0] <= 10_000
        # One that is not in the answer at all has been left behind too.
        response = await fetcher.fetch({1: 0, 0: 0}, max_wait=FOR_EVER_MS, max_bytes=1200, min_bytes=1200)
        assert sizes(response)[1] > 0
        # Whoever has all there is waits.
        assert sizes(await fetcher.fetch({0: 0}, max_wait=1, min_bytes=whole + 1)) == {0: whole}
        waiting = asyncio.create_task(fetcher.fetch({0: 0}, max_wait=FOR_EVER_MS, min_bytes=whole + 1))
        await asyncio.sleep(0)
        await fetcher.append(0, b"x")
        assert sizes(await waiting)[0] > whole

    on_broker(test, settings={"store": store, "data.dir": str(tmp_path), "log.index.interval.bytes": "4096"})


def test_a_fetch_with_records_in_the_next_segment_does_not_wait(tmp_path: Path) -> None:
    async def test(fetcher: Fetcher) -> None:
        for _ in range(3):
            await fetcher.append(0, b"x" * 1000)
        fetched = sizes(await fetcher.fetch({0: 0}, max_wait=FOR_EVER_MS, min_bytes=3000))[0]
        assert 1000 < fetched < 3000

    on_broker(test, settings={"store": "files", "data.dir": str(tmp_path), "log.segment.bytes": "2500"})


def test_min_bytes_above_max_bytes_does_not_wait_forever() -> None:
    async def test(fetcher: Fetcher) -> None:
        await fetcher.append(0, b"x" * 1000)
        size = sizes(await fetcher.fetch({0: 0}))[0]
        response = await fetcher.fetch({0: 0}, max_wait=FOR_EVER_MS, min_bytes=5000, max_bytes=size)
        assert sizes(response) == {0: size}

    on_broker(test)


def test_an_error_completes_a_fetch_at_once() -> None:
    async def test(fetcher: Fetcher) -> None:
        response = await fetcher.fetch({0: 0, 1: 5, 7: 0}, max_wait=60_000)
        assert codes(response) == {0: 0, 1: 1, 7: 3}
        assert codes(await fetcher.fetch({0: 0}, max_wait=60_000, current_leader_epoch=99)) == {0: 75}

    on_broker(test)


def test_the_first_batch_is_whole_and_limits_hold_for_the_rest() -> None:
    async def test(fetcher: Fetcher) -> None:
        for partition in range(3):
            await fetcher.append(partition, b"x" * 1000)
        batch = sizes(await fetcher.fetch({0: 0}))[0]
        assert sizes(await fetcher.fetch({0: 0, 1: 0, 2: 0}, max_bytes=10)) == {0: batch, 1: 0, 2: 0}
        two = sizes(await fetcher.fetch({0: 0, 1: 0, 2: 0}, max_bytes=batch + 10))
        assert two[0] == batch
        assert two[1] + two[2] <= 10
        assert sizes(await fetcher.fetch({1: 0}, partition_max_bytes=10)) == {1: batch}

    on_broker(test)


def test_a_partition_with_records_is_read_last_in_the_next_fetch() -> None:
    async def test(fetcher: Fetcher) -> None:
        for partition in range(3):
            await fetcher.append(partition, b"x" * 1000)
        first = await fetcher.fetch({0: 0, 1: 0, 2: 0}, session=(0, 0), max_bytes=10)
        session_id = first["session_id"]
        assert [index for index, size in sizes(first).items() if size] == [0]
        second = await fetcher.fetch({}, session=(session_id, 1), max_bytes=10)
        assert [index for index, size in sizes(second).items() if size] == [1]
        third = await fetcher.fetch({}, session=(session_id, 2), max_bytes=10)
        assert [index for index, size in sizes(third).items() if size] == [2]

    on_broker(test)


def test_a_diverging_epoch_is_returned_with_its_end_offset() -> None:
    async def test(fetcher: Fetcher) -> None:
        await fetcher.append(0, b"a")
        partition = fetcher.partition(0)
        epoch = partition.leader_epoch
        await partition.apply_image(PartitionRegistration(0, (1,), (1,), 1, epoch + 2, 1))
        await fetcher.append(0, b"b")
        response = await fetcher.fetch({0: 2}, last_fetched_epoch=epoch + 1)
        [result] = response["responses"][0]["partitions"]
        assert (result.get("error_code", 0), result["diverging_epoch"]) == (0, {"epoch": epoch, "end_offset": 1})
        fine = await fetcher.fetch({0: 2}, last_fetched_epoch=epoch + 2)
        assert fine["responses"][0]["partitions"][0].get("diverging_epoch") is None
        assert codes(await fetcher.fetch({0: 1}, last_fetched_epoch=50)) == {0: 1}

    on_broker(test)


def test_follower_sessions_do_not_count_against_the_limit() -> None:
    sessions = FetchSessionCache(random.Random(1), 1)
    consumer = sessions.create(client(), named(wanted()), 0, 0, uses_topic_ids=False)
    assert consumer is not None
    late = 10 * EVICTION_MIN_MS
    first = sessions.create(client(), named(wanted()), 0, late, uses_topic_ids=False, replica_id=2)
    other = sessions.create(client(), named(wanted()), 0, late, uses_topic_ids=False, replica_id=3)
    assert first is not None
    assert other is not None
    assert len(sessions) == 3, "the consumer's is still there"
    again = sessions.create(client(), named(wanted()), 0, late, uses_topic_ids=False, replica_id=2)
    assert again is not None
    assert len(sessions) == 3, "one for each node"
    assert sessions.create(client(), named(wanted()), 0, 2 * late, uses_topic_ids=False) is not None
    sessions.continue_session(again.session_id, 1, {}, (), 2 * late, uses_topic_ids=False)
    with pytest.raises(FetchSessionIdNotFoundError):
        sessions.continue_session(consumer.session_id, 1, {}, (), 2 * late, uses_topic_ids=False)
