"""Config changes of AlterConfigs and IncrementalAlterConfigs: every resource succeeds or fails on its own.

Clients send changes of a broker's settings and loggers to that broker. It validates them, applies those of loggers
itself and sends the others to the active controller. A request in an envelope has been validated by another broker.
"""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from moldau.controller.requests import ConfigChange, ConfigOperation, ConfigResult
from moldau.errors import InvalidConfigError, InvalidRequestError, MoldauError
from moldau.metadata.image import BROKER_LOGGER_RESOURCE, BROKER_RESOURCE, ConfigResource
from moldau.server.broker import Broker
from moldau.server.broker_loggers import alter_loggers
from moldau.server.errors import error_code, error_message
from moldau.server.session import Session
from moldau.wire.messages import AlterConfigsResponse

OPERATIONS = frozenset(ConfigOperation)


class ConfigAlteration(NamedTuple):
    """The requested changes of one resource."""

    resource: ConfigResource
    changes: Sequence[tuple[str, int, str | None]]
    """Name, operation and value, unchecked."""


async def apply_alterations(
    alterations: Sequence[ConfigAlteration],
    session: Session,
    broker: Broker,
    *,
    incremental: bool,
    validate_only: bool,
) -> AlterConfigsResponse:
    counts = Counter(each.resource for each in alterations)
    errors: dict[ConfigResource, MoldauError | None] = {}
    for_controller: dict[ConfigResource, Sequence[ConfigChange]] = {}
    for resource, changes in alterations:
        try:
            if counts[resource] > 1:
                raise InvalidRequestError("Each resource must appear at most once.")
            is_logger = resource.type == BROKER_LOGGER_RESOURCE and incremental
            if session.is_forwarded and is_logger:
                raise InvalidRequestError("Loggers must be changed at their own broker.")
            has_broker_id = is_logger or (resource.type == BROKER_RESOURCE and resource.name != "")
            # Only the broker itself knows its static settings, against which changes are validated.
            if has_broker_id and not session.is_forwarded:
                _check_broker_id(resource.name, broker)
            if is_logger:
                alter_loggers(_parse_changes(changes), validate_only=validate_only)
                errors[resource] = None
            else:
                for_controller[resource] = _parse_changes(changes)
        except MoldauError as error:
            errors[resource] = error
    try:
        results = await _alter_on_controller(for_controller, session, broker, incremental, validate_only)
    except MoldauError as error:
        errors.update((resource, error) for resource in for_controller)
    else:
        errors.update((result.resource, _to_kafka_error(result)) for result in results)
    return {
        "responses": [
            {
                "error_code": error_code(errors[resource]),
                "error_message": error_message(errors[resource]),
                "resource_type": resource.type,
                "resource_name": resource.name,
            }
            for resource, _ in alterations
        ],
    }


async def _alter_on_controller(
    changes: dict[ConfigResource, Sequence[ConfigChange]],
    session: Session,
    broker: Broker,
    incremental: bool,
    validate_only: bool,
) -> list[ConfigResult]:
    if not changes:
        return []
    # A forwarded request is not forwarded again.
    controller = broker.controller if session.is_forwarded else broker.controller_channel
    return await controller.alter_configs(changes, incremental=incremental, validate_only=validate_only)


def _parse_changes(changes: Sequence[tuple[str, int, str | None]]) -> list[ConfigChange]:
    for _, operation, _ in changes:
        if operation not in OPERATIONS:
            raise InvalidRequestError(f"Unknown operations type {operation}")
    return [ConfigChange(name, value, ConfigOperation(operation)) for name, operation, value in changes]


def _check_broker_id(name: str, broker: Broker) -> None:
    if name == str(broker.broker_id):
        return
    if not (name.isascii() and name.removeprefix("-").isdigit()):
        raise InvalidRequestError(f"Node id must be an integer, but it is: {name}")
    raise InvalidRequestError(f"Unexpected broker id, expected {broker.broker_id}, but received {name}")


def _to_kafka_error(result: ConfigResult) -> MoldauError | None:
    """Returns the error with Kafka's code: INVALID_REQUEST for invalid settings of a broker."""
    if result.resource.type == BROKER_RESOURCE and isinstance(result.error, InvalidConfigError):
        return InvalidRequestError(str(result.error))
    return result.error
