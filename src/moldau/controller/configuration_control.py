"""Decisions on configurations of topics and brokers. A resource's changes are all made, or none of them."""

import dataclasses
from collections.abc import Mapping, Sequence

from moldau.controller.elections import recompute_elrs
from moldau.controller.requests import ConfigChange, ConfigOperation, ConfigResult
from moldau.controller.state import ControllerState, check_batch_size
from moldau.controller.topic_names import validate_topic_name
from moldau.coordinator import CoordinatorResult
from moldau.errors import InvalidRequestError, MoldauError, UnknownTopicOrPartitionError
from moldau.metadata.image import BROKER_RESOURCE, TOPIC_RESOURCE, ConfigResource, MetadataImage
from moldau.metadata.records import ConfigRecord, Record
from moldau.settings.config_changes import append_to_list, subtract_from_list
from moldau.settings.effective import EffectiveSettings

MIN_ISR_CONFIG = "min.insync.replicas"


def alter_configs(
    state: ControllerState,
    changes: Mapping[ConfigResource, Sequence[ConfigChange]],
    settings: EffectiveSettings,
    *,
    incremental: bool,
    validate_only: bool,
) -> CoordinatorResult[Record, list[ConfigResult]]:
    """Incremental: each change by itself. Otherwise the changes are all that the resource is to have."""
    records: list[Record] = []
    results: list[ConfigResult] = []
    minimum: dict[ConfigResource, Mapping[str, str]] = {}
    for resource, asked in changes.items():
        try:
            _check_resource(state.image, resource)
            _check_config_changes(asked)
            current = state.image.config(resource)
            wanted = _incremental_config(resource, current, asked) if incremental else _full_config(asked)
            if resource.type == TOPIC_RESOURCE:
                settings.validate_topic_configs(wanted)
            else:
                settings.validate_broker_configs(wanted)
        except MoldauError as error:
            results.append(ConfigResult(resource, error))
        else:
            records += _config_records(resource, current, wanted)
            results.append(ConfigResult(resource))
            if current.get(MIN_ISR_CONFIG) != wanted.get(MIN_ISR_CONFIG):
                minimum[resource] = wanted
    records += _elr_changes_for_min_isr(state, settings, minimum)
    return CoordinatorResult([] if validate_only else check_batch_size(records), results)


def _elr_changes_for_min_isr(
    state: ControllerState, settings: EffectiveSettings, configs: Mapping[ConfigResource, Mapping[str, str]]
) -> list[Record]:
    """What else changes when the resources have these `configs` and by them another min.insync.replicas."""
    if not configs:
        return []
    image = dataclasses.replace(state.image, configs={**state.image.configs, **configs})
    of_all = any(resource.type == BROKER_RESOURCE for resource in configs)
    topics = list(image.topics) if of_all else [resource.name for resource in configs]
    return recompute_elrs(state, EffectiveSettings(settings.static, image), topics)


def _check_resource(image: MetadataImage, resource: ConfigResource) -> None:
    if resource.type == TOPIC_RESOURCE:
        if not resource.name:
            raise InvalidRequestError("Default topic resources are not allowed.")
        validate_topic_name(resource.name)
        if resource.name not in image.topics:
            raise UnknownTopicOrPartitionError(f"The topic '{resource.name}' does not exist.")
    elif resource.type == BROKER_RESOURCE:
        # The empty name stands for all brokers.
        if resource.name and _broker_id(resource.name) not in image.brokers:
            raise InvalidRequestError(f"No broker with id {resource.name} is registered.")
    else:
        raise InvalidRequestError(f"Unknown resource type {resource.type}")


def _broker_id(name: str) -> int:
    if not (name.isascii() and name.isdigit()):
        raise InvalidRequestError("Unable to parse broker name as a base 10 number.")
    return int(name)


def _check_config_changes(changes: Sequence[ConfigChange]) -> None:
    if len({change.name for change in changes}) < len(changes):
        raise InvalidRequestError("Error due to duplicate config keys")
    nulls = [
        change.name
        for change in changes
        if change.value is None and change.operation is not ConfigOperation.DELETE
    ]
    if nulls:
        raise InvalidRequestError(f"Null value not supported for : {', '.join(nulls)}")


def _full_config(changes: Sequence[ConfigChange]) -> dict[str, str]:
    return {change.name: change.value for change in changes if change.value is not None}


def _incremental_config(
    resource: ConfigResource, current: Mapping[str, str], changes: Sequence[ConfigChange]
) -> dict[str, str]:
    wanted = dict(current)
    for change in changes:
        value = change.value
        match change.operation:
            case ConfigOperation.APPEND:
                value = append_to_list(resource.type, change.name, current.get(change.name), value)
            case ConfigOperation.SUBTRACT:
                value = subtract_from_list(resource.type, change.name, current.get(change.name), value)
            case ConfigOperation.DELETE:
                value = None
            case ConfigOperation.SET:
                pass
        if value is None:
            wanted.pop(change.name, None)
        else:
            wanted[change.name] = value
    return wanted


def _config_records(
    resource: ConfigResource, current: Mapping[str, str], wanted: Mapping[str, str]
) -> list[ConfigRecord]:
    """Changed and new settings in the order they were asked for, then those to be taken away."""
    changed: dict[str, str | None] = {
        name: value for name, value in wanted.items() if current.get(name) != value
    }
    changed.update({name: None for name in current if name not in wanted})
    return [
        ConfigRecord(resource_type=resource.type, resource_name=resource.name, name=name, value=value)
        for name, value in changed.items()
    ]
