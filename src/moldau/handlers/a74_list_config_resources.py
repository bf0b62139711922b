"""ListConfigResources: returns the types and names of resources that can have configs.

v0 is the older ListClientMetricsResources, which lists only client metrics subscriptions. v1 has a list of resource
types. An empty list requests all types. An unknown type fails the whole request. All topics and brokers are listed, but
only those subscriptions and groups for which a config was set.
"""

from moldau.error_codes import ErrorCode
from moldau.metadata.image import (
    BROKER_LOGGER_RESOURCE,
    BROKER_RESOURCE,
    CLIENT_METRICS_RESOURCE,
    GROUP_RESOURCE,
    TOPIC_RESOURCE,
    MetadataImage,
)
from moldau.server.api import Broker, RequestContext, handles
from moldau.wire.messages import ListConfigResourcesRequest, ListConfigResourcesResponse

ALL_TYPES = (TOPIC_RESOURCE, BROKER_RESOURCE, BROKER_LOGGER_RESOURCE, CLIENT_METRICS_RESOURCE, GROUP_RESOURCE)


@handles(versions=(0, 1))
async def list_config_resources(
    request: ListConfigResourcesRequest, session: RequestContext, broker: Broker
) -> ListConfigResourcesResponse:
    if session.api_version == 0:
        types = [CLIENT_METRICS_RESOURCE]
    else:
        types = sorted(set(request.resource_types)) or list(ALL_TYPES)
    if any(each not in ALL_TYPES for each in types):
        return {"error_code": ErrorCode.unsupported_version}
    image = broker.metadata.image
    return {
        "config_resources": [
            {"resource_name": name, "resource_type": each} for each in types for name in _names(image, each)
        ]
    }


def _names(image: MetadataImage, resource_type: int) -> list[str]:
    if resource_type == TOPIC_RESOURCE:
        return sorted(image.topics)
    if resource_type in (BROKER_RESOURCE, BROKER_LOGGER_RESOURCE):
        return [str(broker_id) for broker_id in sorted(image.brokers)]
    return sorted(resource.name for resource in image.configs if resource.type == resource_type)
