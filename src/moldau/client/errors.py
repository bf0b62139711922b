"""Errors of the client: Kafka's error codes, lost connections, and misuse."""

from typing import TYPE_CHECKING

from moldau.wire.kio import ErrorCode as ErrorCode

if TYPE_CHECKING:
    from moldau.client.record import TopicPartition

COORDINATOR_ERRORS = (
    ErrorCode.coordinator_not_available,
    ErrorCode.not_coordinator,
    ErrorCode.network_exception,
    ErrorCode.request_timed_out,
)
"""Errors after which the coordinator may have moved and is looked up again."""


_REPEATABLE_ERRORS = (
    ErrorCode.out_of_order_sequence_number,
    ErrorCode.invalid_producer_epoch,
    ErrorCode.invalid_txn_state,
    ErrorCode.unknown_producer_id,
    ErrorCode.transaction_abortable,
    ErrorCode.illegal_generation,
    ErrorCode.unknown_member_id,
    ErrorCode.rebalance_in_progress,
    ErrorCode.fenced_instance_id,
)
"""Errors that are not retriable, but after which a transaction with the same records may succeed."""


class KafkaError(Exception):
    """An error with a Kafka error code, returned by a broker or raised by the client itself."""

    def __init__(self, code: int, message: str | None = None) -> None:
        try:
            self.code = ErrorCode(code)
            name = self.code.name.upper()
        except ValueError:
            # The code of a newer broker has no name in this client, so the message shows its number.
            self.code = ErrorCode.unknown_server_error
            name = f"ERROR_{code}"
        self.message = message or ""
        super().__init__(f"{name}: {message}" if message else name)

    @property
    def is_retriable(self) -> bool:
        """Whether the same request may succeed later."""
        return bool(self.code.retriable)


class ConnectionLostError(KafkaError):
    """A connection failed to open or was lost. The broker may or may not have received the request."""

    def __init__(self, message: str, errno: int | None = None) -> None:
        super().__init__(ErrorCode.network_exception, message)
        self.errno = errno
        """The error number of the operating system, if there is one."""


class ClientClosedError(ConnectionLostError):
    """The client was closed; a retry cannot succeed."""

    def __init__(self) -> None:
        super().__init__("the client is closed")

    @property
    def is_retriable(self) -> bool:
        return False


class RequestTimedOutError(KafkaError):
    """No response arrived in time; the broker may or may not have received the request."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.request_timed_out, message)


class AuthenticationError(KafkaError):
    """TLS or SASL authentication failed; a retry cannot succeed."""

    def __init__(self, message: str, code: int = ErrorCode.sasl_authentication_failed) -> None:
        super().__init__(code, message)

    @property
    def is_retriable(self) -> bool:
        return False


class UnsupportedVersionError(KafkaError):
    """Client and broker have no common version of an API."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.unsupported_version, message)


class CommitFailedError(KafkaError):
    """The group has rebalanced without this consumer, so its offsets were not committed.

    Other members now own the partitions and read the uncommitted records again. The next poll rejoins the group.
    """


class RebalanceInProgressError(KafkaError):
    """The group is rebalancing. Poll until it has finished, then commit the partitions that are still assigned."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.rebalance_in_progress, message)


class TransactionAbortableError(KafkaError):
    """The transaction cannot be committed. Abort it; then the producer can begin the next one.

    `async with producer.transaction()` has aborted it when it raises this error.
    """

    def __init__(self, cause: KafkaError) -> None:
        super().__init__(cause.code, f"the transaction must be aborted: {cause.message or cause.code.name}")
        self.cause = self.__cause__ = cause

    @property
    def is_retriable(self) -> bool:
        """Whether the whole transaction may succeed if it is repeated. The failed request must not be."""
        return bool(self.code.retriable) or self.code in _REPEATABLE_ERRORS


class ProducerFencedError(KafkaError):
    """Another producer with the same transactional id has taken over. This producer can only be closed."""

    @property
    def is_retriable(self) -> bool:
        return False


class NoOffsetForPartitionError(KafkaError):
    """A partition has no valid position, and auto_offset_reset is "none"."""

    def __init__(self, partitions: list["TopicPartition"], why: str) -> None:
        super().__init__(
            ErrorCode.offset_out_of_range,
            f"{why} for {', '.join(map(str, partitions))}, and auto_offset_reset is 'none': seek, or commit an offset",
        )
        self.partitions = partitions


class IllegalStateError(RuntimeError):
    """A call that the current state of the client does not allow."""


def to_error_code(number: int) -> ErrorCode:
    """Returns the error code of a number, or unknown_server_error if this client does not know the number."""
    return KafkaError(number).code


def raise_for_code(code: int, message: str | None = None) -> None:
    """Raises KafkaError unless the code means success."""
    if code != ErrorCode.none:
        raise KafkaError(code, message)
