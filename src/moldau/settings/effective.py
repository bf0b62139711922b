"""Effective settings of a node: its static settings overridden by dynamic configs from the metadata image.

Precedence, highest first: topic configs, dynamic configs of this broker, dynamic configs of all brokers, static
settings, defaults.
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
from moldau.settings import config_entries
from moldau.settings.broker import BrokerSettings, broker_definitions, with_values
from moldau.settings.config_changes import validate_broker_configs, validate_topic_configs
from moldau.settings.config_entries import ConfigEntry, ConfigLayers
from moldau.settings.registry import SettingDefinition, setting_definitions
from moldau.settings.topic import TopicSettings
from moldau.settings.values import parse_value

log = get_logger("settings")

ALL_BROKERS = ConfigResource(BROKER_RESOURCE, "")


class EffectiveSettings:
    def __init__(self, static: BrokerSettings, image: MetadataImage = EMPTY_IMAGE) -> None:
        self.static = static
        self._this_broker = ConfigResource(BROKER_RESOURCE, str(static.node_id))
        self._image = image
        self._broker = self._apply_dynamic_configs()
        self._topics: dict[str, TopicSettings] = {}
        """Cached settings of topics that have configs. Other topics use the broker's defaults and are not cached, so
        that unknown topic names use no memory."""

    @property
    def broker(self) -> BrokerSettings:
        """The current broker settings. Callers must not keep this object, because every dynamic change replaces it."""
        return self._broker

    def topic(self, name: str) -> TopicSettings:
        settings = self._topics.get(name)
        if settings is None:
            overrides = self._image.config(ConfigResource(TOPIC_RESOURCE, name))
            if not overrides:
                return self._broker.topic_defaults
            settings = self._topics[name] = self.topic_settings_with(overrides)
        return settings

    def topic_settings_with(self, overrides: Mapping[str, str]) -> TopicSettings:
        """Returns the settings of a topic that has the configs `overrides`."""
        definitions = setting_definitions(TopicSettings)
        values = _parse_configs(overrides, definitions)
        changes = {definitions[name].attribute: value for name, value in values.items()}
        return dataclasses.replace(self._broker.topic_defaults, **changes)

    def apply(self, image: MetadataImage, delta: MetadataDelta) -> None:
        """Switches to the next image and drops the cached settings that the delta changes."""
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
        """Validates topic configs on top of this broker's defaults."""
        validate_topic_configs(configs, self._broker.topic_defaults)

    def validate_broker_configs(self, configs: Mapping[str, str | None]) -> None:
        """Validates dynamic broker configs on top of this broker's static settings."""
        validate_broker_configs(configs, self.static)

    def describe_topic(self, name: str, overrides: Mapping[str, str] | None = None) -> list[ConfigEntry]:
        """Describes a topic with the configs `overrides`, by default the topic's configs in the metadata image."""
        if overrides is None:
            overrides = self._image.config(ConfigResource(TOPIC_RESOURCE, name))
        return config_entries.describe_topic(overrides, self._layers())

    def describe_broker(self) -> list[ConfigEntry]:
        return config_entries.describe_broker(self._layers())

    def describe_broker_defaults(self) -> list[ConfigEntry]:
        """Describes the cluster-wide dynamic broker configs. Their resource has an empty name."""
        return config_entries.describe_broker_defaults(self._layers())

    def _layers(self) -> ConfigLayers:
        return ConfigLayers(self.static, self._image.config(ALL_BROKERS), self._image.config(self._this_broker))

    def _apply_dynamic_configs(self) -> BrokerSettings:
        changes = {**self._image.config(ALL_BROKERS), **self._image.config(self._this_broker)}
        dynamic = {name: each for name, each in broker_definitions().items() if each.dynamic}
        values = _parse_configs(changes, dynamic)
        if not values:
            return self.static
        return with_values(self.static, values, self.static.explicitly_set)


def _parse_configs(configs: Mapping[str, str], definitions: Mapping[str, SettingDefinition]) -> dict[str, Any]:
    """Parses configs and ignores invalid configs.

    Configs were validated before they were committed, but possibly by another version of Moldau. Invalid configs must
    not prevent startup.
    """
    values = {}
    for name, text in configs.items():
        if name not in definitions:
            log.warning("ignored unknown config in the metadata", name=name)
            continue
        try:
            values[name] = parse_value(definitions[name], text)
        except InvalidConfigError as error:
            log.warning("ignored invalid config in the metadata", name=name, reason=str(error))
    return values
