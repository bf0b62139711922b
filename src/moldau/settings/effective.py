"""Effective settings of a node: its static settings overridden by dynamic configs from the metadata image.

Precedence, highest first: topic configs, dynamic configs for this broker, dynamic configs for all brokers, static
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
from moldau.settings.broker import BrokerSettings, broker_definitions, with_values
from moldau.settings.config_changes import parse_changes
from moldau.settings.config_entries import ConfigLayers
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
        self.broker = self._apply_dynamic_configs()
        """The current broker settings. Callers must not keep this object, because every dynamic change replaces it."""
        self._topics: dict[str, TopicSettings] = {}
        """Cached settings of topics that have configs. Other topics use the broker's defaults."""

    def topic(self, name: str) -> TopicSettings:
        settings = self._topics.get(name)
        if settings is None:
            overrides = self._image.config(ConfigResource(TOPIC_RESOURCE, name))
            if not overrides:
                return self.broker.topic_defaults
            values = _parse_configs(overrides, setting_definitions(TopicSettings))
            settings = self._topics[name] = self._topic_with_values(values)
        return settings

    def _topic_with_values(self, values: Mapping[str, Any]) -> TopicSettings:
        definitions = setting_definitions(TopicSettings)
        changes = {definitions[name].attribute: value for name, value in values.items()}
        return dataclasses.replace(self.broker.topic_defaults, **changes)

    def apply(self, image: MetadataImage, delta: MetadataDelta) -> None:
        """Switches to the next image and drops the cached settings that the delta changes."""
        self._image = image
        for topic in delta.topics_deleted:
            self._topics.pop(topic.name, None)
        for resource in delta.configs_changed:
            if resource.type == TOPIC_RESOURCE:
                self._topics.pop(resource.name, None)
            elif resource in (ALL_BROKERS, self._this_broker):
                self.broker = self._apply_dynamic_configs()
                self._topics.clear()

    def validate_topic_configs(self, configs: Mapping[str, str | None]) -> TopicSettings:
        """Returns the settings of a topic with these configs. Raises InvalidConfigError if a config is invalid or
        contradicts another config or a broker default."""
        settings = self._topic_with_values(parse_changes(TOPIC_RESOURCE, configs))
        settings.check_conflicts()
        return settings

    def validate_broker_configs(self, configs: Mapping[str, str | None]) -> None:
        """Raises InvalidConfigError if a broker config is invalid, is not dynamic, or contradicts another setting.
        Unknown configs are valid."""
        values = parse_changes(BROKER_RESOURCE, configs)
        static_names = [name for name in values if not broker_definitions()[name].dynamic]
        if static_names:
            raise InvalidConfigError(
                f"Cannot update these configs dynamically: {', '.join(static_names)}; set them when starting the broker"
            )
        with_values(self.static, values, self.static.explicitly_set).check_conflicts()

    def layers(self) -> ConfigLayers:
        return ConfigLayers(self.static, self._image.config(ALL_BROKERS), self._image.config(self._this_broker))

    def _apply_dynamic_configs(self) -> BrokerSettings:
        changes = {**self._image.config(ALL_BROKERS), **self._image.config(self._this_broker)}
        known = {name: text for name, text in changes.items() if name in broker_definitions()}
        dynamic = {name: each for name, each in broker_definitions().items() if each.dynamic}
        values = _parse_configs(known, dynamic)
        return with_values(self.static, values, self.static.explicitly_set) if values else self.static


def _parse_configs(configs: Mapping[str, str], definitions: Mapping[str, SettingDefinition]) -> dict[str, Any]:
    """Parses configs, and ignores invalid ones, which another version of Moldau may have accepted."""
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
