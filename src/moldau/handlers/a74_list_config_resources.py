"""ListConfigResources: what has a configuration, by type and name.

- v0 is the older ListClientMetricsResources: client metrics subscriptions only.
- v1 takes a list of types; an empty one stands for all. A type that nobody knows refuses the whole
  request.

Topics and brokers are listed whether anything was set for them or not; subscriptions and groups only if
it was.
"""

from typing import Any

from moldau.metadata.image import (
    BROKER_LOGGER_RESOURCE,
    BROKER_RESOURCE,
    CLIENT_METRICS_RESOURCE,
    GROUP_RESOURCE,
    TOPIC_RESOURCE,
    MetadataImage,
)
from moldau.server.broker import Broker
from moldau.server.errors import ErrorCode
from moldau.server.registry import handles
from moldau.server.session import Session
from moldau.wire.api_keys import ApiKey
from moldau.wire.codec import Message

ALL_TYPES = (
    TOPIC_RESOURCE,
    BROKER_RESOURCE,
    BROKER_LOGGER_RESOURCE,
    CLIENT_METRICS_RESOURCE,
    GROUP_RESOURCE,
)


@handles(ApiKey.LIST_CONFIG_RESOURCES, versions=(0, 1))
async def list_config_resources(request: Message, session: Session, broker: Broker) -> dict[str, Any]:
    if session.api_version == 0:
        types = [CLIENT_METRICS_RESOURCE]
    else:
        types = sorted(set(request.resource_types)) or list(ALL_TYPES)
    if any(each not in ALL_TYPES for each in types):
        return {"throttle_time": 0, "error_code": int(ErrorCode.unsupported_version), "config_resources": []}
    image = broker.metadata.image
    return {
        "throttle_time": 0,
        "error_code": int(ErrorCode.none),
        "config_resources": [
            {"resource_name": name, "resource_type": each} for each in types for name in _names(image, each)
        ],
    }


def _names(image: MetadataImage, resource_type: int) -> list[str]:
    if resource_type == TOPIC_RESOURCE:
        return sorted(image.topics)
    if resource_type in (BROKER_RESOURCE, BROKER_LOGGER_RESOURCE):
        return [str(broker_id) for broker_id in sorted(image.brokers)]
    return sorted(resource.name for resource in image.configs if resource.type == resource_type)
