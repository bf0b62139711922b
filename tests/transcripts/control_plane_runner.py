"""Runs the commands of a transcript on a control plane of one node and prints what its components do."""

import asyncio
import dataclasses
from collections.abc import Sequence
from uuid import UUID

from moldau.controller.requests import ConfigChange, ConfigOperation, NewTopic, PartitionIncrease, TopicRef
from moldau.errors import MoldauError
from moldau.metadata.image import TOPIC_RESOURCE, ConfigResource, MetadataDelta, MetadataImage
from moldau.metadata.records import Record, decode
from moldau.raft.batches import read_committed_batch
from moldau.raft.epoch_roles import ElectionState
from moldau.raft.quorum_state_store import MemoryQuorumStateStore
from moldau.records.batch import Batch
from support.control_plane import NODE, ControlPlane, TestLog


class ControlPlaneTranscriptRunner:
    def __init__(self) -> None:
        self.lines: list[str] = []
        self._plane = ControlPlane(log=_TracedLog(self), elections=_TracedStateStore(self))

    async def execute(self, command: str) -> list[str]:
        """Returns the output until the response, and until no task is left to run."""
        self.lines = []
        calls = [self._call(each.strip()) for each in command.split(" & ")]
        await asyncio.gather(*calls)
        for _ in range(50):
            await asyncio.sleep(0)
        return self.lines

    def emit(self, component: str, text: str) -> None:
        self.lines.append(f"{component:<8} {text}")

    async def _call(self, command: str) -> None:
        verb, *words = command.split()
        try:
            response = await getattr(self, f"_{verb.replace('-', '_')}")(*words)
        except MoldauError as error:
            response = _format_error(error)
        self.emit("response", response)

    # Commands

    async def _boot(self, how: str = "clean") -> str:
        controller = await self._plane.boot(clean=how == "clean", publisher=self._publish)
        return f"controller {controller.controller_id} is active in epoch {controller.epoch}"

    async def _stop(self) -> str:
        await self._plane.shut_down()
        return "stopped"

    async def _create(self, name: str, partitions: str, *configs: str) -> str:
        topic = NewTopic(name, int(partitions), 1, configs=dict(each.split("=") for each in configs))
        [created] = await self._plane.controller.create_topics([topic])
        if created.error is not None:
            return _format_error(created.error)
        return f"{name} is created with {created.partitions} partition(s)"

    async def _delete(self, name: str) -> str:
        [deleted] = await self._plane.controller.delete_topics([TopicRef(name)])
        return f"{name} is deleted" if deleted.error is None else _format_error(deleted.error)

    async def _create_partitions(self, name: str, count: str) -> str:
        [grown] = await self._plane.controller.create_partitions([PartitionIncrease(name, int(count))])
        return f"{name} has {count} partitions" if grown.error is None else _format_error(grown.error)

    async def _set(self, name: str, *configs: str) -> str:
        return await self._alter(name, [ConfigChange(*each.split("=")) for each in configs], incremental=True)

    async def _unset(self, name: str, *keys: str) -> str:
        changes = [ConfigChange(key, None, ConfigOperation.DELETE) for key in keys]
        return await self._alter(name, changes, incremental=True)

    async def _replace(self, name: str, *configs: str) -> str:
        return await self._alter(name, [ConfigChange(*each.split("=")) for each in configs], incremental=False)

    async def _alter(self, name: str, changes: Sequence[ConfigChange], *, incremental: bool) -> str:
        resource = ConfigResource(TOPIC_RESOURCE, name)
        [result] = await self._plane.controller.alter_configs({resource: changes}, incremental=incremental)
        if result.error is not None:
            return _format_error(result.error)
        return f"{name} has {dict(self._plane.image.config(resource)) or 'no configs'}"

    async def _producer_ids(self) -> str:
        block = await self._plane.controller.allocate_producer_ids(NODE, self._plane.broker_epoch)
        return f"producer ids {block.start} to {block.stop - 1}"

    # Output

    def _publish(self, delta: MetadataDelta, image: MetadataImage) -> None:
        self.emit("image", f"at offset {image.offset}, controller {image.controller_id}")
        for broker_id in delta.brokers_changed:
            broker = image.brokers[broker_id]
            self.emit("", f"broker {broker_id} has epoch {broker.epoch}{', fenced' if broker.fenced else ''}")
        for feature in delta.features_changed:
            self.emit("", f"feature {feature} is at level {image.features.get(feature, 0)}")
        for topic in delta.topics_deleted:
            self.emit("", f"topic {topic.name} was deleted")
        for name in delta.topics_created:
            self.emit("", f"topic {name} is new")
        for name, index in delta.partitions_changed:
            partition = image.topics[name].partitions[index]
            self.emit("", f"{name}-{index} has leader {partition.leader} in epoch {partition.leader_epoch}")
        for resource in delta.configs_changed:
            self.emit("", f"{resource.name or 'every broker'} has configs {dict(image.config(resource))}")


class _TracedLog(TestLog):
    def __init__(self, runner: ControlPlaneTranscriptRunner) -> None:
        super().__init__()
        self._runner = runner

    async def append(self, batches: Sequence[Batch]) -> None:
        await super().append(batches)
        for batch in batches:
            committed = read_committed_batch(batch)
            if committed.leader_id is not None:
                self._runner.emit(
                    "log", f"{batch.base_offset}: epoch {committed.epoch} has leader {committed.leader_id}"
                )
            for offset, value in enumerate(committed.values, batch.base_offset):
                self._runner.emit("log", f"{offset}: {_format_record(decode(value))}")

    async def flush(self) -> None:
        previous = self.durable_offset
        await super().flush()
        if self.durable_offset > previous:
            self._runner.emit("log", f"durable below {self.durable_offset}")


class _TracedStateStore(MemoryQuorumStateStore):
    def __init__(self, runner: ControlPlaneTranscriptRunner) -> None:
        super().__init__()
        self._runner = runner

    async def save(self, election: ElectionState) -> None:
        await super().save(election)
        leader = "no leader" if election.leader_id < 0 else f"leader {election.leader_id}"
        self._runner.emit("quorum", f"persists epoch {election.epoch}, vote {election.voted_for}, {leader}")


def _format_record(record: Record) -> str:
    """Returns the record's type and its fields without defaults."""
    shown = [type(record).__name__]
    for field in dataclasses.fields(record):
        value = getattr(record, field.name)
        if value != field.default and field.name not in ("end_points", "features", "directories"):
            shown.append(f"{field.name}={value.hex[:8] if isinstance(value, UUID) else value}")
    return " ".join(shown)


def _format_error(error: MoldauError) -> str:
    return f"{type(error).__name__}: {error}"
