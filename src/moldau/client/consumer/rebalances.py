"""Does, inside the user's poll, what a rebalance asks of them: commit, take partitions away, give them some, and call
their callbacks about it."""

import inspect
from collections.abc import Awaitable, Callable, Iterable
from typing import NamedTuple

from moldau.client.consumer.commits import Commits
from moldau.client.consumer.reading import Reading
from moldau.client.group.driver import GroupMember
from moldau.client.group.events import Assign, CommitNow, Effect, Fail, Lose, Revoke
from moldau.client.record import TopicPartition
from moldau.wire.consumer_protocol import Partition

RebalanceCallback = Callable[[list[TopicPartition]], Awaitable[None] | None]


class Listener(NamedTuple):
    on_assigned: RebalanceCallback | None = None
    on_revoked: RebalanceCallback | None = None
    on_lost: RebalanceCallback | None = None


class Rebalances:
    def __init__(self, member: GroupMember, commits: Commits, reading: Reading) -> None:
        self.listener = Listener()
        self._member = member
        self._commits = commits
        self._reading = reading

    async def go_on(self) -> None:
        """Brings the membership as far as it goes without another answer; raises what it cannot get over."""
        self._member.poll()
        while self._member.work:
            await self.finish()
            self._member.poll()

    async def finish(self) -> None:
        """Does what has been put aside."""
        work = self._member.work
        while work:
            effect = work[0]
            if not isinstance(effect, CommitNow):
                await self._perform(work.popleft())
                continue
            # It stays until it is done: a poll that is cancelled meanwhile leaves it to the next one.
            await self._commits.commit_consumed()
            if work and work[0] is effect:
                work.popleft()

    async def _perform(self, effect: Effect) -> None:
        match effect:
            case Revoke(partitions):
                await self._take_away(partitions, self.listener.on_revoked)
            case Lose(partitions):
                await self._take_away(partitions, self.listener.on_lost)
            case Assign(partitions, added):
                self._reading.assign(_named(partitions))
                await _tell(self.listener.on_assigned, _named(added))
            case Fail(error):
                raise error
            case _:
                raise AssertionError(f"{effect} is not the user's affair")

    async def _take_away(self, partitions: Iterable[Partition], callback: RebalanceCallback | None) -> None:
        gone = _named(partitions)
        try:
            await _tell(callback, gone)
        finally:
            self._reading.take_away(gone)


def _named(partitions: Iterable[Partition]) -> list[TopicPartition]:
    return [TopicPartition(*each) for each in partitions]


async def _tell(callback: RebalanceCallback | None, partitions: list[TopicPartition]) -> None:
    if callback is not None:
        told = callback(partitions)
        if inspect.isawaitable(told):
            await told
