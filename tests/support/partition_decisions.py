"""A controller state built from records, for decisions on partitions; decisions are applied at once."""

import dataclasses
import random
from collections.abc import Mapping, Sequence
from typing import TypeVar

from moldau.controller.alter_partition import alter_partition
from moldau.controller.elections import elect_leaderless_partitions, elect_leaders, remove_broker_from_isrs
from moldau.controller.ids import random_uuid
from moldau.controller.partition_change_builder import RetainedData
from moldau.controller.partition_index import PartitionName
from moldau.controller.reassignment import alter_partition_reassignments
from moldau.controller.requests import ElectionType, IsrChange, IsrChangeResult, NewTopic, PartitionResult, Reassignment
from moldau.controller.state import ControllerState
from moldau.controller.topics import create_topics
from moldau.coordinator import CoordinatorResult
from moldau.metadata.image import EMPTY_IMAGE, TOPIC_RESOURCE, PartitionRegistration
from moldau.metadata.records import (
    BrokerRegistrationChangeRecord,
    ConfigRecord,
    Record,
    RegisterBrokerRecord,
    decode,
    encode,
)
from moldau.raft.messages import EpochEndOffset
from moldau.settings.broker import BrokerSettings
from moldau.settings.effective import EffectiveSettings

T = TypeVar("T")

SETTINGS = EffectiveSettings(BrokerSettings(node_id=1))


class ControlledCluster:
    def __init__(
        self,
        brokers: Sequence[int] = (1, 2, 3),
        *,
        racks: Mapping[int, str] | None = None,
        settings: EffectiveSettings = SETTINGS,
        seed: int = 1,
        controller_id: int = -1,
    ) -> None:
        self.state = ControllerState(dataclasses.replace(EMPTY_IMAGE, controller_id=controller_id), settings.static)
        self.settings = settings
        self.random = random.Random(seed)
        self.last_records: Sequence[Record] = ()
        for broker_id in brokers:
            self.register(broker_id, rack=(racks or {}).get(broker_id))
            self.unfence(broker_id)

    def become_controller(self, broker_id: int) -> None:
        """Loads the state of a new controller on another broker."""
        image = dataclasses.replace(self.state.image, controller_id=broker_id)
        self.state = ControllerState(image, self.settings.static)

    # Brokers

    def register(self, broker_id: int, kept: RetainedData = RetainedData.ALL, *, rack: str | None = None) -> None:
        known = self.state.image.brokers.get(broker_id)
        records = [] if known is None else remove_broker_from_isrs(self.state, broker_id, kept)
        registration = RegisterBrokerRecord(
            broker_id=broker_id,
            incarnation_id=random_uuid(self.random),
            broker_epoch=self.state.next_offset,
            rack=rack if known is None else known.rack,
            fenced=True,
        )
        self.apply([registration, *records])

    def fence(self, broker_id: int) -> None:
        self.apply([self._broker_change(broker_id, fenced=1), *remove_broker_from_isrs(self.state, broker_id)])

    def unfence(self, broker_id: int) -> None:
        self.apply([self._broker_change(broker_id, fenced=-1), *elect_leaderless_partitions(self.state, broker_id)])

    def shut_down(self, broker_id: int) -> None:
        """The first step of a controlled shutdown."""
        self.apply(
            [self._broker_change(broker_id, in_controlled_shutdown=1), *remove_broker_from_isrs(self.state, broker_id)]
        )

    def _broker_change(
        self, broker_id: int, *, fenced: int = 0, in_controlled_shutdown: int = 0
    ) -> BrokerRegistrationChangeRecord:
        return BrokerRegistrationChangeRecord(
            broker_id=broker_id,
            broker_epoch=self.state.image.brokers[broker_id].epoch,
            fenced=fenced,
            in_controlled_shutdown=in_controlled_shutdown,
        )

    # Topics

    def create(self, name: str, *replicas: Sequence[int], **configs: str) -> None:
        """Creates a topic with one replica list per partition; `_` in config names is a dot."""
        topic = NewTopic(
            name,
            assignment=dict(enumerate(replicas)),
            configs={key.replace("_", "."): value for key, value in configs.items()},
        )
        [created] = self.do(create_topics(self.state, [topic], self.random, validate_only=False))
        assert created.error is None, created.error

    def configure(self, topic: str, key: str, value: str | None) -> None:
        self.apply([ConfigRecord(resource_type=TOPIC_RESOURCE, resource_name=topic, name=key, value=value)])

    def partition(self, topic: str = "orders", index: int = 0) -> PartitionRegistration:
        found = self.state.image.partition(topic, index)
        assert found is not None
        return found

    # Decisions

    def alter(
        self,
        isr: Sequence[int],
        *,
        topic: str = "orders",
        index: int = 0,
        leader: int | None = None,
        leader_epoch: int | None = None,
        partition_epoch: int | None = None,
        broker_epochs: Mapping[int, int] | None = None,
        is_recovering: bool = False,
    ) -> IsrChangeResult:
        """Requests an ISR change as the partition's leader, with the current state unless given."""
        partition, brokers = self.partition(topic, index), self.state.image.brokers
        leader = partition.leader if leader is None else leader
        epochs = {each: broker.epoch for each, broker in brokers.items()} | dict(broker_epochs or {})
        change = IsrChange(
            self.state.image.topics[topic].topic_id,
            index,
            partition.leader_epoch if leader_epoch is None else leader_epoch,
            partition.partition_epoch if partition_epoch is None else partition_epoch,
            tuple((member, epochs.get(member, -1)) for member in isr),
            is_recovering,
        )
        [result] = self.do(alter_partition(self.state, leader, brokers[leader].epoch, [change]))
        return result

    def elect(
        self,
        election: ElectionType,
        *partitions: tuple[str, int],
        log_ends: Mapping[PartitionName, Mapping[int, EpochEndOffset]] | None = None,
    ) -> list[PartitionResult]:
        """Elects leaders of these partitions, or of all."""
        return self.do(elect_leaders(self.state, election, partitions or None, log_ends or {}))

    def reassign(
        self, replicas: Sequence[int] | None, *, topic: str = "orders", index: int = 0, allow_rf_change: bool = True
    ) -> PartitionResult:
        requested = Reassignment(topic, index, replicas)
        [result] = self.do(alter_partition_reassignments(self.state, [requested], allow_rf_change=allow_rf_change))
        return result

    def do(self, decision: CoordinatorResult[Record, T]) -> T:
        self.apply(decision.records)
        return decision.response

    def apply(self, records: Sequence[Record]) -> None:
        # Encoded and decoded, as when read from the log.
        self.last_records = [decode(encode(record)) for record in records]
        if records:
            self.state.apply(self.last_records, self.state.next_offset + len(records))
