"""UpdateFeatures: changes the finalized levels of features. Either all updates of a request are made, or none.

Since v1 an update has an upgrade type, and a request can be validated only. Version 0 allows upgrades only: like Kafka,
the controller ignores its field for downgrades. v2 removed the results of the single features.
"""

from moldau.controller.requests import FeatureUpdate
from moldau.server.api import Broker, RequestContext, handles
from moldau.wire.messages import UpdateFeaturesRequest, UpdateFeaturesResponse


@handles(versions=(0, 2), forwarded=True)
async def update_features(
    request: UpdateFeaturesRequest, session: RequestContext, broker: Broker
) -> UpdateFeaturesResponse:
    updates = [
        FeatureUpdate(each.feature, each.max_version_level, each.upgrade_type) for each in request.feature_updates
    ]
    await broker.controller.update_features(updates, validate_only=request.validate_only)
    return {
        "error_code": 0,
        "error_message": None,
        # Kafka's message of a feature that was updated is the name of its error code.
        "results": [{"feature": each.name, "error_code": 0, "error_message": "NONE"} for each in updates],
    }
