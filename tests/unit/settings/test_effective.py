"""Effective settings under dynamic changes, and DescribeConfigs entries."""

from collections.abc import Mapping
from types import MappingProxyType
from uuid import UUID

import pytest

from moldau.errors import InvalidConfigError
from moldau.metadata.image import (
    BROKER_RESOURCE,
    TOPIC_RESOURCE,
    ConfigResource,
    MetadataDelta,
    MetadataImage,
    TopicImage,
)
from moldau.settings.broker import BrokerSettings
from moldau.settings.config_changes import append_to_list, subtract_from_list
from moldau.settings.config_entries import ConfigEntry, ConfigSource, ConfigSynonym
from moldau.settings.effective import EffectiveSettings
from moldau.settings.registry import ConfigType
from moldau.settings.sources import build_settings
from moldau.settings.topic import TopicSettings

ORDERS = ConfigResource(TOPIC_RESOURCE, "orders")
BROKER_1 = ConfigResource(BROKER_RESOURCE, "1")
BROKER_2 = ConfigResource(BROKER_RESOURCE, "2")
ALL_BROKERS = ConfigResource(BROKER_RESOURCE, "")


def image(configs: Mapping[ConfigResource, Mapping[str, str]]) -> MetadataImage:
    return MetadataImage(configs=MappingProxyType(dict(configs)))


def change(settings: EffectiveSettings, configs: Mapping[ConfigResource, Mapping[str, str]]) -> None:
    settings.apply(image(configs), MetadataDelta(configs_changed=tuple(configs)))


def entry(entries: list[ConfigEntry], name: str) -> ConfigEntry:
    (found,) = [each for each in entries if each.name == name]
    return found


def test_a_topic_without_configs_has_the_brokers_defaults() -> None:
    settings = EffectiveSettings(build_settings(flags={"log.retention.ms": "5"}))
    assert settings.topic("orders") == TopicSettings(retention_ms=5)
    assert settings.topic("orders") is settings.topic("payments")


def test_precedence_of_config_sources() -> None:
    settings = EffectiveSettings(
        build_settings(flags={"log.retention.ms": "1", "log.retention.bytes": "1", "log.roll.ms": "1"})
    )
    everywhere = {"log.retention.ms": "2", "log.retention.bytes": "2"}
    change(settings, {ALL_BROKERS: everywhere})
    assert settings.topic("orders").retention_ms == 2
    change(settings, {ALL_BROKERS: everywhere, BROKER_1: {"log.retention.ms": "3"}})
    topic = settings.topic("orders")
    assert (topic.retention_ms, topic.retention_bytes, topic.segment_ms) == (3, 2, 1)
    change(settings, {ALL_BROKERS: everywhere, BROKER_1: {"log.retention.ms": "3"}, ORDERS: {"retention.ms": "4"}})
    topic = settings.topic("orders")
    assert (topic.retention_ms, topic.retention_bytes, topic.segment_ms) == (4, 2, 1)
    assert settings.topic("payments").retention_ms == 3


def test_a_removed_config_falls_back_to_the_next_source() -> None:
    settings = EffectiveSettings(BrokerSettings())
    change(settings, {ORDERS: {"retention.ms": "4"}, BROKER_1: {"max.connections": "9"}})
    assert settings.topic("orders").retention_ms == 4
    assert settings.broker.max_connections == 9
    settings.apply(image({}), MetadataDelta(configs_changed=(ORDERS, BROKER_1)))
    assert settings.topic("orders").retention_ms == 604_800_000
    assert settings.broker.max_connections == 10_000


def test_configs_of_other_brokers_are_ignored() -> None:
    settings = EffectiveSettings(BrokerSettings())
    change(settings, {BROKER_2: {"max.connections": "9"}})
    assert settings.broker == BrokerSettings()


def test_a_recreated_topic_has_no_old_configs() -> None:
    settings = EffectiveSettings(BrokerSettings())
    change(settings, {ORDERS: {"retention.ms": "4"}})
    assert settings.topic("orders").retention_ms == 4
    gone = TopicImage("orders", UUID(int=1), ())
    settings.apply(image({}), MetadataDelta(topics_deleted=(gone,)))
    assert settings.topic("orders").retention_ms == 604_800_000


