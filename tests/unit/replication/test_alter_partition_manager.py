"""Requests for ISR changes: batching, retries and rejections."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast
from uuid import UUID

import pytest

from moldau.controller.requests import IsrChange, IsrChangeResult
from moldau.errors import (
    FencedLeaderEpochError,
    IneligibleReplicaError,
    InvalidUpdateVersionError,
    MoldauError,
    NotControllerError,
    PeerUnreachableError,
    StorageError,
)
from moldau.logs.store import LogName
from moldau.platform.clock import SystemClock
from moldau.replication import alter_partition_manager as isr
from moldau.replication.alter_partition_manager import AlterPartitionManager
from moldau.settings.broker import BrokerSettings
from moldau.settings.effective import EffectiveSettings

NODE = 1
PATIENCE_S = 20


class FakePartition:
    def __init__(self, index: int = 0) -> None:
        self.name = LogName("orders", index)
        self.topic_id = UUID(int=1)
        self.requested: tuple[int, ...] | None = None
        self.partition_epoch = 5
        self.proposal: IsrChange | None = None
        self.answers: list[IsrChangeResult] = []
        self.looks = 0

    @property
    def pending_isr_change(self) -> IsrChange | None:
        return self.proposal

    def propose_isr_change(self, lag_ms: int) -> IsrChange | None:
        self.looks += 1
        if self.requested is None or self.proposal is not None:
            return None
        members = tuple((each, 40 + each) for each in self.requested)
        self.proposal = IsrChange(self.topic_id, self.name.partition, 3, self.partition_epoch, members)
        return self.proposal

    def on_alter_partition_response(self, result: IsrChangeResult) -> None:
        self.answers.append(result)
        if result.error is None or isinstance(result.error, IneligibleReplicaError):
            self.proposal = None
        if result.error is None:
            self.requested = None

    def metadata_shows_a_later_state(self) -> None:
        self.partition_epoch += 1
        self.proposal = None
        self.requested = None


class FakeControllerChannel:
    """Passes each request to the test and waits for its response."""

    def __init__(self) -> None:
        self.requests: asyncio.Queue[tuple[Any, asyncio.Future[Any]]] = asyncio.Queue()

    async def alter_partition(
        self, broker_id: int, broker_epoch: int, changes: Sequence[IsrChange]
    ) -> list[IsrChangeResult]:
        response: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.requests.put_nowait(((broker_id, broker_epoch, list(changes)), response))
        outcome = await response
        if isinstance(outcome, MoldauError):
            raise outcome
        return [_result(change, error) for change, error in zip(changes, outcome, strict=True)]


def _result(change: IsrChange, error: MoldauError | None) -> IsrChangeResult:
    members = tuple(each for each, _ in change.isr)
    return IsrChangeResult(
        change.topic_id, change.partition, NODE, change.leader_epoch, members, False, change.partition_epoch + 1, error
    )


class World:
    def __init__(self, *partitions: FakePartition, lag_ms: int = 60_000) -> None:
        self.controller_channel = FakeControllerChannel()
        self.broker_epoch = 41
        self.kept = AlterPartitionManager(
            NODE,
            lambda: cast(Any, partitions),
            cast(Any, self.controller_channel),
            lambda: self.broker_epoch,
            EffectiveSettings(BrokerSettings(replica_lag_time_max_ms=lag_ms)),
            SystemClock(),
            random.Random(1),
        )

    async def asked(self) -> tuple[Any, "asyncio.Future[Any]"]:
        return await self.controller_channel.requests.get()


def with_world(test: Callable[[World], Awaitable[None]], *partitions: FakePartition, lag_ms: int = 60_000) -> None:
    async def whole() -> None:
        harness = World(*partitions, lag_ms=lag_ms)
        harness.kept.start()
        try:
            await test(harness)
        finally:
            await harness.kept.close()

    asyncio.run(asyncio.wait_for(whole(), PATIENCE_S))


def test_all_changes_go_into_one_request_and_results_to_their_partitions() -> None:
    first, second, content = FakePartition(0), FakePartition(1), FakePartition(2)
    first.requested, second.requested = (1, 2), (1, 3)

    async def test(harness: World) -> None:
        (broker_id, broker_epoch, changes), response = await harness.asked()
        assert (broker_id, broker_epoch) == (NODE, 41)
        assert changes == [first.proposal, second.proposal]
        error = InvalidUpdateVersionError("changed since")
        response.set_result([None, error])
        while not second.answers:
            await asyncio.sleep(0)
        assert first.answers[0].isr == (1, 2)
        assert second.answers[0].error is error
        assert content.answers == []

    with_world(test, first, second, content)


def test_partitions_are_checked_periodically_and_on_follower_progress() -> None:
    partition = FakePartition()

    async def test(harness: World) -> None:
        while not partition.looks:
            await asyncio.sleep(0)
        partition.requested = (1, 2)
        await asyncio.sleep(0.01)
        assert partition.looks == 1
        harness.kept.check_isr(partition)
        (_, _, changes), response = await harness.asked()
        assert changes == [partition.proposal]
        response.set_result([None])

    with_world(test, partition)

    async def looked_at_by_the_clock(harness: World) -> None:
        while partition.looks < 5:
            await asyncio.sleep(0.001)

    with_world(looked_at_by_the_clock, partition, lag_ms=4)


@pytest.mark.parametrize("error", [PeerUnreachableError("no answer", was_sent=True), NotControllerError("it moved")])
def test_a_change_without_a_response_is_sent_again_unchanged(error: MoldauError) -> None:
    partition = FakePartition()
    partition.requested = (1, 2)

    async def test(harness: World) -> None:
        (_, _, changes), response = await harness.asked()
        harness.broker_epoch = 50
        response.set_result(error)
        (_, broker_epoch, again), response = await harness.asked()
        assert again == changes
        assert broker_epoch == 50, "the broker registered again meanwhile"
        assert partition.answers == []
        response.set_result([NotControllerError("nor this one")])
        (_, _, again), response = await harness.asked()
        assert again == changes
        response.set_result([None])
        while not partition.answers:
            await asyncio.sleep(0)

    with_world(test, partition)


def test_a_change_is_dropped_when_the_metadata_shows_a_later_state() -> None:
    partition, other = FakePartition(0), FakePartition(1)
    partition.requested = (1, 2)

    async def test(harness: World) -> None:
        _, response = await harness.asked()
        partition.metadata_shows_a_later_state()
        response.set_result(PeerUnreachableError("no answer"))
        other.requested = (1, 3)
        harness.kept.check_isr(other)
        (_, _, changes), _ = await harness.asked()
        assert changes == [other.proposal]

    with_world(test, partition, other)


def test_a_finally_rejected_change_is_not_sent_again() -> None:
    partition, other = FakePartition(0), FakePartition(1)
    partition.requested = (1, 2)

    async def test(harness: World) -> None:
        _, response = await harness.asked()
        response.set_result([FencedLeaderEpochError("another epoch")])
        while not partition.answers:
            await asyncio.sleep(0)
        other.requested = (1, 3)
        harness.kept.check_isr(partition)
        harness.kept.check_isr(other)
        (_, _, changes), _ = await harness.asked()
        assert changes == [other.proposal]

    with_world(test, partition, other)


def test_an_ineligible_member_is_proposed_again_only_after_a_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isr, "INELIGIBLE_BACKOFF_MS", 60_000)
    partition, other = FakePartition(0), FakePartition(1)
    partition.requested = (1, 2)

    async def test(harness: World) -> None:
        _, response = await harness.asked()
        response.set_result([IneligibleReplicaError("fenced")])
        while not partition.answers:
            await asyncio.sleep(0)
        other.requested = (1, 3)
        harness.kept.check_isr(partition)
        harness.kept.check_isr(other)
        (_, _, changes), _ = await harness.asked()
        assert changes == [other.proposal]

    with_world(test, partition, other)


def test_a_delayed_partition_is_checked_again_after_the_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isr, "INELIGIBLE_BACKOFF_MS", 1)
    partition = FakePartition(0)
    partition.requested = (1, 2)

    async def test(harness: World) -> None:
        _, response = await harness.asked()
        response.set_result([IneligibleReplicaError("fenced")])
        (_, _, changes), _ = await harness.asked()
        assert changes == [partition.proposal], "without a call to check_isr"

    with_world(test, partition)


def test_changes_during_a_request_go_into_the_next_one() -> None:
    partition, other = FakePartition(0), FakePartition(1)
    partition.requested = (1, 2)

    async def test(harness: World) -> None:
        _, response = await harness.asked()
        other.requested = (1, 3)
        harness.kept.check_isr(other)
        await asyncio.sleep(0.01)
        assert harness.controller_channel.requests.empty(), "one request at a time"
        response.set_result([None])
        (_, _, changes), _ = await harness.asked()
        assert changes == [other.proposal]

    with_world(test, partition, other)


def test_an_outdated_rejection_does_not_affect_the_next_change() -> None:
    partition = FakePartition()
    partition.requested = (1, 2)

    async def test(harness: World) -> None:
        _, response = await harness.asked()
        partition.metadata_shows_a_later_state()
        response.set_result([IneligibleReplicaError("it is fenced")])
        for _ in range(20):
            await asyncio.sleep(0)
        assert partition.answers == []

    with_world(test, partition)


def test_an_unreachable_controller_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    partition = FakePartition()
    partition.requested = (1, 2)

    def warnings() -> int:
        return sum(each.levelname == "WARNING" for each in caplog.records)

    async def test(harness: World) -> None:
        for _ in range(3):
            _, response = await harness.asked()
            response.set_result(StorageError("its disk is full"))
        _, response = await harness.asked()
        assert warnings() == 1
        response.set_result([None])
        while not partition.answers:
            await asyncio.sleep(0)
        partition.requested = (1, 3)
        harness.kept.check_isr(partition)
        _, response = await harness.asked()
        response.set_result(StorageError("its disk is full"))
        await harness.asked()
        assert warnings() == 2, "a new outage is logged again"

    with_world(test, partition)
