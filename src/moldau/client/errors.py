"""What goes wrong between a client and its brokers: Kafka's error codes, and connections that end."""

from moldau.wire.kio import ErrorCode

__all__ = [
    "COORDINATOR_ERRORS",
    "AuthenticationError",
    "ClientClosedError",
    "ConnectionLostError",
    "ErrorCode",
    "IllegalStateError",
    "KafkaError",
    "RequestTimedOutError",
    "UnsupportedVersionError",
    "raise_for_code",
    "to_error_code",
]

COORDINATOR_ERRORS = (
    ErrorCode.coordinator_not_available,
    ErrorCode.not_coordinator,
    ErrorCode.network_exception,
    ErrorCode.request_timed_out,
)
"""After these somebody else may be the coordinator: it is asked for again."""


class KafkaError(Exception):
    """An error with one of Kafka's codes: a broker answered with it, or the client found that it applies."""

    def __init__(self, code: int, message: str | None = None) -> None:
        try:
            self.code = ErrorCode(code)
            name = self.code.name.upper()
        except ValueError:
            # A broker newer than this client; all that is known of the error is its number.
            self.code = ErrorCode.unknown_server_error
            name = f"ERROR_{code}"
        self.message = message or ""
        super().__init__(f"{name}: {message}" if message else name)

    @property
    def is_retriable(self) -> bool:
        """Whether the same request may succeed later."""
        return bool(self.code.retriable)


class ConnectionLostError(KafkaError):
    """A connection could not be made or has ended: whether the broker saw the request is not known.

    `errno` is what the operating system said, where it did.
    """

    def __init__(self, message: str, errno: int | None = None) -> None:
        super().__init__(ErrorCode.network_exception, message)
        self.errno = errno


class ClientClosedError(ConnectionLostError):
    """The client itself was closed, so no other attempt can help."""

    def __init__(self) -> None:
        super().__init__("the client is closed")

    @property
    def is_retriable(self) -> bool:
        return False


class RequestTimedOutError(KafkaError):
    """No answer came in time: whether the broker saw the request is not known."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.request_timed_out, message)


class AuthenticationError(KafkaError):
    """Client and broker do not trust each other: certificates or passwords are not right, which no retry mends."""

    def __init__(self, message: str, code: int = ErrorCode.sasl_authentication_failed) -> None:
        super().__init__(code, message)

    @property
    def is_retriable(self) -> bool:
        return False


class UnsupportedVersionError(KafkaError):
    """Client and broker have no version of an API in common."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.unsupported_version, message)


class IllegalStateError(RuntimeError):
    """A call that does not fit what the client is doing."""


def to_error_code(number: int) -> ErrorCode:
    """A code that this client does not know, of a newer broker, is one that it cannot handle."""
    return KafkaError(number).code


def raise_for_code(code: int, message: str | None = None) -> None:
    """Raises what a code of an answer stands for, unless it stands for success."""
    if code != ErrorCode.none:
        raise KafkaError(code, message)