def test_invalid_configs_in_the_metadata_are_ignored() -> None:
    committed = image(
        {
            ORDERS: {"retention.ms": "soon", "holographic.storage": "true", "segment.bytes": "2048"},
            BROKER_1: {"listen": "0.0.0.0:1", "max.connections": "many", "log.retention.ms": "7"},
        }
    )
    settings = EffectiveSettings(BrokerSettings(), committed)
    assert settings.broker.listen == ("127.0.0.1:9092",)
    assert settings.broker.max_connections == 10_000
    assert settings.topic("orders") == TopicSettings(retention_ms=7, segment_bytes=2048)


@pytest.mark.parametrize(
    ("configs", "said"),
    [
        ({"retention.sm": "5"}, r"Unknown topic config name: retention.sm; did you mean retention.ms\?"),
        ({"retention.ms": None}, "Null value not supported for topic configs: retention.ms"),
        ({"retention.ms": "x"}, "Invalid value x for configuration retention.ms: Not a number of type LONG"),
        ({"cleanup.policy": "archive"}, "String must be one of: delete, compact"),
        ({"min.compaction.lag.ms": "5", "max.compaction.lag.ms": "4"}, r"min.compaction.lag.ms \(5\) is greater than"),
        ({"log.retention.ms": "5"}, "Unknown topic config name: log.retention.ms"),
    ],
)
def test_invalid_topic_configs_are_rejected(configs: dict[str, str | None], said: str) -> None:
    with pytest.raises(InvalidConfigError, match=said):
        EffectiveSettings(BrokerSettings()).validate_topic_configs(configs)


def test_topic_configs_are_validated_on_top_of_broker_defaults() -> None:
    EffectiveSettings(BrokerSettings()).validate_topic_configs({"min.compaction.lag.ms": "5"})
    settings = EffectiveSettings(build_settings(flags={"log.cleaner.max.compaction.lag.ms": "4"}))
    with pytest.raises(InvalidConfigError, match="is greater than"):
        settings.validate_topic_configs({"min.compaction.lag.ms": "5"})


@pytest.mark.parametrize(
    ("configs", "said"),
    [
        ({"num.partitions": "3"}, "Cannot update these configs dynamically: num.partitions"),
        ({"listeners": "a:1"}, "Cannot update these configs dynamically: listeners; change listen instead"),
        ({"log.retention.hours": "1"}, "log.retention.hours; change log.retention.ms instead"),
        ({"log.retention.ms": None}, "Null value not supported for broker configs"),
        ({"max.connections": "0"}, "Value must be at least 1"),
        ({"log.cleaner.min.compaction.lag.ms": "5", "log.cleaner.max.compaction.lag.ms": "4"}, "is greater than"),
    ],
)
def test_invalid_broker_configs_are_rejected(configs: dict[str, str | None], said: str) -> None:
    with pytest.raises(InvalidConfigError, match=said):
        EffectiveSettings(BrokerSettings()).validate_broker_configs(configs)


def test_valid_broker_configs_are_accepted() -> None:
    settings = EffectiveSettings(BrokerSettings())
    settings.validate_broker_configs({"log.retention.ms": "5", "max.connections": "3", "log.cleanup.policy": "compact"})


def test_append_and_subtract_start_from_the_default() -> None:
    append, subtract = append_to_list, subtract_from_list
    assert append(TOPIC_RESOURCE, "cleanup.policy", None, "compact") == "delete,compact"
    assert append(TOPIC_RESOURCE, "cleanup.policy", "compact", "compact, delete") == "compact,delete"
    assert subtract(TOPIC_RESOURCE, "cleanup.policy", "compact,delete", "delete") == "compact"
    assert subtract(TOPIC_RESOURCE, "cleanup.policy", None, "delete") == ""
    assert append(BROKER_RESOURCE, "log.cleanup.policy", None, "compact") == "delete,compact"


