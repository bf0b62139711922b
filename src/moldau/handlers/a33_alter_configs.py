"""AlterConfigs: replaces all settings of a resource with the settings in the request.

Settings that are not in the request return to their defaults. This API exists for old clients. New clients use
IncrementalAlterConfigs, which changes single settings. AlterConfigs cannot change loggers. Versions 0-2 have the same
fields.
"""

from moldau.controller.requests import ConfigOperation
from moldau.metadata.image import ConfigResource
from moldau.server.api import Broker, RequestContext, handles
from moldau.server.config_alterations import apply_alterations
from moldau.wire.messages import AlterConfigsRequest, AlterConfigsResponse


@handles(versions=(0, 2))
async def alter_configs(request: AlterConfigsRequest, session: RequestContext, broker: Broker) -> AlterConfigsResponse:
    alterations = [
        (
            ConfigResource(each.resource_type, each.resource_name),
            [(config.name, ConfigOperation.SET, config.value) for config in each.configs],
        )
        for each in request.resources
    ]
    return await apply_alterations(alterations, session, broker, incremental=False, validate_only=request.validate_only)
