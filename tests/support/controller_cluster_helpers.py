"""Helpers for tests with `ControllerCluster`: settings, a topic, and checks."""

from moldau.broker_lifecycle.state import BrokerState
from moldau.controller.requests import NewTopic
from moldau.metadata.image import PartitionRegistration
from moldau.metadata.records import BrokerRegistrationChangeRecord, Record
from support.controller_cluster import ControllerCluster

SESSION_MS = 3_000
FETCH_TIMEOUT_MS = 1_500
INTERVAL_MS = 500


def no_lease_outlives_its_session(cluster: ControllerCluster) -> None:
    """Fails the test if a broker is fenced while its lease is valid."""

    def check(offset: int, record: Record) -> None:
        if isinstance(record, BrokerRegistrationChangeRecord) and record.fenced > 0:
            node = cluster.nodes[record.broker_id]
            if node.lifecycle.phase is not BrokerState.CONTROLLED_SHUTDOWN and node.lifecycle.lease.is_valid():
                cluster.violations.append(f"{record.broker_id} is fenced while its lease runs")

    cluster.on_append = check


async def with_topic(
    cluster: ControllerCluster, *replicas: list[int], name: str = "orders", configs: dict[str, str] | None = None
) -> None:
    topic = NewTopic(name, assignment=dict(enumerate(replicas)), configs=configs or {})
    [created] = await cluster.controller.create_topics([topic])
    assert created.error is None


def orders(cluster: ControllerCluster, index: int = 0) -> PartitionRegistration:
    return cluster.image.topics["orders"].partitions[index]


def is_fenced(cluster: ControllerCluster, broker_id: int) -> bool:
    return cluster.image.brokers[broker_id].fenced
