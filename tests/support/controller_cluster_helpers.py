"""What stories of a controller's upkeep have in common: times, a topic, and what to look at."""

from moldau.broker_lifecycle.state import BrokerState
from moldau.controller.requests import (
    NewTopic,
)
from moldau.metadata.image import PartitionRegistration
from moldau.metadata.records import BrokerRegistrationChangeRecord, Record
from support.controller_cluster import ControllerCluster

SESSION_MS = 3_000
FETCH_TIMEOUT_MS = 1_500
INTERVAL_MS = 500


def no_lease_outlives_its_session(stage: ControllerCluster) -> None:
    """Fails the test if a broker is fenced while its lease is valid."""

    def check(offset: int, record: Record) -> None:
        if isinstance(record, BrokerRegistrationChangeRecord) and record.fenced > 0:
            node = stage.nodes[record.broker_id]
            if (
                node.lifecycle.phase is not BrokerState.CONTROLLED_SHUTDOWN
                and node.lifecycle.lease.is_valid()
            ):
                stage.violations.append(f"{record.broker_id} is fenced while its lease runs")

    stage.on_append = check


async def with_topic(
    stage: ControllerCluster,
    *replicas: list[int],
    name: str = "orders",
    configs: dict[str, str] | None = None,
) -> None:
    topic = NewTopic(name, assignment=dict(enumerate(replicas)), configs=configs or {})
    [created] = await stage.controller.create_topics([topic])
    assert created.error is None


def orders(stage: ControllerCluster, index: int = 0) -> PartitionRegistration:
    return stage.image.topics["orders"].partitions[index]


def is_fenced(stage: ControllerCluster, broker_id: int) -> bool:
    return stage.image.brokers[broker_id].fenced
