"""Decisions on the levels of features."""

from uuid import UUID

import pytest

from moldau.controller.feature_control import set_highest_levels, update_features
from moldau.controller.features import ELR_VERSION, METADATA_VERSION, TRANSACTION_VERSION
from moldau.controller.requests import (
    BrokerRegistrationRequest,
    ConfigChange,
    ConfigOperation,
    FeatureUpdate,
    NewTopic,
    UpgradeType,
)
from moldau.errors import InvalidConfigError, InvalidUpdateVersionError
from moldau.metadata.image import BROKER_RESOURCE, TOPIC_RESOURCE, ConfigResource, Endpoint
from moldau.metadata.records import ConfigRecord, FeatureLevelRecord, PartitionChangeRecord
from moldau.settings.effective import ALL_BROKERS, EffectiveSettings
from moldau.settings.sources import build_settings
from support.controller_decisions import Cluster

MIN_ISR = "min.insync.replicas"
BROKER_1 = ConfigResource(BROKER_RESOURCE, "1")
UPGRADE, SAFE, UNSAFE = UpgradeType
SHARE = "share.version"
NO_DOWNGRADE = (
    "Can't downgrade the version of this feature without setting the upgrade type to either safe or unsafe downgrade."
)
SUPPORTED = {METADATA_VERSION: (29, 30), ELR_VERSION: (1, 1), SHARE: (0, 3)}
"""Levels of a controller that can change some."""


def capable_cluster(**settings: str) -> Cluster:
    """A cluster without finalized features, whose broker supports `SUPPORTED`."""
    flags = {name.replace("_", "."): value for name, value in settings.items()}
    cluster = Cluster(brokers=(), settings=EffectiveSettings(build_settings(flags=flags)))
    request = BrokerRegistrationRequest(1, UUID(int=1), [Endpoint("P", "h", 9092)], features=SUPPORTED)
    cluster.register_as(request)
    cluster.unfence(1)
    return cluster


def update(cluster: Cluster, *updates: FeatureUpdate, validate_only: bool = False) -> None:
    cluster._do(update_features(cluster.state, updates, validate_only=validate_only, supported=SUPPORTED))


def refusal(cluster: Cluster, *updates: FeatureUpdate) -> str:
    with pytest.raises(InvalidUpdateVersionError) as caught:
        update(cluster, *updates)
    prefix = "The update failed for all features since the following feature had an error: "
    assert str(caught.value).startswith(prefix)
    return str(caught.value).removeprefix(prefix)


def test_a_new_cluster_has_the_highest_levels() -> None:
    cluster = Cluster(brokers=())
    cluster._do(set_highest_levels(cluster.state))
    assert cluster.state.image.features == {METADATA_VERSION: 30, ELR_VERSION: 1, TRANSACTION_VERSION: 2}
    assert cluster.state.image.config(ALL_BROKERS) == {MIN_ISR: "1"}
    assert set_highest_levels(cluster.state).records == []


def test_levels_can_be_raised_and_lowered() -> None:
    cluster = capable_cluster()
    update(cluster, FeatureUpdate(SHARE, 2), FeatureUpdate(METADATA_VERSION, 30))
    assert cluster.state.image.features == {SHARE: 2, METADATA_VERSION: 30}
    for level, upgrade_type in ((1, SAFE), (0, UNSAFE)):
        update(cluster, FeatureUpdate(SHARE, level, upgrade_type))
        assert cluster.state.image.features.get(SHARE, 0) == level


def test_a_level_that_does_not_change_writes_no_record() -> None:
    cluster = capable_cluster()
    update(cluster, FeatureUpdate(SHARE, 2))
    for upgrade_type in UpgradeType:
        update(cluster, FeatureUpdate(SHARE, 2, upgrade_type))
        assert cluster.last_records == []


def test_validate_only_writes_no_record() -> None:
    cluster = capable_cluster()
    update(cluster, FeatureUpdate(SHARE, 2), FeatureUpdate(ELR_VERSION, 1), validate_only=True)
    assert cluster.last_records == []
    with pytest.raises(InvalidUpdateVersionError):
        update(cluster, FeatureUpdate(SHARE, 4), validate_only=True)


def test_the_last_update_of_a_feature_counts() -> None:
    cluster = capable_cluster()
    update(cluster, FeatureUpdate(SHARE, 1), FeatureUpdate(SHARE, 3))
    assert cluster.last_records == [FeatureLevelRecord(name=SHARE, feature_level=3)]


