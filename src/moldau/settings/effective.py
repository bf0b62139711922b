"""The settings in force: what the node was started with, and over it what clients changed since.

A topic's own configs go over this broker's dynamic ones, those over the dynamic ones of all brokers, those
over what the node was started with, that over the defaults. Dynamic ones come from the metadata image.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from moldau.errors import InvalidConfigError
from moldau.metadata.image import (
    BROKER_RESOURCE,
    EMPTY_IMAGE,
    TOPIC_RESOURCE,
    ConfigResource,
    MetadataDelta,
    MetadataImage,
)
from moldau.observe.logging import get_logger
from moldau.settings import config_entries as describe
from moldau.settings.broker import BrokerSettings, broker_definitions, with_values
from moldau.settings.config_changes import (
    append_to_list,
    subtract_from_list,
    validate_broker_configs,
    validate_topic_configs,
)
from moldau.settings.config_entries import ConfigEntry, ConfigLayers, ConfigSource, ConfigSynonym
from moldau.settings.registry import ConfigType, SettingDefinition, setting_definitions
from moldau.settings.topic import TopicSettings
from moldau.settings.values import parse_value

__all__ = [
    "ConfigEntry",
    "ConfigSource",
    "ConfigSynonym",
    "ConfigType",
    "EffectiveSettings",
    "append_to_list",
    "subtract_from_list",
    "validate_broker_configs",
    "validate_topic_configs",
]

log = get_logger("settings")

ALL_BROKERS = ConfigResource(BROKER_RESOURCE, "")


class EffectiveSettings:
    def __init__(self, static: BrokerSettings, image: MetadataImage = EMPTY_IMAGE) -> None:
        self.static = static
        self._this_broker = ConfigResource(BROKER_RESOURCE, str(static.node_id))
        self._image = image
        self._broker = self._apply_dynamic_configs()
        self._topics: dict[str, TopicSettings] = {}
        """Only topics with configs of their own, so that asking for names that do not exist costs nothing."""

    @property
    def broker(self) -> BrokerSettings:
        """With dynamic changes: ask again instead of keeping it."""
        return self._broker

    def topic(self, name: str) -> TopicSettings:
        found = self._topics.get(name)
        if found is None:
            overrides = self._image.config(ConfigResource(TOPIC_RESOURCE, name))
            if not overrides:
                return self._broker.topic_defaults
            found = self._topics[name] = self.topic_settings_with(overrides)
        return found

    def topic_settings_with(self, overrides: Mapping[str, str]) -> TopicSettings:
        """What a topic with these configs of its own would have."""
        registry = setting_definitions(TopicSettings)
        values = _parse_configs(overrides, registry)
        changed = {registry[name].attribute: value for name, value in values.items()}
        return dataclasses.replace(self._broker.topic_defaults, **changed)

    def apply(self, image: MetadataImage, delta: MetadataDelta) -> None:
        """Takes the next image. Only what the delta names is looked at."""
        self._image = image
        for topic in delta.topics_deleted:
            self._topics.pop(topic.name, None)
        for resource in delta.configs_changed:
            if resource.type == TOPIC_RESOURCE:
                self._topics.pop(resource.name, None)
            elif resource in (ALL_BROKERS, self._this_broker):
                self._broker = self._apply_dynamic_configs()
                self._topics.clear()

    def validate_topic_configs(self, configs: Mapping[str, str | None]) -> None:
        """Like the function of this name, over this broker's defaults."""
        validate_topic_configs(configs, self._broker.topic_defaults)

    def validate_broker_configs(self, configs: Mapping[str, str | None]) -> None:
        """Like the function of this name, over what this broker was started with."""
        validate_broker_configs(configs, self.static)

    def describe_topic(self, name: str, overrides: Mapping[str, str] | None = None) -> list[ConfigEntry]:
        """`overrides` are the topic's own configs; those of the image when not given."""
        if overrides is None:
            overrides = self._image.config(ConfigResource(TOPIC_RESOURCE, name))
        return describe.describe_topic(overrides, self._layers())

    def describe_broker(self) -> list[ConfigEntry]:
        return describe.describe_broker(self._layers())

    def describe_broker_defaults(self) -> list[ConfigEntry]:
        """The resource of all brokers, whose name is empty."""
        return describe.describe_broker_defaults(self._layers())

    def _layers(self) -> ConfigLayers:
        return ConfigLayers(
            self.static, self._image.config(ALL_BROKERS), self._image.config(self._this_broker)
        )

    def _apply_dynamic_configs(self) -> BrokerSettings:
        changes = {**self._image.config(ALL_BROKERS), **self._image.config(self._this_broker)}
        dynamic = {name: found for name, found in broker_definitions().items() if found.setting.dynamic}
        values = _parse_configs(changes, dynamic)
        if not values:
            return self.static
        return with_values(self.static, values, self.static.explicitly_set)


def _parse_configs(configs: Mapping[str, str], registry: Mapping[str, SettingDefinition]) -> dict[str, Any]:
    """Configs were checked before they were committed, but perhaps by another version: what this one does not
    know is left at its default rather than keeping the node from starting."""
    values = {}
    for name, text in configs.items():
        if name not in registry:
            log.warning("unknown config in the metadata is not used", name=name)
            continue
        try:
            values[name] = parse_value(registry[name], text)
        except InvalidConfigError as error:
            log.warning("invalid config in the metadata is not used", name=name, reason=str(error))
    return values
