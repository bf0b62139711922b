"""The partitions that a leader reads for an incremental fetch of a follower."""

from collections.abc import Awaitable, Callable
from typing import Any
from unittest.mock import patch

from moldau.handlers.a01_fetch import fetch
from moldau.partitions.delayed_operations import CallbackList
from moldau.partitions.partition import Partition
from moldau.server.api import ClientConnection, RequestContext
from moldau.server.partition_watcher import PartitionWatcher
from moldau.wire.api_keys import ApiKey
from support.admin_broker import decoded_request
from unit.handlers.test_fetch_replicas import EPOCH, LeaderHarness, with_harness

LONG_AGO_MS = -(10**9)


class SessionOfNode2:
    def __init__(self, harness: LeaderHarness) -> None:
        self._harness = harness
        self._session = RequestContext(ClientConnection("127.0.0.1:5", harness.listener), harness.version, "test")
        self._id, self._epoch = 0, 0
        self.looks = 0

    async def fetch(self, *offsets: int) -> list[Any]:
        """Fetches with the partition if an offset is given; counts how often the partition is read."""
        partitions = [
            {
                "partition": 0,
                "fetch_offset": offset,
                "partition_max_bytes": 1_000_000,
                "current_leader_epoch": EPOCH,
                "last_fetched_epoch": EPOCH,
                "log_start_offset": 0,
            }
            for offset in offsets
        ]
        topic = {"topic_id": self._harness.partition.topic_id, "partitions": partitions}
        request = decoded_request(
            ApiKey.FETCH,
            self._harness.version,
            replica_state={"replica_id": 2, "replica_epoch": 200},
            max_wait=0,
            min_bytes=1,
            max_bytes=1_000_000,
            isolation_level=0,
            session_id=self._id,
            session_epoch=self._epoch,
            topics=[topic] if offsets else [],
            forgotten_topics_data=[],
            rack_id="",
        )
        read = Partition.read_for_follower

        async def counted(*arguments: Any, **more: Any) -> Any:
            self.looks += 1
            return await read(*arguments, **more)

        with patch.object(Partition, "read_for_follower", counted):
            response = await fetch(request, self._session, self._harness.node)
        assert response.get("error_code", 0) == 0
        self._id, self._epoch = response["session_id"], self._epoch + 1
        return [each for topic in response["responses"] for each in topic["partitions"]]

    def let_time_pass(self) -> None:
        """Makes a full scan of the partitions due."""
        self._harness.node.fetch_session_cache._sessions[self._id].last_full_scan_ms = LONG_AGO_MS


def with_session(scenario: Callable[[LeaderHarness, SessionOfNode2], Awaitable[None]]) -> None:
    with_harness(lambda harness: scenario(harness, SessionOfNode2(harness)))


def test_an_unchanged_partition_of_an_in_sync_follower_is_not_read() -> None:
    async def scenario(harness: LeaderHarness, follower: SessionOfNode2) -> None:
        await harness.role(isr=(1, 2))
        await follower.fetch(0)
        looks = follower.looks
        for _ in range(3):
            follower.let_time_pass()
            assert await follower.fetch() == []
        assert follower.looks == looks

    with_session(scenario)


def test_partitions_of_an_out_of_sync_follower_are_read_from_time_to_time() -> None:
    async def scenario(harness: LeaderHarness, follower: SessionOfNode2) -> None:
        await harness.role(isr=(1,))
        await follower.fetch(0)
        looks = follower.looks
        await follower.fetch()
        assert follower.looks == looks
        follower.let_time_pass()
        await follower.fetch()
        assert follower.looks == looks + 1

    with_session(scenario)


def test_appended_records_are_sent_to_an_in_sync_follower() -> None:
    async def scenario(harness: LeaderHarness, follower: SessionOfNode2) -> None:
        await harness.role(isr=(1, 2))
        await follower.fetch(0)
        await harness.append(b"one")
        [result] = await follower.fetch()
        assert result["records"].size > 0
        # It has not acknowledged them: the response may have been lost.
        [again] = await follower.fetch()
        assert again["records"].size > 0
        assert await follower.fetch(1) != []

    with_session(scenario)


def test_a_closed_session_watches_no_partition() -> None:
    async def scenario(harness: LeaderHarness, follower: SessionOfNode2) -> None:
        watcher, changed = PartitionWatcher(), CallbackList()
        watcher.close()
        # As if a fetch continued with the next partition after its connection closed.
        watcher.watch(("orders", 0), harness.partition, wake_on=[changed])
        assert not changed._callbacks
        assert watcher.partition(("orders", 0)) is None

    with_session(scenario)
