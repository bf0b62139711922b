"""Keeps a consumer's fetcher in step with its positions, and looks up the positions that are not known yet."""

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any

from moldau.client.consumer.fetch_buffer import PartitionError, Undelivered
from moldau.client.consumer.fetched import Fetched, LogCutError
from moldau.client.consumer.fetcher import Fetcher
from moldau.client.consumer.log_offsets import OffsetAndTimestamp, ask_leaders
from moldau.client.consumer.positions import Mode, OffsetAndMetadata, Positions, Reset
from moldau.client.errors import ErrorCode, KafkaError, RequestTimedOutError
from moldau.client.group.offsets import GroupOffsets
from moldau.client.net.cluster import Cluster
from moldau.client.net.nodes import shared
from moldau.client.record import ConsumerRecord, TopicPartition
from moldau.observe.logging import get_logger

_log = get_logger("client.consumer")


class Reading:
    def __init__(
        self,
        cluster: Cluster,
        positions: Positions,
        offsets: GroupOffsets | None,
        news: asyncio.Event,
        *,
        isolation_level: int,
        fetch_settings: Mapping[str, Any],
    ) -> None:
        """`news` is set when there may be more to take. Without a group's `offsets` nothing was ever committed."""
        self._cluster = cluster
        self._positions = positions
        self._offsets = offsets
        self._news = news
        self._isolation_level = isolation_level
        self._fetcher = Fetcher(cluster, isolation_level=isolation_level, news=news, **fetch_settings)
        self._undelivered = Undelivered()
        self._backoff = cluster.backoff()
        self._looking_up: asyncio.Task[None] | None = None
        self._found = asyncio.Event()
        """Set, and replaced, when a look-up has found something and goes on."""
        self._failure: Exception | None = None
        self._trouble = ""
        """Why the last look-up failed, if it did."""

    async def close(self) -> None:
        if self._looking_up is not None:
            self._looking_up.cancel()
            await asyncio.gather(self._looking_up, return_exceptions=True)
        await self._fetcher.close()

    # What the positions are changed by

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        before = self._positions.assigned
        self._positions.set_assigned(partitions)
        self._forget(each for each in before if not self._positions.has(each))
        self._align()

    def take_away(self, partitions: Iterable[TopicPartition]) -> None:
        gone = list(partitions)
        self._positions.take_away(gone)
        self._forget(gone)

    def seek(self, partition: TopicPartition, offset: int, leader_epoch: int = -1) -> None:
        self._positions.seek(partition, offset, leader_epoch)
        self._forget([partition])
        self._align()

    def seek_by(self, partition: TopicPartition, reset: Reset) -> None:
        self._positions.seek_by(partition, reset)
        self._forget([partition])

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        paused = list(partitions)
        self._positions.pause(paused)
        fetched = self._fetcher.partitions
        self._fetcher.pause(each for each in paused if each in fetched)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        resumed = list(partitions)
        self._positions.resume(resumed)
        fetched = self._fetcher.partitions
        self._fetcher.resume(each for each in resumed if each in fetched)
        self._news.set()

    def _forget(self, partitions: Iterable[TopicPartition]) -> None:
        gone = list(partitions)
        self._fetcher.remove(gone)
        self._undelivered.drop(gone)

    def _align(self) -> None:
        """Fetches every partition whose position is known, and that can be read from there."""
        left_out = {*self._fetcher.partitions, *self._undelivered.broken}
        known = {each: at for each, at in self._positions.consumed().items() if each not in left_out}
        self._fetcher.add(
            {each: at.offset for each, at in known.items()},
            leader_epochs={each: at.leader_epoch for each, at in known.items()},
        )
        fetched = set(self._fetcher.partitions)
        self._fetcher.pause(each for each in self._positions.paused if each in fetched)

    # Handing out

    def take(self, records_max: int) -> list[ConsumerRecord]:
        """Raises what keeps a partition from being read on, once nothing else is left to hand out."""
        self._add_news()
        try:
            return self._undelivered.take(records_max, self._positions.is_paused, self._positions.advance)
        except PartitionError as broken:
            self._start_anew_or_raise(broken)
            return []

    def take_raw(self) -> list[Fetched]:
        self._add_news()
        try:
            return self._undelivered.take_raw(self._positions.is_paused, self._positions.advance)
        except PartitionError as broken:
            self._start_anew_or_raise(broken)
            return []

    def _add_news(self) -> None:
        """Only when all was handed out: what the fetcher keeps is limited, what is taken from it is not."""
        if not self._undelivered.has_news(self._positions.is_paused):
            self._undelivered.add(self._fetcher.take())

    def _start_anew_or_raise(self, broken: PartitionError) -> None:
        partition, error = broken.partition, broken.error
        if error.code != ErrorCode.offset_out_of_range:
            self._fetcher.remove([partition])
            raise error
        _log.info("the position is not in the log", partition=str(partition), error=error)
        if isinstance(error, LogCutError):
            self._positions.cut(partition, error.offset, error.leader_epoch)
        else:
            self._positions.out_of_range(partition)
        self._forget([partition])
        self._align()
        self.look_up()

    # Looking up

    def look_up(self) -> None:
        """Sees to it that missing positions are looked for; raises what went wrong the last time."""
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        if self._looking_up is None and self._positions.is_incomplete:
            self._looking_up = asyncio.get_running_loop().create_task(
                self._look_up(), name="consumer looks up positions"
            )

    async def position(self, partition: TopicPartition, timeout_ms: int) -> int:
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                while (offset := self._positions.position(partition)) is None:
                    self.look_up()
                    await self._some_found()
                return offset
        except TimeoutError:
            raise RequestTimedOutError(f"no position of {partition} was found in {timeout_ms} ms") from None

    async def _some_found(self) -> None:
        """Returns when the look-up under way has found something, or has ended."""
        looking_up = self._looking_up
        if looking_up is not None:
            found = asyncio.ensure_future(self._found.wait())
            try:
                await asyncio.wait([looking_up, found], return_when=asyncio.FIRST_COMPLETED)
            finally:
                found.cancel()
            if looking_up.done():
                await shared(looking_up)

    def _go_on_with_found(self) -> None:
        self._align()
        self._found.set()
        self._found = asyncio.Event()

    async def _look_up(self) -> None:
        try:
            await self._look_up_committed()
            self._go_on_with_found()
            await self._look_up_resets()
            self._backoff.reset()
            self._trouble = ""
        except KafkaError as error:
            if self._is_worth_telling(error):
                self._failure = error
            else:
                if str(error) != self._trouble:
                    self._trouble = str(error)
                    _log.info("positions could not be looked up and will be again", error=error)
                await asyncio.sleep(self._backoff.next_ms() / 1000)
        finally:
            self._looking_up = None
            self._news.set()
        self._align()

    async def _look_up_committed(self) -> None:
        asked = self._positions.to_look_up()
        if asked:
            found = {} if self._offsets is None else await self._offsets.committed(asked)
            self._positions.committed(asked, found)

    async def _look_up_resets(self) -> None:
        asked = self._positions.to_reset()
        times = {each: place.reset.value for each, place in asked.items() if place.reset is not None}

        def take(answered: dict[TopicPartition, OffsetAndTimestamp]) -> None:
            found = {
                each: OffsetAndMetadata(at.offset, leader_epoch=at.leader_epoch)
                for each, at in answered.items()
                if at.offset >= 0
            }
            self._positions.reset_to(asked, found)
            self._go_on_with_found()

        if times:
            await ask_leaders(self._cluster, times, take, isolation_level=self._isolation_level)

    def _is_worth_telling(self, error: KafkaError) -> bool:
        """Brokers come back. A partition that does not exist is the user's affair where they named it themselves;
        in a group the next assignment does without it."""
        if error.code == ErrorCode.unknown_topic_or_partition:
            return self._positions.mode is Mode.MANUAL
        return not error.is_retriable
