"""DescribeConfigs: returns the settings of topics and brokers, with the source of each value.

- The name of a broker resource is the id of this broker, or "" for the cluster-wide defaults of brokers.
- An empty list of keys, or null, requests all settings. Synonyms and documentation (since v3) are optional.
- As in Kafka, an unknown resource type fails the whole request. Any other error fails only one resource.
- Broker configs without a definition are sensitive, as in Kafka: their values are not returned.
- For groups and client metrics subscriptions, only configs that were set are returned, because they have no defaults.
"""

from collections.abc import Iterable

from moldau.controller.topic_names import validate_topic_name
from moldau.error_codes import error_code, error_message
from moldau.errors import InvalidRequestError, MoldauError, UnknownTopicOrPartitionError
from moldau.metadata.image import (
    BROKER_LOGGER_RESOURCE,
    BROKER_RESOURCE,
    CLIENT_METRICS_RESOURCE,
    GROUP_RESOURCE,
    TOPIC_RESOURCE,
    ConfigResource,
)
from moldau.server.api import Broker, RequestContext, handles
from moldau.server.broker_loggers import describe_loggers
from moldau.settings.config_entries import ConfigEntry
from moldau.wire.messages import (
    DescribeConfigsRequest,
    DescribeConfigsRequestResource,
    DescribeConfigsResponse,
    DescribeConfigsResponseResourceResult,
    DescribeConfigsResponseResult,
)

CLIENT_METRICS_SOURCE = 7
GROUP_SOURCE = 8

DESCRIBABLE_TYPES = (TOPIC_RESOURCE, BROKER_RESOURCE, BROKER_LOGGER_RESOURCE, CLIENT_METRICS_RESOURCE, GROUP_RESOURCE)

Entry = DescribeConfigsResponseResourceResult
EntriesByOverrides = dict[frozenset[tuple[str, str]], list[Entry]]
"""The config entries of topics by overrides. Topics with equal overrides share entries, to save time and memory."""


@handles(versions=(1, 4))
async def describe_configs(
    request: DescribeConfigsRequest, session: RequestContext, broker: Broker
) -> DescribeConfigsResponse:
    # Describe each resource only once, so that a small request cannot cause a huge response.
    resources: dict[ConfigResource, DescribeConfigsRequestResource] = {}
    for each in request.resources:
        resources.setdefault(ConfigResource(each.resource_type, each.resource_name), each)
    unknown = next((each for each in resources if each.type not in DESCRIBABLE_TYPES), None)
    entries_by_overrides: EntriesByOverrides = {}
    results: list[DescribeConfigsResponseResult] = []
    for resource, requested in resources.items():
        entries: list[Entry] = []
        failure: MoldauError | None = None
        try:
            if unknown is not None:
                raise InvalidRequestError(f"Unexpected resource type {unknown.type} for resource {unknown.name}")
            entries = _entries(resource, broker, entries_by_overrides)
        except MoldauError as error:
            failure = error
        if requested.configuration_keys:
            keys = frozenset(requested.configuration_keys)
            entries = [entry for entry in entries if entry["name"] in keys]
        for entry in entries:
            if not request.include_synonyms:
                entry["synonyms"] = []
            if not request.include_documentation:
                entry["documentation"] = None
        results.append(
            {
                "error_code": error_code(failure),
                "error_message": error_message(failure),
                "resource_type": resource.type,
                "resource_name": resource.name,
                "configs": entries,
            }
        )
    return {"results": results}


def _entries(resource: ConfigResource, broker: Broker, entries_by_overrides: EntriesByOverrides) -> list[Entry]:
    name, settings = resource.name, broker.settings
    if resource.type == TOPIC_RESOURCE:
        validate_topic_name(name)
        if name not in broker.metadata.image.topics:
            raise UnknownTopicOrPartitionError(f"The topic '{name}' does not exist.")
        overrides = broker.metadata.image.config(resource)
        key = frozenset(overrides.items())
        if key not in entries_by_overrides:
            entries_by_overrides[key] = _entry_responses(settings.layers().describe_topic(overrides))
        return entries_by_overrides[key]
    if resource.type == BROKER_RESOURCE:
        if name == "":
            return _entry_responses(settings.layers().describe_broker_defaults())
        _check_broker_id(name, f"{broker.broker_id} or empty string,", broker)
        return _entry_responses(settings.layers().describe_broker())
    if resource.type == BROKER_LOGGER_RESOURCE:
        if name == "":
            raise InvalidRequestError("Broker id must not be empty")
        _check_broker_id(name, str(broker.broker_id), broker)
        return describe_loggers()
    return _stored_entries(resource, broker)


def _check_broker_id(name: str, expected: str, broker: Broker) -> None:
    if name == str(broker.broker_id):
        return
    if not (name.isascii() and name.removeprefix("-").isdigit()):
        raise InvalidRequestError(f"Broker id must be an integer, but it is: {name}")
    raise InvalidRequestError(f"Unexpected broker id, expected {expected} but received {name}")


def _entry_responses(entries: Iterable[ConfigEntry]) -> list[Entry]:
    return [
        {
            "name": entry.name,
            "value": entry.value,
            "read_only": entry.read_only,
            "config_source": entry.source,
            "is_sensitive": entry.is_sensitive,
            "synonyms": [
                {"name": synonym.name, "value": synonym.value, "source": synonym.source} for synonym in entry.synonyms
            ],
            "config_type": entry.type,
            "documentation": entry.documentation,
        }
        for entry in entries
    ]


def _stored_entries(resource: ConfigResource, broker: Broker) -> list[Entry]:
    is_group = resource.type == GROUP_RESOURCE
    if resource.name == "":
        what = "Group" if is_group else "Client metrics subscription"
        raise InvalidRequestError(f"{what} name must not be empty")
    source = GROUP_SOURCE if is_group else CLIENT_METRICS_SOURCE
    return [
        {
            "name": name,
            "value": value,
            "read_only": False,
            "config_source": source,
            "is_sensitive": False,
            "synonyms": [{"name": name, "value": value, "source": source}],
            "documentation": None,
        }
        for name, value in sorted(broker.metadata.image.config(resource).items())
    ]
