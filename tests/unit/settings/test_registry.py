"""Invariants of all settings."""

import re
from pathlib import Path

import pytest

import moldau
from moldau.settings.broker import SECTIONS, BrokerSettings, broker_aliases, broker_definitions, get_value, with_values
from moldau.settings.registry import ConfigType, SettingDefinition, setting_definitions
from moldau.settings.sources import environment_variable_name, flag_name
from moldau.settings.topic import TopicSettings
from moldau.settings.values import format_value, parse_value

TOPIC = list(setting_definitions(TopicSettings).values())
BROKER = list(broker_definitions().values())
NAMES = [*broker_definitions(), *broker_aliases()]


def name_of(found: SettingDefinition) -> str:
    return found.name


@pytest.mark.parametrize("found", TOPIC + BROKER, ids=name_of)
def test_every_setting_has_a_description_and_a_valid_default(found: SettingDefinition) -> None:
    assert found.doc.endswith((".", ".)"))
    assert parse_value(found, format_value(found.default)) == found.default


WITHOUT_BROKER_DEFAULT = ("leader.follows.controller",)


@pytest.mark.parametrize("found", TOPIC, ids=name_of)
def test_topic_settings_have_attribute_and_broker_default(found: SettingDefinition) -> None:
    assert found.attribute == found.name.replace(".", "_")
    if found.name in WITHOUT_BROKER_DEFAULT:
        assert found.broker_name is None
        assert found.name not in broker_definitions()
        return
    assert found.broker_name is not None
    broker_wide = broker_definitions()[found.broker_name]
    assert broker_wide.is_topic_default
    assert broker_wide.dynamic
    assert get_value(BrokerSettings(), broker_wide.name) == found.default


@pytest.mark.parametrize("found", BROKER, ids=name_of)
def test_every_broker_setting_is_in_a_section(found: SettingDefinition) -> None:
    assert found.section in SECTIONS


def test_flags_and_variables_are_unique() -> None:
    assert len({flag_name(name) for name in NAMES}) == len(NAMES)
    assert len({environment_variable_name(name) for name in NAMES}) == len(NAMES)


def test_few_names_are_prefixes_of_others() -> None:
    clashes = [(a, b) for a in NAMES for b in NAMES if b.startswith(f"{a}.")]
    assert clashes == [("max.connections", "max.connections.per.ip")]


def test_the_first_section_has_five_settings() -> None:
    first = [found.name for found in BROKER if found.section == SECTIONS[0]]
    assert first == ["listen", "advertised.listeners", "data.dir", "store", "write.caching"]
    assert list(broker_definitions())[:5] == first


def test_config_types_follow_from_limits() -> None:
    types = {found.name: found.type for found in TOPIC}
    assert types["retention.ms"] is ConfigType.LONG
    assert types["segment.bytes"] is ConfigType.INT
    assert types["cleanup.policy"] is ConfigType.LIST
    assert types["min.cleanable.dirty.ratio"] is ConfigType.DOUBLE
    assert types["preallocate"] is ConfigType.BOOLEAN
    assert types["compression.type"] is ConfigType.STRING


SOURCES = sorted(Path(moldau.__file__).parent.rglob("*.py"))
CODE = "\n".join(path.read_text() for path in SOURCES if path.parent.name != "settings")
READ_AS = {
    "listen": "listeners",
    "advertised_listeners": "advertised",
    "quorum_voters": "voters",
    "inter_broker_listener_name": "inter_broker_listener",
}


@pytest.mark.parametrize("found", BROKER, ids=name_of)
def test_settings_without_effect_say_so(found: SettingDefinition) -> None:
    is_read = re.search(rf"\.{READ_AS.get(found.attribute, found.attribute)}\b", CODE) is not None
    assert is_read != ("has no effect" in found.doc)


def test_with_values_updates_broker_and_topic_settings() -> None:
    changed = with_values(BrokerSettings(), {"num.partitions": 3, "log.retention.ms": 5}, frozenset({"num.partitions"}))
    assert changed.num_partitions == 3
    assert changed.topic_defaults.retention_ms == 5
    assert changed.explicitly_set == {"num.partitions"}
