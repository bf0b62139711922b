"""A controller state whose brokers register and send heartbeats, and whose decisions are applied at once.
`partition_decisions.py` has one built from records."""

import dataclasses
import random
from collections.abc import Sequence
from typing import TypeVar

from moldau.controller.cluster_control import process_broker_heartbeat, register_broker
from moldau.controller.configuration_control import alter_configs
from moldau.controller.heartbeat_manager import BrokerHeartbeatManager
from moldau.controller.ids import random_uuid
from moldau.controller.requests import (
    BrokerHeartbeat,
    BrokerRegistrationRequest,
    ConfigChange,
    CreateTopicResult,
    NewTopic,
    PartitionIncrease,
    TopicRef,
    TopicResult,
)
from moldau.controller.state import ControllerState
from moldau.controller.topics import create_partitions, create_topics, delete_topics
from moldau.coordinator import CoordinatorResult
from moldau.errors import MoldauError
from moldau.metadata.image import EMPTY_IMAGE, TOPIC_RESOURCE, ConfigResource, Endpoint
from moldau.metadata.records import BrokerRegistrationChangeRecord, Record
from moldau.settings.broker import BrokerSettings
from moldau.settings.effective import EffectiveSettings

T = TypeVar("T")

SETTINGS = EffectiveSettings(BrokerSettings(node_id=1))
ORDERS = ConfigResource(TOPIC_RESOURCE, "orders")


class Cluster:
    """A controller state that applies decisions at once."""

    def __init__(
        self, brokers: Sequence[int] = (1,), settings: EffectiveSettings = SETTINGS, *, controller_id: int = -1
    ) -> None:
        self.state = ControllerState(dataclasses.replace(EMPTY_IMAGE, controller_id=controller_id), settings.static)
        self.settings = settings
        self.random = random.Random(1)
        self.heartbeat_manager = BrokerHeartbeatManager(3_000)
        for broker_id in brokers:
            self.register(broker_id)
            self.unfence(broker_id)

    def register(self, broker_id: int, rack: str | None = None, *, previous_epoch: int = -1) -> int:
        """Registers a new incarnation of the broker, fenced."""
        endpoints = [Endpoint("P", "h", 9092)]
        return self.register_as(
            BrokerRegistrationRequest(
                broker_id, random_uuid(self.random), endpoints, rack, previous_epoch=previous_epoch
            )
        )

    def register_as(self, broker: BrokerRegistrationRequest) -> int:
        epoch = None
        while epoch is None:
            epoch = self._do(register_broker(self.state, broker, self.heartbeat_manager, 0))
        return epoch

    def unfence(self, broker_id: int) -> None:
        epoch = self.state.image.brokers[broker_id].epoch
        heartbeat = BrokerHeartbeat(broker_id, epoch, self.state.image.offset)
        self._do(process_broker_heartbeat(self.state, heartbeat, self.heartbeat_manager))

    def create(self, *topics: NewTopic, validate_only: bool = False) -> list[CreateTopicResult]:
        return self._do(create_topics(self.state, topics, self.random, validate_only=validate_only))

    def delete(self, *topics: TopicRef) -> list[TopicResult]:
        return self._do(delete_topics(self.state, topics))

    def more(self, *changes: PartitionIncrease, validate_only: bool = False) -> list[TopicResult]:
        return self._do(create_partitions(self.state, changes, self.random, validate_only=validate_only))

    def alter(
        self, resource: ConfigResource, *changes: ConfigChange, incremental: bool = True, validate_only: bool = False
    ) -> MoldauError | None:
        [result] = self._do(
            alter_configs(self.state, {resource: changes}, incremental=incremental, validate_only=validate_only)
        )
        return result.error

    def fence(self, broker_id: int) -> None:
        epoch = self.state.image.brokers[broker_id].epoch
        record = BrokerRegistrationChangeRecord(broker_id=broker_id, broker_epoch=epoch, fenced=1)
        self.state.apply([record], self.state.next_offset + 1)

    def _do(self, decision: CoordinatorResult[Record, T]) -> T:
        self.last_records = list(decision.records)
        if decision.records:
            self.state.apply(decision.records, self.state.next_offset + len(decision.records))
        return decision.response


def error_of(results: Sequence[CreateTopicResult] | Sequence[TopicResult]) -> tuple[type[MoldauError], str]:
    [result] = results
    assert result.error is not None
    return type(result.error), str(result.error)
