"""Runs the commands of a transcript on brokers and controllers in virtual time, and prints their messages and state
changes.

The numbers in front are milliseconds since the command.
"""

import asyncio
from uuid import UUID

from moldau.broker_lifecycle.state import BrokerState
from moldau.controller.requests import NewTopic
from moldau.errors import MoldauError
from moldau.metadata.records import (
    NO_LEADER_CHANGE,
    BrokerRegistrationChangeRecord,
    PartitionChangeRecord,
    Record,
    RegisterBrokerRecord,
    UnregisterBrokerRecord,
)
from support.controller_cluster import ControllerCluster

SETTLES_MS = 30


class BrokerTranscriptRunner:
    def __init__(self) -> None:
        self.lines: list[str] = []
        self._stage: ControllerCluster | None = None
        self._began_ms = 0
        self._emitted: dict[int, str] = {}

    @property
    def stage(self) -> ControllerCluster:
        if self._stage is None:
            # Only a running loop has a clock.
            self._stage = ControllerCluster()
            self._stage.on_append = self._appended
        return self._stage

    async def execute(self, command: str) -> list[str]:
        self.lines = []
        verb, *words = command.split()
        if verb == "end":
            await self.stage.close()
            return []
        self._began_ms = self.stage.clock.monotonic_ms()
        doing = asyncio.ensure_future(getattr(self, f"_{verb.replace('-', '_')}")(*words))
        while not doing.done():
            await self._look()
        try:
            response = await doing
        except MoldauError as error:
            response = f"{type(error).__name__}: {error}"
        if response:
            self._emit("response", response)
        if verb != "wait":
            for _ in range(SETTLES_MS):
                await self._look()
        return self.lines

    # Commands

    async def _boot(self, *node_ids: str) -> str:
        await self.stage.boot(*map(int, node_ids))
        return f"controller {self.stage.leader_id} is active, all brokers are"

    async def _topic(self, name: str, *replicas: str) -> str:
        assignment = {index: [*map(int, each.split(","))] for index, each in enumerate(replicas)}
        [created] = await self.stage.controller.create_topics([NewTopic(name, assignment=assignment)])
        assert created.error is None
        deadline_ms = self.stage.clock.monotonic_ms() + 2_000
        unready = await self.stage.controller.wait_replicas_ready([name], deadline_ms)
        return "; ".join(unready[name].reasons) if unready else f"{name} is ready"

    async def _cut_off(self, node_id: str) -> None:
        self.stage.nodes[int(node_id)].cut_off()

    async def _heal(self, node_id: str) -> None:
        self.stage.nodes[int(node_id)].heal()

    async def _kill(self, node_id: str) -> None:
        del self._emitted[int(node_id)]
        await self.stage.nodes[int(node_id)].kill()

    async def _stop(self, node_id: str) -> str:
        """A controlled shutdown."""
        node = self.stage.nodes[int(node_id)]
        await node.lifecycle.shut_down()
        return f"broker {node_id} may stop"

    async def _start(self, node_id: str, how: str = "unclean") -> str:
        former = self.stage.nodes[int(node_id)]
        if not former.is_dead:
            await former.close()
        previous_epoch = former.lifecycle.broker_epoch if how == "clean" else -1
        node = self.stage.add(int(node_id), previous_epoch=previous_epoch)
        await node.start()
        await node.lifecycle.wait_until_active()
        return f"broker {node_id} is back"

    async def _elect(self, node_id: str) -> None:
        self._emit("quorum", f"elects {node_id}")
        self.stage.elect(int(node_id))

    async def _wait(self, milliseconds: str) -> None:
        await self.stage.pass_ms(int(milliseconds))

    # Output

    async def _look(self) -> None:
        await self.stage.pass_ms(1)
        for node_id, node in self.stage.nodes.items():
            if node.is_dead:
                continue
            phase = node.lifecycle.phase
            shown = phase.value
            if phase in (BrokerState.ACTIVE, BrokerState.CONTROLLED_SHUTDOWN) and not node.lifecycle.lease.is_valid():
                shown += ", its lease is over"
            if self._emitted.get(node_id, BrokerState.STARTING.value) != shown:
                self._emitted[node_id] = shown
                self._emit(f"broker {node_id}", f"is {shown}")

    def _emit(self, who: str, what: str) -> None:
        elapsed_ms = self.stage.clock.monotonic_ms() - self._began_ms
        self.lines.append(f"{elapsed_ms:>5}  {who:<9} {what}")

    def _appended(self, offset: int, record: Record) -> None:
        match record:
            case RegisterBrokerRecord():
                shown = f"broker {record.broker_id} registers with epoch {record.broker_epoch}"
            case UnregisterBrokerRecord():
                shown = f"broker {record.broker_id} is registered no more"
            case BrokerRegistrationChangeRecord():
                shown = f"broker {record.broker_id} {_change(record)}"
            case PartitionChangeRecord():
                shown = f"{self._name(record.topic_id)}-{record.partition_id} {_partition(record)}"
            case _:
                return
        self._emit("decision", f"{offset}: {shown}")

    def _name(self, topic_id: UUID) -> str:
        return next(
            node.loader.image.topic_names[topic_id]
            for node in self.stage.nodes.values()
            if topic_id in node.loader.image.topic_names
        )


def _change(record: BrokerRegistrationChangeRecord) -> str:
    if record.in_controlled_shutdown:
        return "is shutting down"
    return "is fenced" if record.fenced > 0 else "is taken in"


def _partition(record: PartitionChangeRecord) -> str:
    shown = []
    if record.leader != NO_LEADER_CHANGE:
        shown.append("has no leader" if record.leader < 0 else f"is led by {record.leader}")
    if record.isr is not None:
        shown.append(f"has {','.join(map(str, record.isr))} in sync")
    if record.eligible_leader_replicas is not None:
        shown.append(f"could be led by {','.join(map(str, record.eligible_leader_replicas)) or 'no other'}")
    return ", ".join(shown)
