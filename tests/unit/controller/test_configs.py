"""What the controller decides of configs: one by one or all at once, and nothing where one cannot be."""

from collections.abc import Sequence

import pytest

from moldau.controller.configuration_control import alter_configs
from moldau.controller.requests import ConfigChange, ConfigOperation, NewTopic
from moldau.errors import (
    InvalidConfigError,
    InvalidRequestError,
    InvalidTopicError,
    MoldauError,
    PolicyViolationError,
    UnknownTopicOrPartitionError,
)
from moldau.metadata.image import BROKER_RESOURCE, TOPIC_RESOURCE, ConfigResource
from support.decided_cluster import ORDERS, Cluster


def with_orders(**configs: str) -> Cluster:
    cluster = Cluster()
    cluster.create(
        NewTopic("orders", 1, 1, configs={name.replace("_", "."): at for name, at in configs.items()})
    )
    return cluster


def test_incremental_changes_touch_only_what_they_name() -> None:
    cluster = with_orders(retention_ms="1", segment_bytes="4194304")
    assert (
        cluster.alter(
            ORDERS,
            ConfigChange("retention.ms", None, ConfigOperation.DELETE),
            ConfigChange("max.message.bytes", "5"),
        )
        is None
    )
    assert cluster.state.image.config(ORDERS) == {"segment.bytes": "4194304", "max.message.bytes": "5"}
    assert len(cluster.last_records) == 2


def test_the_old_way_replaces_everything() -> None:
    cluster = with_orders(retention_ms="1", segment_bytes="4194304")
    assert cluster.alter(ORDERS, ConfigChange("retention.ms", "2"), incremental=False) is None
    assert cluster.state.image.config(ORDERS) == {"retention.ms": "2"}


def test_lists_can_be_added_to_and_subtracted_from() -> None:
    cluster = with_orders()
    change = ConfigChange("cleanup.policy", "compact", ConfigOperation.APPEND)
    assert cluster.alter(ORDERS, change) is None
    assert cluster.state.image.config(ORDERS) == {"cleanup.policy": "delete,compact"}
    assert cluster.alter(ORDERS, ConfigChange("cleanup.policy", "delete", ConfigOperation.SUBTRACT)) is None
    assert cluster.state.image.config(ORDERS) == {"cleanup.policy": "compact"}


def test_a_change_to_what_is_there_writes_nothing() -> None:
    cluster = with_orders(retention_ms="1")
    assert cluster.alter(ORDERS, ConfigChange("retention.ms", "1")) is None
    assert cluster.last_records == []
    assert cluster.alter(ORDERS, ConfigChange("segment.ms", "5"), validate_only=True) is None
    assert cluster.last_records == []


@pytest.mark.parametrize(
    ("resource", "changes", "kind"),
    [
        (ORDERS, [ConfigChange("retention.ms", "soon")], InvalidConfigError),
        (ORDERS, [ConfigChange("no.such", "1")], InvalidConfigError),
        (ORDERS, [ConfigChange("segment.ms", "5"), ConfigChange("no.such", "1")], InvalidConfigError),
        (ORDERS, [ConfigChange("retention.ms", "1"), ConfigChange("retention.ms", "2")], InvalidRequestError),
        (ORDERS, [ConfigChange("retention.ms", None)], InvalidRequestError),
        (ORDERS, [ConfigChange("retention.ms", "1", ConfigOperation.APPEND)], InvalidConfigError),
        (ConfigResource(TOPIC_RESOURCE, "no"), [], UnknownTopicOrPartitionError),
        (ConfigResource(TOPIC_RESOURCE, ""), [], InvalidRequestError),
        (ConfigResource(TOPIC_RESOURCE, "a/b"), [], InvalidTopicError),
        (ConfigResource(BROKER_RESOURCE, "9"), [], InvalidRequestError),
        (ConfigResource(BROKER_RESOURCE, "-1"), [], InvalidRequestError),
        (ConfigResource(BROKER_RESOURCE, "one"), [], InvalidRequestError),
        (ConfigResource(1, "x"), [], InvalidRequestError),
    ],
)
def test_changes_that_cannot_be_are_refused_and_write_nothing(
    resource: ConfigResource, changes: Sequence[ConfigChange], kind: type[MoldauError]
) -> None:
    cluster = with_orders()
    assert type(cluster.alter(resource, *changes)) is kind
    assert cluster.last_records == []


def test_configs_of_brokers_are_kept_for_one_and_for_all() -> None:
    cluster = Cluster()
    for name in ("1", ""):
        resource = ConfigResource(BROKER_RESOURCE, name)
        assert cluster.alter(resource, ConfigChange("log.retention.ms", "7")) is None
        assert cluster.state.image.config(resource) == {"log.retention.ms": "7"}


@pytest.mark.parametrize(
    ("resource", "name"),
    [
        (ORDERS, "leader.replication.throttled.replicas"),
        (ConfigResource(BROKER_RESOURCE, "1"), "log.leader.replication.throttled.replicas"),
        (ConfigResource(BROKER_RESOURCE, ""), "log.leader.replication.throttled.replicas"),
    ],
)
def test_no_value_grows_beyond_what_a_client_can_be_told(resource: ConfigResource, name: str) -> None:
    cluster = with_orders()
    longest = ",".join(["10000:1", *(f"{partition}:1" for partition in range(100_000, 103_640))])
    assert len(longest) == 32_767
    assert cluster.alter(resource, ConfigChange(name, longest)) is None
    error = cluster.alter(resource, ConfigChange(name, "1:1", ConfigOperation.APPEND))
    assert isinstance(error, InvalidConfigError)
    assert str(error) == f"The value of configuration {name} has 32771 bytes; the maximum is 32767"
    assert cluster.last_records == []
    assert cluster.state.image.config(resource) == {name: longest}


def test_configs_that_are_too_large_for_one_batch_of_the_log_are_refused() -> None:
    name = "leader.replication.throttled.replicas"
    change = ConfigChange(name, ",".join(f"{partition}:1" for partition in range(100_000, 103_640)))
    assert change.value is not None
    fitting = 8 * 1024 * 1024 // len(change.value)
    cluster = Cluster()
    for number in range(fitting + 1):
        cluster.create(NewTopic(f"topic-{number}", 1, 1))

    def alter(topics: int) -> int:
        changes = {ConfigResource(TOPIC_RESOURCE, f"topic-{number}"): [change] for number in range(topics)}
        return len(
            alter_configs(
                cluster.state, changes, cluster.settings, incremental=True, validate_only=False
            ).records
        )

    assert alter(fitting) == fitting
    with pytest.raises(PolicyViolationError):
        alter(fitting + 1)
