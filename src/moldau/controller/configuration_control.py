"""Decisions on topic and broker configs (Kafka's ConfigurationControlManager). The changes of one resource are
atomic."""

import dataclasses
from collections.abc import Mapping, Sequence

from moldau.controller.elections import recompute_elrs
from moldau.controller.features import ELR_VERSION
from moldau.controller.reassignment import add_replicas
from moldau.controller.requests import ConfigChange, ConfigOperation, ConfigResult
from moldau.controller.state import ControllerState, check_batch_size
from moldau.controller.topic_names import validate_topic_name
from moldau.coordinator import CoordinatorResult
from moldau.errors import InvalidConfigError, InvalidRequestError, MoldauError, UnknownTopicOrPartitionError
from moldau.metadata.image import BROKER_RESOURCE, TOPIC_RESOURCE, ConfigResource, MetadataImage
from moldau.metadata.records import ConfigRecord, Record
from moldau.settings.config_changes import append_to_list, subtract_from_list
from moldau.settings.effective import ALL_BROKERS, EffectiveSettings

MIN_ISR_CONFIG = "min.insync.replicas"


def alter_configs(
    state: ControllerState,
    changes: Mapping[ConfigResource, Sequence[ConfigChange]],
    *,
    incremental: bool,
    validate_only: bool,
) -> CoordinatorResult[Record, list[ConfigResult]]:
    """Alters configs. If `incremental` is set, only the named configs change. Otherwise the changes replace the whole
    config of the resource."""
    records: list[Record] = []
    results: list[ConfigResult] = []
    with_new_min_isr: dict[ConfigResource, Mapping[str, str]] = {}
    for resource, requested in changes.items():
        try:
            _check_resource(state.image, resource)
            _check_config_changes(requested)
            current = state.image.config(resource)
            config = _incremental_config(resource, current, requested) if incremental else _full_config(requested)
            follows_controller = False
            if resource.type == TOPIC_RESOURCE:
                follows_controller = state.settings.validate_topic_configs(config).leader_follows_controller
            else:
                _validate_broker_configs(state.settings, config)
                _check_min_isr(state.image, resource, requested, config)
        except MoldauError as error:
            results.append(ConfigResult(resource, error))
        else:
            records += _config_records(resource, current, config)
            results.append(ConfigResult(resource))
            if current.get(MIN_ISR_CONFIG) != config.get(MIN_ISR_CONFIG):
                with_new_min_isr[resource] = config
            if follows_controller and resource.name not in state.controller_led_topics:
                records += add_replicas(state, [resource.name], state.image.brokers)
    records += _elr_changes_for_min_isr(state, with_new_min_isr)
    return CoordinatorResult([] if validate_only else check_batch_size(records), results)


def make_min_isr_cluster_wide(state: ControllerState) -> list[Record]:
    """Returns the changes after which all brokers have the same default of min.insync.replicas.

    Eligible leader replicas need this, because the controller decides with its own value whether a replica that leaves
    the ISR has all committed records.
    """
    current = {resource: config for resource, config in state.image.configs.items() if resource.type == BROKER_RESOURCE}
    changed: dict[ConfigResource, Mapping[str, str]] = {
        resource: {name: value for name, value in config.items() if name != MIN_ISR_CONFIG}
        for resource, config in sorted(current.items())
        if resource != ALL_BROKERS and MIN_ISR_CONFIG in config
    }
    default = state.image.config(ALL_BROKERS)
    if MIN_ISR_CONFIG not in default:
        static = str(state.settings.static.topic_defaults.min_insync_replicas)
        changed[ALL_BROKERS] = {**default, MIN_ISR_CONFIG: static}
    records: list[Record] = []
    for resource, config in changed.items():
        records += _config_records(resource, state.image.config(resource), config)
    return records + _elr_changes_for_min_isr(state, changed)


def _elr_changes_for_min_isr(
    state: ControllerState, configs: Mapping[ConfigResource, Mapping[str, str]]
) -> list[Record]:
    """Returns the ELR changes that are needed because `configs` have a new min.insync.replicas."""
    if not configs:
        return []
    image = dataclasses.replace(state.image, configs={**state.image.configs, **configs})
    is_cluster_wide = any(resource.type == BROKER_RESOURCE for resource in configs)
    topics = list(image.topics) if is_cluster_wide else [resource.name for resource in configs]
    return recompute_elrs(state, EffectiveSettings(state.settings.static, image), topics)


def _check_resource(image: MetadataImage, resource: ConfigResource) -> None:
    if resource.type == TOPIC_RESOURCE:
        if not resource.name:
            raise InvalidRequestError("Default topic resources are not allowed.")
        validate_topic_name(resource.name)
        if resource.name not in image.topics:
            raise UnknownTopicOrPartitionError(f"The topic '{resource.name}' does not exist.")
    elif resource.type == BROKER_RESOURCE:
        # An empty name stands for the defaults of all brokers.
        if resource.name and _broker_id(resource.name) not in image.brokers:
            raise InvalidRequestError(f"No broker with id {resource.name} is registered.")
    else:
        raise InvalidRequestError(f"Unknown resource type {resource.type}")


def _validate_broker_configs(settings: EffectiveSettings, config: Mapping[str, str]) -> None:
    try:
        settings.validate_broker_configs(config)
    except InvalidConfigError as error:
        # Unlike for topics, Kafka's error is INVALID_REQUEST.
        raise InvalidRequestError(str(error)) from None


def _check_min_isr(
    image: MetadataImage, resource: ConfigResource, changes: Sequence[ConfigChange], config: Mapping[str, str]
) -> None:
    """Raises InvalidConfigError if brokers could have different defaults of min.insync.replicas."""
    if ELR_VERSION not in image.features:
        return
    if resource == ALL_BROKERS:
        if MIN_ISR_CONFIG not in config:
            raise InvalidConfigError("Cluster-level min.insync.replicas cannot be removed while ELR is enabled.")
    elif any(change.name == MIN_ISR_CONFIG for change in changes):
        raise InvalidConfigError("Broker-level min.insync.replicas cannot be altered while ELR is enabled.")


def _broker_id(name: str) -> int:
    if not (name.isascii() and name.isdigit()):
        raise InvalidRequestError("Unable to parse broker name as a base 10 number.")
    return int(name)


def _check_config_changes(changes: Sequence[ConfigChange]) -> None:
    if len({change.name for change in changes}) < len(changes):
        raise InvalidRequestError("Error due to duplicate config keys")
    nulls = [
        change.name for change in changes if change.value is None and change.operation is not ConfigOperation.DELETE
    ]
    if nulls:
        raise InvalidRequestError(f"Null value not supported for : {', '.join(nulls)}")


def _full_config(changes: Sequence[ConfigChange]) -> dict[str, str]:
    return {change.name: change.value for change in changes if change.value is not None}


def _incremental_config(
    resource: ConfigResource, current: Mapping[str, str], changes: Sequence[ConfigChange]
) -> dict[str, str]:
    config = dict(current)
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
            config.pop(change.name, None)
        else:
            config[change.name] = value
    return config


def _config_records(
    resource: ConfigResource, current: Mapping[str, str], config: Mapping[str, str]
) -> list[ConfigRecord]:
    """Returns records for new and changed configs in the order of the request, followed by records for removed
    configs."""
    changed: dict[str, str | None] = {name: value for name, value in config.items() if current.get(name) != value}
    changed.update({name: None for name in current if name not in config})
    return [
        ConfigRecord(resource_type=resource.type, resource_name=resource.name, name=name, value=value)
        for name, value in changed.items()
    ]