@pytest.mark.parametrize(
    ("refused", "reason"),
    [
        (FeatureUpdate("no.such", 1), "Local controller 1 does not support this feature."),
        (FeatureUpdate("no.such", 0), "Feature no.such not found."),
        (FeatureUpdate(METADATA_VERSION, 31), "Local controller 1 only supports versions 29-30"),
        (FeatureUpdate(METADATA_VERSION, 0), "Local controller 1 only supports versions 29-30"),
        (FeatureUpdate(METADATA_VERSION, -1), "A feature version cannot be less than 0."),
        (FeatureUpdate(SHARE, 2, 0), "The controller does not support the given upgrade type."),
        (FeatureUpdate(SHARE, 2, 4), "The controller does not support the given upgrade type."),
        (FeatureUpdate(SHARE, 3, SAFE), "Can't downgrade to a newer version."),
        (FeatureUpdate(SHARE, 3, UNSAFE), "Can't downgrade to a newer version."),
        (FeatureUpdate(SHARE, 1), NO_DOWNGRADE),
    ],
)
def test_an_update_that_is_not_allowed_changes_nothing(refused: FeatureUpdate, reason: str) -> None:
    cluster = capable_cluster()
    update(cluster, FeatureUpdate(SHARE, 2))
    said = refusal(cluster, FeatureUpdate(METADATA_VERSION, 30), refused)
    assert said == f"Invalid update version {refused.level} for feature {refused.name}. {reason}"
    assert cluster.state.image.features == {SHARE: 2}


def test_every_registered_broker_must_support_the_level() -> None:
    cluster = capable_cluster()
    old = BrokerRegistrationRequest(2, UUID(int=2), [Endpoint("P", "h", 9093)], features={SHARE: (0, 1)})
    cluster.register_as(old)
    assert refusal(cluster, FeatureUpdate(SHARE, 2)).endswith("Broker 2 only supports versions 0-1")
    assert refusal(cluster, FeatureUpdate(ELR_VERSION, 1)).endswith("Broker 2 does not support this feature.")
    update(cluster, FeatureUpdate(SHARE, 1))
    assert cluster.state.image.features == {SHARE: 1}


# Eligible leader replicas


def test_min_isr_becomes_cluster_wide_with_eligible_leader_replicas() -> None:
    cluster = capable_cluster(min_insync_replicas="3")
    cluster.alter(BROKER_1, ConfigChange(MIN_ISR, "2"), ConfigChange("log.retention.ms", "5"))
    update(cluster, FeatureUpdate(ELR_VERSION, 1))
    assert cluster.last_records == [
        FeatureLevelRecord(name=ELR_VERSION, feature_level=1),
        ConfigRecord(resource_type=BROKER_RESOURCE, resource_name="1", name=MIN_ISR, value=None),
        ConfigRecord(resource_type=BROKER_RESOURCE, resource_name="", name=MIN_ISR, value="3"),
    ]
    assert cluster.state.image.config(BROKER_1) == {"log.retention.ms": "5"}


def test_a_cluster_wide_min_isr_is_kept() -> None:
    cluster = capable_cluster(min_insync_replicas="3")
    cluster.alter(ALL_BROKERS, ConfigChange(MIN_ISR, "2"))
    update(cluster, FeatureUpdate(ELR_VERSION, 1))
    assert cluster.last_records == [FeatureLevelRecord(name=ELR_VERSION, feature_level=1)]


def test_eligible_leader_replicas_are_computed_with_the_cluster_wide_min_isr() -> None:
    cluster = Cluster(brokers=(1, 2, 3), settings=EffectiveSettings(build_settings(flags={MIN_ISR: "1"})))
    cluster.alter(BROKER_1, ConfigChange(MIN_ISR, "3"))
    cluster.create(NewTopic("orders", assignment={0: [1, 2, 3]}))
    topic = cluster.state.image.topics["orders"]
    # Broker 3 has left the ISR. With min.insync.replicas=3 it has all committed records, with 1 it may lack some.
    left = PartitionChangeRecord(
        partition_id=0, topic_id=topic.topic_id, isr=(1, 2), eligible_leader_replicas=(3,), last_known_elr=()
    )
    cluster.state.apply([left], cluster.state.next_offset + 1)
    cluster._do(update_features(cluster.state, [FeatureUpdate(ELR_VERSION, 1)], validate_only=False))
    [partition] = cluster.state.image.topics["orders"].partitions
    assert (partition.isr, partition.elr) == ((1, 2), ())


def test_brokers_cannot_get_different_values_while_the_feature_is_finalized() -> None:
    cluster = Cluster()
    cluster._do(set_highest_levels(cluster.state))
    for change in (ConfigChange(MIN_ISR, "2"), ConfigChange(MIN_ISR, None, ConfigOperation.DELETE)):
        error = cluster.alter(BROKER_1, change)
        assert type(error) is InvalidConfigError
        assert str(error) == "Broker-level min.insync.replicas cannot be altered while ELR is enabled."
    removal = "Cluster-level min.insync.replicas cannot be removed while ELR is enabled."
    assert str(cluster.alter(ALL_BROKERS, ConfigChange(MIN_ISR, None, ConfigOperation.DELETE))) == removal
    assert str(cluster.alter(ALL_BROKERS, ConfigChange("log.retention.ms", "5"), incremental=False)) == removal
    assert cluster.alter(ALL_BROKERS, ConfigChange(MIN_ISR, "2")) is None
    assert cluster.alter(BROKER_1, ConfigChange("log.retention.ms", "5")) is None
    assert cluster.alter(BROKER_1, incremental=False) is None
    cluster.create(NewTopic("orders", 1, 1))
    assert cluster.alter(ConfigResource(TOPIC_RESOURCE, "orders"), ConfigChange(MIN_ISR, "2")) is None
