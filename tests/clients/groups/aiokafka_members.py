"""aiokafka in groups. Its consumers live in one event loop, which has a thread of its own."""

import asyncio
import threading
from collections.abc import Coroutine, Iterable, Mapping
from concurrent.futures import CancelledError
from contextlib import suppress
from typing import Any, TypeVar

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment
from aiokafka.errors import BrokerResponseError, CommitFailedError
from group_member import (
    COMMIT_FAILED,
    DEADLINE_S,
    HEARTBEAT_MS,
    POLL_MS,
    Admin,
    Committed,
    Description,
    GroupMember,
    Library,
    Member,
    Options,
    Partition,
    Record,
    Refused,
)

ASSIGNORS = {
    "range": RangePartitionAssignor,
    "roundrobin": RoundRobinPartitionAssignor,
    "sticky": StickyPartitionAssignor,
}
T = TypeVar("T")


def _plain(partitions: Iterable[Any]) -> list[Partition]:
    return [(each.topic, each.partition) for each in partitions]


class Loop:
    """An event loop that runs while nobody waits for it, as in an asyncio application."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="aiokafka", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(DEADLINE_S)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(DEADLINE_S)
        self._loop.close()


class _Listener(ConsumerRebalanceListener):  # type: ignore[misc]
    def __init__(self, member: "AiokafkaMember") -> None:
        self._member = member

    async def on_partitions_assigned(self, assigned: Iterable[Any]) -> None:
        self._member._tell("assigned", _plain(assigned))

    async def on_partitions_revoked(self, revoked: Iterable[Any]) -> None:
        self._member._tell("revoked", _plain(revoked))


class AiokafkaMember(Member):
    def __init__(self, bootstrap: str, options: Options, loop: Loop) -> None:
        self._loop = loop
        super().__init__(bootstrap, options)

    def _open(self) -> None:
        self._loop.run(self._start())

    async def _start(self) -> None:
        options = self.options
        self._consumer = AIOKafkaConsumer(
            bootstrap_servers=self.bootstrap,
            group_id=options.group,
            client_id=options.client_id,
            group_instance_id=options.instance_id,
            auto_offset_reset="earliest",
            enable_auto_commit=options.auto_commit,
            partition_assignment_strategy=[ASSIGNORS[options.assignor]],
            session_timeout_ms=options.session_timeout_ms,
            heartbeat_interval_ms=HEARTBEAT_MS,
            max_poll_interval_ms=options.max_poll_interval_ms,
            metadata_max_age_ms=200 if options.pattern else 60_000,
            fetch_max_wait_ms=100,
        )
        if options.pattern:
            self._consumer.subscribe(pattern=options.pattern, listener=_Listener(self))
        elif not options.partitions:
            self._consumer.subscribe(list(options.topics), listener=_Listener(self))
        await self._consumer.start()
        if options.partitions:
            self._consumer.assign([TopicPartition(*each) for each in options.partitions])

    def _poll(self) -> list[Record]:
        try:
            batches = self._loop.run(self._consumer.getmany(timeout_ms=POLL_MS))
        except BrokerResponseError as error:
            raise Refused(error.errno, error) from error
        return [
            Record(record.topic, record.partition, record.offset, record.value)
            for batch in batches.values()
            for record in batch
        ]

    def _assigned(self) -> Iterable[Partition]:
        return _plain(self._consumer.assignment())

    def _commit(self, offsets: Mapping[Partition, Committed] | None) -> None:
        wanted = None
        if offsets is not None:
            wanted = {
                TopicPartition(*partition): (offset, metadata) for partition, (offset, metadata) in offsets.items()
            }
        try:
            self._loop.run(self._consumer.commit(wanted))
        except CommitFailedError as error:
            raise Refused(COMMIT_FAILED, error) from error
        except BrokerResponseError as error:
            raise Refused(error.errno, error) from error

    def _committed(self, partition: Partition) -> int | None:
        offset: int | None = self._loop.run(self._consumer.committed(TopicPartition(*partition)))
        return offset

    def _close(self) -> None:
        # When a task of its own is cancelled on the way, aiokafka lets that out of stop().
        with suppress(CancelledError):
            self._loop.run(self._consumer.stop())


class AiokafkaAdmin(Admin):
    def __init__(self, bootstrap: str, loop: Loop) -> None:
        self._loop = loop
        self._loop.run(self._start(bootstrap))

    async def _start(self, bootstrap: str) -> None:
        self._admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
        await self._admin.start()

    def groups(self) -> dict[str, str | None]:
        return {group: None for group, _ in self._loop.run(self._admin.list_consumer_groups())}

    def describe(self, group: str) -> Description:
        (answer,) = self._loop.run(self._admin.describe_consumer_groups([group]))
        ((error, _, state, _, assignor, members, *_),) = answer.groups
        if error:
            raise Refused(error)
        return Description(
            state,
            assignor,
            [
                GroupMember(client_id, None, frozenset(_assignment(assignment)))
                for _, client_id, _, _, assignment in members
            ],
        )

    def offsets(self, group: str) -> dict[Partition, Committed]:
        found = self._loop.run(self._admin.list_consumer_group_offsets(group))
        return {
            (partition.topic, partition.partition): Committed(each.offset, each.metadata)
            for partition, each in found.items()
        }

    def set_offsets(self, group: str, offsets: Mapping[Partition, int]) -> None:
        raise NotImplementedError

    def delete_offsets(self, group: str, partitions: Iterable[Partition]) -> None:
        raise NotImplementedError

    def delete(self, group: str) -> None:
        raise NotImplementedError

    def close(self) -> None:
        self._loop.run(self._admin.close())


def _assignment(data: bytes) -> list[Partition]:
    return _plain(ConsumerProtocolMemberAssignment.decode(data).partitions()) if data else []


class Aiokafka(Library):
    name = "aiokafka"
    assignors = ("range", "roundrobin", "sticky")
    lacks = {
        "delete groups": "aiokafka's admin client cannot delete groups",
        "set offsets": "aiokafka's admin client cannot set offsets",
        "delete offsets": "aiokafka's admin client cannot delete offsets",
        "group states": "aiokafka lists groups in a version without states",
        "describe instances": "aiokafka describes groups in a version without instance ids",
        "stickiness": "aiokafka's sticky assignor does not tell which generation its partitions are of",
        "fencing": "aiokafka's heartbeats carry no instance id: a duplicate cannot be told that it is one",
    }

    def __init__(self) -> None:
        self._loop = Loop()

    def member(self, bootstrap: str, options: Options) -> Member:
        return AiokafkaMember(bootstrap, options, self._loop)

    def admin(self, bootstrap: str) -> Admin:
        return AiokafkaAdmin(bootstrap, self._loop)

    def close(self) -> None:
        self._loop.close()
