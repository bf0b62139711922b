"""ApiVersions: what is served, read off the registry, and the features of the cluster.

The first thing most clients ask. Its answer has the oldest header in every version; a version newer than
known is answered by the dispatcher. Version 3 brought the client's name and the features; 4 lets a
feature's lowest version be 0. What nodes ask of each other is named only on the listener between them.
"""

import re
from typing import Any

from moldau.controller.cluster_control import SUPPORTED_FEATURES
from moldau.server.broker import Broker
from moldau.server.errors import ErrorCode
from moldau.server.registry import REGISTRY, handles
from moldau.server.session import Session
from moldau.wire.api_keys import ApiKey

_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")
_ZERO_LOWEST_VERSION = 4


@handles(ApiKey.API_VERSIONS, versions=(0, 4))
async def api_versions(request: Any, session: Session, broker: Broker) -> Any:
    if session.api_version >= 3:
        name, version = request.client_software_name, request.client_software_version
        if not _SOFTWARE.fullmatch(name) or not _SOFTWARE.fullmatch(version):
            return {"error_code": int(ErrorCode.invalid_request), "api_keys": [], "throttle_time": 0}
        session.connection.client_software = f"{name} {version}"
    image = broker.metadata.image
    is_node = session.connection.listener == broker.settings.broker.inter_broker_listener
    return {
        "error_code": 0,
        "throttle_time": 0,
        "api_keys": [
            {"api_key": key, "min_version": served.advertised_min_version, "max_version": served.max_version}
            for key, served in sorted(REGISTRY.items())
            if is_node or not served.inter_broker
        ],
        "supported_features": [
            {"name": name, "min_version": low, "max_version": high}
            for name, (low, high) in sorted(SUPPORTED_FEATURES.items())
            if low > 0 or session.api_version >= _ZERO_LOWEST_VERSION
        ],
        "finalized_features_epoch": image.offset,
        "finalized_features": [
            {"name": name, "max_version_level": level, "min_version_level": level}
            for name, level in sorted(image.features.items())
        ],
        "zk_migration_ready": False,
    }
