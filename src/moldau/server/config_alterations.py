"""What AlterConfigs and IncrementalAlterConfigs share: which resources the controller is asked about, and
answers in the order of the request, every resource on its own.

A broker's own settings and loggers are asked of that broker, which looks at them itself; what the controller has to
keep goes to it, wherever it is. There it comes in an envelope, already looked at.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from moldau.controller.requests import ConfigChange, ConfigOperation, ConfigResult
from moldau.errors import InvalidConfigError, InvalidRequestError, MoldauError
from moldau.metadata.image import BROKER_LOGGER_RESOURCE, BROKER_RESOURCE, ConfigResource
from moldau.server.broker import Broker
from moldau.server.broker_loggers import alter_loggers
from moldau.server.errors import error_code, error_message
from moldau.server.session import Session

OPERATIONS = frozenset(ConfigOperation)


class ConfigAlteration(NamedTuple):
    """One resource of a request, with what is asked for it."""

    resource: ConfigResource
    changes: Sequence[tuple[str, int, str | None]]
    """Name, operation and value, as they came."""


async def apply_alterations(
    alterations: Sequence[ConfigAlteration],
    session: Session,
    broker: Broker,
    *,
    incremental: bool,
    validate_only: bool,
) -> dict[str, Any]:
    times_named = Counter(each.resource for each in alterations)
    errors: dict[ConfigResource, MoldauError | None] = {}
    for_controller: dict[ConfigResource, Sequence[ConfigChange]] = {}
    for resource, changes in alterations:
        try:
            if times_named[resource] > 1:
                raise InvalidRequestError("Each resource must appear at most once.")
            is_logger = resource.type == BROKER_LOGGER_RESOURCE and incremental
            if session.is_forwarded and is_logger:
                raise InvalidRequestError("The loggers of a broker are asked of that broker.")
            is_of_one = is_logger or (resource.type == BROKER_RESOURCE and resource.name != "")
            # Each broker takes its own changes: it alone knows what it was started with.
            if is_of_one and not session.is_forwarded:
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
        "throttle_time": 0,
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
    # An envelope is not handed on again.
    asked = broker.controller if session.is_forwarded else broker.controller_channel
    return await asked.alter_configs(changes, incremental=incremental, validate_only=validate_only)


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
    """Kafka has always answered bad broker settings with INVALID_REQUEST, and clients know it so."""
    if result.resource.type == BROKER_RESOURCE and isinstance(result.error, InvalidConfigError):
        return InvalidRequestError(str(result.error))
    return result.error
