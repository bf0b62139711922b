"""Creates topics and produces records with known partitions, timestamps and offsets."""

import asyncio
import itertools
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from moldau.client.admin.admin import Admin
from moldau.client.producer.producer import Producer
from moldau.client.record import TopicPartition

_numbers = itertools.count(1)


class ProducedRecord(NamedTuple):
    value: bytes | None
    key: bytes | None = None
    partition: int = 0
    timestamp_ms: int | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()


class LogWriter:
    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap

    def create(self, name: str = "topic", *, partitions: int = 1, **configs: str) -> str:
        """Creates a topic with a unique name; configs have underscores instead of dots."""
        full = f"{name}-{next(_numbers)}"
        self.create_named(full, partitions=partitions, **configs)
        return full

    def create_named(self, name: str, *, partitions: int = 1, **configs: str) -> None:
        settings = {key.replace("_", "."): value for key, value in configs.items()}
        self._admin(lambda admin: admin.create_topic(name, partitions=partitions, configs=settings))

    def delete(self, name: str) -> None:
        self._admin(lambda admin: admin.delete_topic(name))

    def add_partitions(self, name: str, total: int) -> None:
        for error in self._admin(lambda admin: admin.create_partitions({name: total})).values():
            if isinstance(error, Exception):
                raise error

    def delete_records(self, name: str, before: int, *, partition: int = 0) -> None:
        wanted = {TopicPartition(name, partition): before}
        for result in self._admin(lambda admin: admin.delete_records(wanted)).values():
            if isinstance(result, Exception):
                raise result

    def committed(self, group: str) -> dict[TopicPartition, int]:
        offsets = self._admin(lambda admin: admin.list_group_offsets(group))
        return {partition: each.offset for partition, each in offsets.items()}

    def send(self, topic: str, records: Iterable[ProducedRecord | bytes | int], **settings: Any) -> None:
        """Produces records and waits for their acknowledgement. A number is sent as its digits, by default to
        partition 0."""
        given = [_to_produced_record(each) for each in records]

        async def work() -> None:
            async with Producer(self.bootstrap, **settings) as producer:
                for each in given:
                    sent = await producer.send(
                        topic,
                        key=each.key,
                        value=each.value,
                        partition=each.partition,
                        timestamp_ms=each.timestamp_ms,
                        headers=each.headers,
                    )
                await sent

        asyncio.run(work())

    def spread(self, topic: str, counts: Mapping[int, int]) -> None:
        """Produces this many records to each partition; a value is `partition/number`."""
        self.send(
            topic,
            [
                ProducedRecord(f"{partition}/{number}".encode(), partition=partition)
                for partition, count in counts.items()
                for number in range(count)
            ],
        )

    def _admin(self, ask: Any) -> Any:
        async def work() -> Any:
            async with Admin(self.bootstrap) as admin:
                return await ask(admin)

        return asyncio.run(work())


def _to_produced_record(record: ProducedRecord | bytes | int) -> ProducedRecord:
    if isinstance(record, ProducedRecord):
        return record
    return ProducedRecord(record if isinstance(record, bytes) else str(record).encode())
