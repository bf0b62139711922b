"""IncrementalAlterConfigs: changes single settings of a resource (set, delete, append, subtract).

For broker loggers, the request changes the log level of this process until the process ends. Versions 0 and 1 have the
same fields.
"""

from moldau.metadata.image import ConfigResource
from moldau.server.api import Broker, RequestContext, handles
from moldau.server.config_alterations import apply_alterations
from moldau.wire.messages import IncrementalAlterConfigsRequest, IncrementalAlterConfigsResponse


@handles(versions=(0, 1))
async def incremental_alter_configs(
    request: IncrementalAlterConfigsRequest, session: RequestContext, broker: Broker
) -> IncrementalAlterConfigsResponse:
    alterations = [
        (
            ConfigResource(each.resource_type, each.resource_name),
            [(config.name, config.config_operation, config.value) for config in each.configs],
        )
        for each in request.resources
    ]
    return await apply_alterations(alterations, session, broker, incremental=True, validate_only=request.validate_only)
