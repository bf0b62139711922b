"""Checks of requests about ACLs."""

from moldau.network.connection import CloseConnectionError

NO_AUTHORIZER = "No Authorizer is configured."
"""Kafka's message for each ACL in a request."""

_UNKNOWN = 0
"""The code that the enums of resource types, pattern types, operations and permissions have for an unknown value."""


def check_known_elements(resource_type: int, pattern_type: int, operation: int, permission_type: int) -> None:
    """Raises CloseConnectionError for the code `_UNKNOWN`. Kafka regards such a request as malformed."""
    if _UNKNOWN in (resource_type, pattern_type, operation, permission_type):
        raise CloseConnectionError("a request about ACLs contains unknown elements")
