"""Config changes of AlterConfigs and IncrementalAlterConfigs. Every resource succeeds or fails independently.

Clients send changes of a broker's settings and loggers to that broker. The broker checks the broker id, applies changes
of loggers itself, and sends other changes to the active controller, which validates the settings. The broker id in a
forwarded request was already checked by the forwarding broker.
"""

from collections import Counter
from collections.abc import Mapping, Sequence

from moldau.controller.requests import ConfigChange, ConfigOperation
from moldau.error_codes import error_code, error_message
from moldau.errors import InvalidRequestError, MoldauError, NotControllerError
from moldau.metadata.image import BROKER_LOGGER_RESOURCE, BROKER_RESOURCE, ConfigResource
from moldau.server.api import Broker, RequestContext
from moldau.server.broker_loggers import alter_loggers
from moldau.wire.api_keys import ApiKey
from moldau.wire.messages import AlterConfigsResponse

RequestedChanges = Sequence[tuple[str, int, str | None]]
"""The name, operation and value of each change of a resource, not validated."""
Outcomes = dict[ConfigResource, tuple[int, str | None]]
"""The error code and the error message of each resource."""


async def apply_alterations(
    alterations: Sequence[tuple[ConfigResource, RequestedChanges]],
    session: RequestContext,
    broker: Broker,
    *,
    incremental: bool,
    validate_only: bool,
) -> AlterConfigsResponse:
    counts = Counter(resource for resource, _ in alterations)
    outcomes: Outcomes = {}
    for_controller: dict[ConfigResource, Sequence[ConfigChange]] = {}
    for resource, changes in alterations:
        try:
            if counts[resource] > 1:
                raise InvalidRequestError("Each resource must appear at most once.")
            is_logger = resource.type == BROKER_LOGGER_RESOURCE and incremental
            if session.is_forwarded and is_logger:
                raise InvalidRequestError("Loggers must be changed at their own broker.")
            has_broker_id = is_logger or (resource.type == BROKER_RESOURCE and resource.name != "")
            # As in Kafka, a client must send a config change of a single broker to that broker.
            if has_broker_id and not session.is_forwarded:
                _check_broker_id(resource.name, broker)
            if is_logger:
                alter_loggers(_parse_changes(changes), validate_only=validate_only)
                outcomes[resource] = _outcome(None)
            else:
                for_controller[resource] = _parse_changes(changes)
        except MoldauError as error:
            outcomes[resource] = _outcome(error)
    if for_controller:
        try:
            if session.is_forwarded:
                for result in await broker.controller.alter_configs(
                    for_controller, incremental=incremental, validate_only=validate_only
                ):
                    outcomes[result.resource] = _outcome(result.error)
            else:
                outcomes |= await _forward(for_controller, broker, incremental, validate_only)
        except MoldauError as error:
            if session.is_forwarded and isinstance(error, NotControllerError):
                raise
            outcomes.update(dict.fromkeys(for_controller, _outcome(error)))
    return {
        "responses": [
            {
                "error_code": outcomes[resource][0],
                "error_message": outcomes[resource][1],
                "resource_type": resource.type,
                "resource_name": resource.name,
            }
            for resource, _ in alterations
        ]
    }


def _outcome(error: MoldauError | None) -> tuple[int, str | None]:
    return error_code(error), error_message(error)


async def _forward(
    changes: Mapping[ConfigResource, Sequence[ConfigChange]], broker: Broker, incremental: bool, validate_only: bool
) -> Outcomes:
    # This tree fits IncrementalAlterConfigs and AlterConfigs, whose encoder ignores `config_operation`.
    request = {
        "resources": [
            {
                "resource_type": resource.type,
                "resource_name": resource.name,
                "configs": [
                    {"name": each.name, "config_operation": int(each.operation), "value": each.value}
                    for each in requested
                ],
            }
            for resource, requested in changes.items()
        ],
        "validate_only": validate_only,
    }
    api, version = (ApiKey.INCREMENTAL_ALTER_CONFIGS, 1) if incremental else (ApiKey.ALTER_CONFIGS, 2)
    response = await broker.controller_channel.send(api, version, request)
    missing = _outcome(MoldauError("the controller's response lacks this resource"))
    outcomes: Outcomes = dict.fromkeys(changes, missing)
    for each in response.responses:
        outcomes[ConfigResource(each.resource_type, each.resource_name)] = each.error_code, each.error_message
    return outcomes


def _parse_changes(changes: RequestedChanges) -> list[ConfigChange]:
    for _, operation, _ in changes:
        if operation not in frozenset(ConfigOperation):
            raise InvalidRequestError(f"Unknown operations type {operation}")
    return [ConfigChange(name, value, ConfigOperation(operation)) for name, operation, value in changes]


def _check_broker_id(name: str, broker: Broker) -> None:
    if name == str(broker.broker_id):
        return
    if not (name.isascii() and name.removeprefix("-").isdigit()):
        raise InvalidRequestError(f"Node id must be an integer, but it is: {name}")
    raise InvalidRequestError(f"Unexpected broker id, expected {broker.broker_id}, but received {name}")
