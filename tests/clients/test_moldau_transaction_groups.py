"""Transaction groups of Moldau's client: several producers write a batch, and one decision makes it visible."""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from moldau.client import Cluster, KafkaError, Producer, TransactionAbortableError
from moldau.client.errors import ErrorCode
from moldau.client.producer.transaction_group import GroupMember, MemberProducer, TransactionGroup
from moldau.testing import Broker
from moldau.wire.api_keys import ApiKey
from support.log_reader import all_records, committed_records
from support.topics import Topics, unique
from support.wire import WireClient

DEADLINE_S = 60
TIMEOUT_MS = 60_000


@pytest.fixture(scope="module")
def node() -> Iterator[Broker]:
    with Broker() as started:
        yield started


@pytest.fixture
def topic(node: Broker) -> str:
    return Topics(node.bootstrap).create(partitions=3)


def run(test: Coroutine[Any, Any, None]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(DEADLINE_S):
            await test

    asyncio.run(limited())


@asynccontextmanager
async def open_group(
    node: Broker, run_id: str = "r1", group_id: str | None = None, timeout_ms: int = TIMEOUT_MS
) -> AsyncIterator[TransactionGroup]:
    async with Cluster(node.bootstrap) as cluster:
        yield TransactionGroup(cluster, group_id or unique("q"), run_id, transaction_timeout_ms=timeout_ms)


async def start(group: TransactionGroup, batch_id: int, member: str) -> MemberProducer:
    started = await group.start_member(batch_id, member)
    assert started is not None
    return started


async def write(group: TransactionGroup, topic: str, batch_id: int, member: str, *values: str) -> GroupMember:
    started = await start(group, batch_id, member)
    for number, value in enumerate(values):
        await started.producer.send(topic, value.encode(), partition=number % 3)
    return await started.finish()


def values(node: Broker, topic: str) -> list[str]:
    return sorted((each.value or b"").decode() for each in committed_records(node.bootstrap, topic))


def test_a_broker_advertises_transaction_groups(node: Broker) -> None:
    async def test() -> None:
        async with Cluster(node.bootstrap) as cluster:
            assert await TransactionGroup.is_supported(cluster)

    run(test())


def test_the_records_of_listed_members_are_visible_and_no_others(node: Broker, topic: str) -> None:
    async def test() -> None:
        async with open_group(node) as group:
            for batch_id in range(3):
                first, second = await asyncio.gather(
                    write(group, topic, batch_id, "0/0", f"{batch_id} a", f"{batch_id} b"),
                    write(group, topic, batch_id, "1/0", f"{batch_id} c", f"{batch_id} d", f"{batch_id} e"),
                )
                await write(group, topic, batch_id, "1/1", "speculative", "speculative")
                await group.commit(batch_id, [first, second])

    run(test())
    assert values(node, topic) == [f"{batch_id} {letter}" for batch_id in range(3) for letter in "abcde"]
    assert len([each for each in all_records(node.bootstrap, topic) if each.value == b"speculative"]) == 6


def test_a_replayed_batch_is_recognised(node: Broker, topic: str) -> None:
    group_id = unique("q")

    async def test() -> None:
        async with open_group(node, "r1", group_id) as group:
            member = await write(group, topic, 0, "0/0", "once")
            await group.commit(0, [member])
            await group.commit(0, [member])
        async with open_group(node, "r2", group_id) as replay:
            assert await replay.start_member(0, "0/0") is None
            await replay.commit(0, [])
            await replay.commit(1, [await write(replay, topic, 1, "0/0", "next")])
            with pytest.raises(KafkaError, match=r"batch 0 of .* is older than the last committed batch 1") as caught:
                await replay.start_member(0, "0/0")
            assert caught.value.code == ErrorCode.invalid_txn_state

    run(test())
    assert values(node, topic) == ["next", "once"]


def test_a_new_run_aborts_the_batch_of_a_dead_one_and_refuses_its_late_tasks(node: Broker, topic: str) -> None:
    group_id = unique("q")

    async def test() -> None:
        async with open_group(node, "r1", group_id) as dead, open_group(node, "r2", group_id) as group:
            orphan = await write(dead, topic, 0, "0/0", "orphan")
            await write(dead, topic, 0, "9/0", "orphan of a task that the replay does not have")
            # The id is that of the orphan, so this waits until its abort is complete.
            member = await write(group, topic, 0, "0/0", "replayed")
            for late in (dead.start_member(0, "0/0"), dead.commit(0, [orphan])):
                with pytest.raises(KafkaError, match=r"the run r1 of .* has ended, or a later run has begun") as caught:
                    await late
                assert caught.value.code == ErrorCode.producer_fenced
            await dead.abort(0)
            await group.commit(0, [member])

    run(test())
    assert values(node, topic) == ["replayed"]


def test_an_abort_ends_all_members(node: Broker, topic: str) -> None:
    async def test() -> None:
        async with open_group(node) as group:
            member = await write(group, topic, 0, "0/0", "aborted")
            await group.abort(0)
            await group.abort(0)
            with pytest.raises(KafkaError):
                await group.commit(0, [member])

    run(test())
    assert values(node, topic) == []


def test_a_commit_is_refused_as_a_whole_after_the_timeout_of_a_member(node: Broker, topic: str) -> None:
    async def test() -> None:
        async with open_group(node, timeout_ms=1) as group:
            late = await write(group, topic, 0, "0/0", "late")
            await until_aborted(node, topic)
            member = await write(group, topic, 0, "1/0", "also late")
            with pytest.raises(KafkaError) as caught:
                await group.commit(0, [member, late])
            assert caught.value.code in (ErrorCode.producer_fenced, ErrorCode.invalid_txn_state)

    run(test())
    assert values(node, topic) == []


async def until_aborted(node: Broker, topic: str) -> None:
    await asyncio.to_thread(committed_records, node.bootstrap, topic)


def test_a_failed_member_aborts_its_own_transaction(node: Broker, topic: str) -> None:
    async def test() -> None:
        async with open_group(node) as group:
            failed = await start(group, 0, "0/0")
            await failed.producer.send(topic, b"aborted")
            await failed.producer.flush()
            await failed.abort(timeout_ms=10_000)
            await until_aborted(node, topic)
            await group.commit(0, [await write(group, topic, 0, "0/1", "second attempt")])

    run(test())
    assert values(node, topic) == ["second attempt"]


def test_a_member_whose_record_failed_cannot_finish(node: Broker) -> None:
    topic = Topics(node.bootstrap).create(max_message_bytes=1000)

    async def test() -> None:
        async with open_group(node) as group:
            started = await start(group, 0, "0/0")
            await started.producer.send(topic, b"x")
            await started.producer.flush()
            await started.producer.send(topic, b"x" * 2000)
            with pytest.raises(TransactionAbortableError, match="MESSAGE_TOO_LARGE"):
                await started.finish()

    run(test())


def test_a_member_is_an_ordinary_transaction_for_tools_but_cannot_commit_alone(node: Broker, topic: str) -> None:
    group_id = unique("q")

    async def test() -> None:
        async with open_group(node, group_id=group_id) as group:
            await write(group, topic, 0, "0/0", "open")
            transactional_id = f"__moldau.group/{group_id}/0/0"
            # Every client's InitProducerId with the id aborts the member's transaction, as kafka-transactions does.
            async with Producer(node.bootstrap, transactional_id=transactional_id) as producer:
                transaction = producer.transaction()
                await transaction.begin()
                await producer.send(topic, b"alone")
                with pytest.raises(KafkaError) as caught:
                    await transaction.commit()
                assert caught.value.code == ErrorCode.invalid_request

    run(test())


@pytest.mark.parametrize(
    ("group_id", "batch_id", "run_id", "timeout_ms", "code"),
    [
        ("", 0, "r1", 1, ErrorCode.invalid_request),
        ("a/b", 0, "r1", 1, ErrorCode.invalid_request),
        ("q", -1, "r1", 1, ErrorCode.invalid_request),
        ("q", 0, "", 1, ErrorCode.invalid_request),
        ("q", 0, "r1", 0, ErrorCode.invalid_transaction_timeout),
        ("q", 0, "r1", 900_001, ErrorCode.invalid_transaction_timeout),
    ],
)
def test_invalid_requests(
    node: Broker, group_id: str, batch_id: int, run_id: str, timeout_ms: int, code: ErrorCode
) -> None:
    async def test() -> None:
        async with Cluster(node.bootstrap) as cluster:
            group = TransactionGroup(cluster, group_id, run_id, transaction_timeout_ms=timeout_ms)
            with pytest.raises(KafkaError) as caught:
                await group.start_member(batch_id, "0/0")
            assert caught.value.code == code

    run(test())


@pytest.mark.parametrize("level", [0, 1])
def test_batches_before_tv2(level: int) -> None:
    """A member adds its partitions itself, and a commit does not increase its epoch."""
    with Broker() as node:
        topic = Topics(node.bootstrap).create(partitions=3)
        update = {"feature": "transaction.version", "max_version_level": level, "upgrade_type": 2}
        tree = {"timeout": 10_000, "feature_updates": [update], "validate_only": False}
        with WireClient(node.bootstrap) as wire:
            assert wire.request(ApiKey.UPDATE_FEATURES, 1, tree)["error_code"] == ErrorCode.none

        async def test() -> None:
            group_id = unique("q")
            async with open_group(node, "r1", group_id) as group, open_group(node, "r2", group_id) as successor:
                for batch_id in range(3):
                    member = await write(group, topic, batch_id, "0/0", f"{batch_id} a", f"{batch_id} b")
                    await write(group, topic, batch_id, "0/1", "speculative", "speculative")
                    await group.commit(batch_id, [member])
                assert member.producer_epoch == 2, "the epoch of the first batch is 0"
                orphan = await write(group, topic, 3, "0/0", "orphan")
                member = await write(successor, topic, 3, "1/0", "3 a")
                for refused in (group.commit(3, [orphan]), successor.commit(3, [member, orphan])):
                    with pytest.raises(KafkaError) as caught:
                        await refused
                    assert caught.value.code is ErrorCode.producer_fenced
                await successor.commit(3, [member])
                await successor.commit(3, [member])
                aborted = await write(successor, topic, 4, "0/0", "aborted")
                await successor.abort(4)
                with pytest.raises(KafkaError):
                    await successor.commit(4, [aborted])

        run(test())
        assert values(node, topic) == ["0 a", "0 b", "1 a", "1 b", "2 a", "2 b", "3 a"]
