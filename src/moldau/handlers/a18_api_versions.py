"""ApiVersions: returns the APIs and versions in the registry, and the features of the cluster.

Most clients send this request first. The response has the oldest response header in every version. If the version of
the request is not supported, the dispatcher responds. Version 3 added the name of the client software and the features.
Since 4, the minimum version of a feature can be 0. Inter-broker APIs are listed only on the inter-broker listener.
"""

import re

from moldau.controller.features import SUPPORTED_FEATURES
from moldau.error_codes import ErrorCode
from moldau.server.api import REGISTRY, Broker, RequestContext, handles
from moldau.wire.messages import ApiVersionsRequest, ApiVersionsResponse

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
_ZERO_FEATURE_VERSION = 4


@handles(versions=(0, 4))
async def api_versions(request: ApiVersionsRequest, session: RequestContext, broker: Broker) -> ApiVersionsResponse:
    name, version = request.client_software_name, request.client_software_version
    if name is not None and version is not None:
        if not _SOFTWARE.fullmatch(name) or not _SOFTWARE.fullmatch(version):
            return {"error_code": ErrorCode.invalid_request}
        session.connection.client_software = f"{name} {version}"
    image = broker.metadata.image
    is_node = session.connection.listener == broker.settings.broker.inter_broker_listener
    return {
        "api_keys": [
            {"api_key": key, "min_version": api.advertised_min_version, "max_version": api.max_version}
            for key, api in sorted(REGISTRY.items())
            if is_node or not api.inter_broker
        ],
        "supported_features": [
            {"name": name, "min_version": low, "max_version": high}
            for name, (low, high) in sorted(SUPPORTED_FEATURES.items())
            if low > 0 or session.api_version >= _ZERO_FEATURE_VERSION
        ],
        "finalized_features_epoch": image.offset,
        "finalized_features": [
            {"name": name, "max_version_level": level, "min_version_level": level}
            for name, level in sorted(image.features.items())
        ],
    }
