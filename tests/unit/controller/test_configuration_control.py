"""Decisions on configs: incremental or as a whole, each resource atomically."""

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
from support.controller_decisions import ORDERS, Cluster


def with_orders(**configs: str) -> Cluster:
    cluster = Cluster()
    cluster.create(NewTopic("orders", 1, 1, configs={name.replace("_", "."): at for name, at in configs.items()}))
    return cluster


def test_incremental_changes_leave_other_configs_unchanged() -> None:
    cluster = with_orders(retention_ms="1", segment_bytes="4194304")
    assert (
        cluster.alter(
            ORDERS, ConfigChange("retention.ms", None, ConfigOperation.DELETE), ConfigChange("max.message.bytes", "5")
        )
        is None
    )
    assert cluster.state.image.config(ORDERS) == {"segment.bytes": "4194304", "max.message.bytes": "5"}
    assert len(cluster.last_records) == 2


def test_alter_configs_replaces_the_whole_config() -> None:
    cluster = with_orders(retention_ms="1", segment_bytes="4194304")
    assert cluster.alter(ORDERS, ConfigChange("retention.ms", "2"), incremental=False) is None
    assert cluster.state.image.config(ORDERS) == {"retention.ms": "2"}


def test_list_configs_support_append_and_subtract() -> None:
    cluster = with_orders()
    change = ConfigChange("cleanup.policy", "compact", ConfigOperation.APPEND)
    assert cluster.alter(ORDERS, change) is None
    assert cluster.state.image.config(ORDERS) == {"cleanup.policy": "delete,compact"}
    assert cluster.alter(ORDERS, ConfigChange("cleanup.policy", "delete", ConfigOperation.SUBTRACT)) is None
    assert cluster.state.image.config(ORDERS) == {"cleanup.policy": "compact"}


def test_an_unchanged_value_writes_no_record() -> None:
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
def test_invalid_changes_are_rejected_and_write_no_record(
    resource: ConfigResource, changes: Sequence[ConfigChange], kind: type[MoldauError]
) -> None:
    cluster = with_orders()
    assert type(cluster.alter(resource, *changes)) is kind
    assert cluster.last_records == []


def test_broker_configs_exist_per_broker_and_as_cluster_default() -> None:
    cluster = Cluster()
    for name in ("1", ""):
        resource = ConfigResource(BROKER_RESOURCE, name)
        assert cluster.alter(resource, ConfigChange("log.retention.ms", "7")) is None
        assert cluster.state.image.config(resource) == {"log.retention.ms": "7"}


def test_unknown_broker_configs_are_stored() -> None:
    cluster = Cluster()
    resource = ConfigResource(BROKER_RESOURCE, "1")
    assert cluster.alter(resource, ConfigChange("no.such", "7"), ConfigChange("", "8")) is None
    assert cluster.state.image.config(resource) == {"no.such": "7", "": "8"}
    assert type(cluster.alter(resource, ConfigChange("no.such", "9", ConfigOperation.APPEND))) is InvalidConfigError


def test_long_names_of_unknown_configs_count_towards_the_size_of_a_batch() -> None:
    cluster = Cluster()
    changes = [ConfigChange(f"{number}".rjust(30_000, "x"), "") for number in range(300)]
    with pytest.raises(PolicyViolationError):
        cluster.alter(ConfigResource(BROKER_RESOURCE, "1"), *changes)


@pytest.mark.parametrize(
    ("resource", "name"),
    [
        (ORDERS, "leader.replication.throttled.replicas"),
        (ConfigResource(BROKER_RESOURCE, "1"), "log.leader.replication.throttled.replicas"),
        (ConfigResource(BROKER_RESOURCE, ""), "log.leader.replication.throttled.replicas"),
    ],
)
def test_appended_values_are_limited_in_size(resource: ConfigResource, name: str) -> None:
    cluster = with_orders()
    longest = ",".join(["10000:1", *(f"{partition}:1" for partition in range(100_000, 103_640))])
    assert len(longest) == 32_767
    assert cluster.alter(resource, ConfigChange(name, longest)) is None
    error = cluster.alter(resource, ConfigChange(name, "1:1", ConfigOperation.APPEND))
    assert isinstance(error, InvalidConfigError if resource == ORDERS else InvalidRequestError)
    assert str(error) == f"The value of configuration {name} has 32771 bytes; the maximum is 32767"
    assert cluster.last_records == []
    assert cluster.state.image.config(resource) == {name: longest}


def test_configs_too_large_for_one_batch_are_rejected() -> None:
    name = "leader.replication.throttled.replicas"
    change = ConfigChange(name, ",".join(f"{partition}:1" for partition in range(100_000, 103_640)))
    assert change.value is not None
    fitting = 8 * 1024 * 1024 // (len(name) + len(change.value))
    cluster = Cluster()
    for number in range(fitting + 1):
        cluster.create(NewTopic(f"topic-{number}", 1, 1))

    def alter(topics: int) -> int:
        changes = {ConfigResource(TOPIC_RESOURCE, f"topic-{number}"): [change] for number in range(topics)}
        return len(alter_configs(cluster.state, changes, incremental=True, validate_only=False).records)

    assert alter(fitting) == fitting
    with pytest.raises(PolicyViolationError):
        alter(fitting + 1)
