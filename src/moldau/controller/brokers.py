"""Decisions on brokers and what the cluster grants them: registrations, producer ids, feature levels."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from uuid import UUID

from moldau.controller.state import ControllerState, bounded
from moldau.decisions import Decision
from moldau.errors import InvalidRequestError
from moldau.metadata.image import ClusterImage, Endpoint
from moldau.metadata.records import (
    BrokerEndpoint,
    BrokerFeature,
    FeatureLevelRecord,
    PartitionChangeRecord,
    ProducerIdsRecord,
    Record,
    RegisterBrokerRecord,
)

METADATA_VERSION = "metadata.version"

SUPPORTED_FEATURES: Mapping[str, tuple[int, int]] = MappingProxyType({METADATA_VERSION: (30, 30)})
"""The lowest and highest level of each feature. Level 30 of the metadata is Kafka's 4.3-IV0: it says in which
versions the metadata records are written."""

PRODUCER_ID_BLOCK = 1000
PRODUCER_ID_LIMIT = 2**63


@dataclass(frozen=True, slots=True)
class Registration:
    """What a broker says of itself when it starts."""

    broker_id: int
    incarnation_id: UUID
    """New with every start of the process."""
    endpoints: Sequence[Endpoint]
    rack: str | None = None
    clean_shutdown: bool = True
    """Whether its logs are as it left them: if not, records that were not yet safe may be gone."""


def register_broker(state: ControllerState, broker: Registration) -> Decision[Record, int]:
    """Registers a broker, ready to lead; the reply is its epoch, the offset of its registration in the log.

    The same incarnation asking again (its first answer was lost, or its endpoints changed) keeps its epoch.
    """
    if not broker.endpoints:
        raise InvalidRequestError(f"Broker {broker.broker_id} registers without an endpoint.")
    known = state.image.brokers.get(broker.broker_id)
    same = known if known is not None and known.incarnation_id == broker.incarnation_id else None
    epoch = state.next_offset if same is None else same.epoch
    records: list[Record] = [
        RegisterBrokerRecord(
            broker_id=broker.broker_id,
            incarnation_id=broker.incarnation_id,
            broker_epoch=epoch,
            end_points=tuple(
                BrokerEndpoint(
                    name=at.listener, host=at.host, port=at.port, security_protocol=at.security_protocol
                )
                for at in broker.endpoints
            ),
            features=tuple(
                BrokerFeature(name=name, min_supported_version=low, max_supported_version=high)
                for name, (low, high) in SUPPORTED_FEATURES.items()
            ),
            rack=broker.rack,
            fenced=False if same is None else same.fenced,
            in_controlled_shutdown=False if same is None else same.in_controlled_shutdown,
        )
    ]
    if same is None and not broker.clean_shutdown:
        records += _new_leader_epochs(state.image, broker.broker_id)
    return Decision(records, epoch)


def _new_leader_epochs(image: ClusterImage, broker_id: int) -> list[Record]:
    """A leader that came back with a shorter log must not write new records under the epoch of those it lost:
    who has read or copied the lost ones finds out by the epoch."""
    return [
        PartitionChangeRecord(partition_id=partition.index, topic_id=topic.topic_id, leader=broker_id)
        for topic in image.topics.values()
        for partition in topic.partitions
        if partition.leader == broker_id
    ]


def allocate_producer_ids(state: ControllerState, broker_id: int) -> Decision[Record, range]:
    """The next block of ids, for this broker alone and for ever."""
    broker = state.image.brokers.get(broker_id)
    if broker is None:
        raise InvalidRequestError(f"Broker {broker_id} is not registered.")
    first = state.image.next_producer_id
    block = range(first, first + PRODUCER_ID_BLOCK)
    if block.stop > PRODUCER_ID_LIMIT:
        raise InvalidRequestError("All producer ids have been given away.")
    record = ProducerIdsRecord(broker_id=broker_id, broker_epoch=broker.epoch, next_producer_id=block.stop)
    return Decision([record], block)


def update_features(state: ControllerState, levels: Mapping[str, int]) -> Decision[Record, None]:
    """Sets the levels that the whole cluster works at."""
    for name, level in levels.items():
        low, high = SUPPORTED_FEATURES.get(name, (0, 0))
        if not low <= level <= high or level == 0:
            raise InvalidRequestError(f"Feature {name} is not supported at level {level}.")
    return Decision(
        bounded(
            [
                FeatureLevelRecord(name=name, feature_level=level)
                for name, level in levels.items()
                if state.image.features.get(name) != level
            ]
        ),
        None,
    )
