"""An assignor of a user: the group's leader assigns with it, and every member is notified."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence

import pytest

from moldau.client import Consumer, ConsumerPartitionAssignor, KafkaError, SubscribedMember, TopicPartition
from moldau.testing import Broker

TOPIC = "assigned"


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker({TOPIC: 4}, {"group.initial.rebalance.delay.ms": "0"}) as broker:
        yield broker


class OneForAll(ConsumerPartitionAssignor):
    """Gives all partitions to the member with the highest id."""

    name = "one-for-all"

    def __init__(self) -> None:
        self.seen: list[tuple[int, int]] = []

    def assign(
        self, partition_counts: Mapping[str, int], members: Sequence[SubscribedMember]
    ) -> dict[str, list[tuple[str, int]]]:
        everything = [(topic, index) for topic, count in partition_counts.items() for index in range(count)]
        last = max(member.member_id for member in members)
        return {member.member_id: everything if member.member_id == last else [] for member in members}

    def on_assignment(self, partitions: Sequence[tuple[str, int]], generation_id: int) -> None:
        self.seen.append((generation_id, len(partitions)))


class TwoOwners(OneForAll):
    name = "two-owners"

    def assign(
        self, partition_counts: Mapping[str, int], members: Sequence[SubscribedMember]
    ) -> dict[str, list[tuple[str, int]]]:
        return {member.member_id: [(TOPIC, 0), (TOPIC, 99)] for member in members}


class Failing(OneForAll):
    name = "failing"

    def assign(
        self, partition_counts: Mapping[str, int], members: Sequence[SubscribedMember]
    ) -> dict[str, list[tuple[str, int]]]:
        raise LookupError("no idea")


async def poll_until_assigned(consumer: Consumer, assignor: OneForAll, count: int) -> None:
    """Polls until the assignor was notified in this many generations."""
    while len(assignor.seen) < count:
        await consumer.poll(50)


def test_the_assignor_of_a_user_assigns_and_is_notified(broker: Broker) -> None:
    async def test() -> None:
        first, second = OneForAll(), OneForAll()
        options = {"group_id": "custom", "heartbeat_interval_ms": 50}
        async with (
            Consumer(broker.bootstrap, assignors=[first], **options) as one,  # type: ignore[arg-type]
            Consumer(broker.bootstrap, assignors=[second, "range"], **options) as other,  # type: ignore[arg-type]
        ):
            one.subscribe([TOPIC])
            await poll_until_assigned(one, first, 1)
            assert first.seen == [(1, 4)]
            other.subscribe([TOPIC])
            await asyncio.gather(poll_until_assigned(one, first, 2), poll_until_assigned(other, second, 1))
            assert first.seen[-1][0] == second.seen[-1][0], "one generation"
            assert sorted((first.seen[-1][1], second.seen[-1][1])) == [0, 4]
            assert sorted((len(one.assignment), len(other.assignment))) == [0, 4]

    asyncio.run(asyncio.wait_for(test(), 60))


@pytest.mark.parametrize(
    ("assignor", "message"), [(TwoOwners(), "assigned-99"), (Failing(), "no idea")], ids=["invalid", "failing"]
)
def test_an_assignor_that_fails_fails_the_poll(broker: Broker, assignor: OneForAll, message: str) -> None:
    async def test() -> None:
        async with Consumer(broker.bootstrap, group_id=f"group-{assignor.name}", assignors=[assignor]) as consumer:
            consumer.subscribe([TOPIC])
            with pytest.raises(KafkaError, match=message) as failure:
                await consumer.poll(30_000)
            assert failure.value.__cause__ is not None

    asyncio.run(asyncio.wait_for(test(), 60))


class FailingListener(OneForAll):
    name = "failing-listener"

    def on_assignment(self, partitions: Sequence[tuple[str, int]], generation_id: int) -> None:
        super().on_assignment(partitions, generation_id)
        raise LookupError("no idea")


def test_an_error_in_on_assignment_is_raised_after_the_callback(broker: Broker) -> None:
    async def test() -> None:
        assignor = FailingListener()
        assigned: list[list[TopicPartition]] = []
        async with Consumer(broker.bootstrap, group_id="failing-listener", assignors=[assignor]) as consumer:
            consumer.subscribe([TOPIC], on_assigned=assigned.append)
            with pytest.raises(LookupError, match="no idea"):
                await consumer.poll(30_000)
            assert assigned == [[TopicPartition(TOPIC, index) for index in range(4)]]
            await consumer.poll(0)
        assert assignor.seen == [(1, 4)]

    asyncio.run(asyncio.wait_for(test(), 60))


def test_invalid_assignors_are_rejected() -> None:
    class Unnamed(OneForAll):
        name = ""

    for assignors, message in (
        ([Unnamed()], "needs a name"),
        (["sticki"], "sticki"),
        ([OneForAll], "not an assignor"),
        ([OneForAll(), OneForAll()], "same name"),
        ([], "at least one"),
    ):
        with pytest.raises(ValueError, match=message):
            Consumer("127.0.0.1:1", group_id="g", assignors=assignors)  # type: ignore[arg-type]