def test_append_and_subtract_need_a_list() -> None:
    with pytest.raises(InvalidConfigError, match=r"Can't APPEND to key retention.ms because its type is not LIST"):
        append_to_list(TOPIC_RESOURCE, "retention.ms", None, "5")
    with pytest.raises(InvalidConfigError, match="Can't SUBTRACT to key x because its type is not LIST"):
        subtract_from_list(TOPIC_RESOURCE, "x", None, "5")
    with pytest.raises(InvalidConfigError, match=r"subtract is not allowed for config key: log.retention.hours"):
        subtract_from_list(BROKER_RESOURCE, "log.retention.hours", None, "5")
    with pytest.raises(InvalidConfigError, match="Unknown config name: x"):
        append_to_list(BROKER_RESOURCE, "x", None, "5")
    with pytest.raises(InvalidConfigError, match="Null value not supported"):
        append_to_list(TOPIC_RESOURCE, "cleanup.policy", None, None)


def test_synonyms_are_in_order_of_precedence() -> None:
    settings = EffectiveSettings(build_settings(flags={"log.retention.ms": "1"}))
    change(settings, {ALL_BROKERS: {"log.retention.ms": "2"}, BROKER_1: {"log.retention.ms": "3"}})
    described = entry(settings.layers().describe_topic({"retention.ms": "4"}), "retention.ms")
    assert (described.value, described.source, described.type) == ("4", ConfigSource.TOPIC, ConfigType.LONG)
    assert not described.read_only
    assert described.documentation
    assert list(described.synonyms) == [
        ConfigSynonym("retention.ms", "4", ConfigSource.TOPIC),
        ConfigSynonym("log.retention.ms", "3", ConfigSource.DYNAMIC_BROKER),
        ConfigSynonym("log.retention.ms", "2", ConfigSource.DYNAMIC_DEFAULT_BROKER),
        ConfigSynonym("log.retention.ms", "1", ConfigSource.STATIC_BROKER),
        ConfigSynonym("log.retention.ms", "604800000", ConfigSource.DEFAULT),
    ]


def test_a_topic_setting_without_broker_setting_has_a_fixed_default() -> None:
    layers = EffectiveSettings(BrokerSettings()).layers()
    name = "leader.follows.controller"
    default = ConfigSynonym(name, "false", ConfigSource.DEFAULT)
    assert list(entry(layers.describe_topic({}), name).synonyms) == [default]
    described = entry(layers.describe_topic({name: "true"}), name)
    assert list(described.synonyms) == [ConfigSynonym(name, "true", ConfigSource.TOPIC), default]


def test_topic_values_are_formatted_as_in_kafka() -> None:
    described = {each.name: each.value for each in EffectiveSettings(BrokerSettings()).layers().describe_topic({})}
    assert described["cleanup.policy"] == "delete"
    assert described["preallocate"] == "false"
    assert described["min.cleanable.dirty.ratio"] == "0.5"
    assert described["flush.messages"] == "9223372036854775807"


def test_broker_entries_have_aliases_and_read_only_flags() -> None:
    settings = EffectiveSettings(
        build_settings(flags={"num.partitions": "1", "log.dirs": "/data", "log.retention.hours": "5"})
    )
    described = settings.layers().describe_broker()
    assert entry(described, "num.partitions").source is ConfigSource.STATIC_BROKER
    assert entry(described, "num.partitions").read_only
    assert not entry(described, "log.retention.ms").read_only
    assert entry(described, "log.retention.ms").value == "18000000"
    assert entry(described, "log.retention.hours").value == "5"
    assert entry(described, "log.dirs").value == entry(described, "data.dir").value == "/data"
    assert entry(described, "listeners").source is ConfigSource.DEFAULT
    assert entry(described, "log.roll.hours").value == "168"


def test_an_alias_with_a_coarser_unit_may_have_no_value() -> None:
    described = EffectiveSettings(build_settings(flags={"log.retention.ms": "60000"})).layers().describe_broker()
    assert entry(described, "log.retention.minutes").value == "1"
    assert entry(described, "log.retention.hours").value is None


def test_broker_defaults_describe_only_changes() -> None:
    settings = EffectiveSettings(BrokerSettings())
    assert settings.layers().describe_broker_defaults() == []
    change(settings, {ALL_BROKERS: {"max.connections": "9"}})
    (described,) = settings.layers().describe_broker_defaults()
    assert (described.name, described.value) == ("max.connections", "9")
    assert described.source is ConfigSource.DYNAMIC_DEFAULT_BROKER
