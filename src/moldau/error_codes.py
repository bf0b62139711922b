"""The table that maps domain errors to Kafka's error codes.

Any other exception is a bug. The dispatcher logs such an exception and closes the connection. If a response needs a
code for such an exception, the code is UNKNOWN_SERVER_ERROR without a message.
"""

import re
from collections.abc import Mapping
from types import MappingProxyType

from moldau import errors
from moldau.errors import MoldauError
from moldau.wire.kio import ErrorCode

_CODES_WITH_OTHER_NAMES: Mapping[type[MoldauError], ErrorCode] = MappingProxyType(
    {
        errors.CorruptRecordError: ErrorCode.corrupt_message,
        errors.RecordTooLargeError: ErrorCode.message_too_large,
        errors.UnsupportedCompressionError: ErrorCode.unsupported_compression_type,
        errors.OutOfOrderSequenceError: ErrorCode.out_of_order_sequence_number,
        errors.DuplicateSequenceError: ErrorCode.duplicate_sequence_number,
        errors.TransactionalIdAuthorizationError: ErrorCode.transactional_id_authorization_failed,
        errors.InvalidTransactionStateError: ErrorCode.invalid_txn_state,
        errors.TopicAuthorizationError: ErrorCode.topic_authorization_failed,
        errors.StorageError: ErrorCode.kafka_storage_error,
        errors.PeerUnreachableError: ErrorCode.network_exception,
        errors.InvalidTopicError: ErrorCode.invalid_topic_exception,
        errors.TopicExistsError: ErrorCode.topic_already_exists,
        errors.FetchSessionTopicIdError: ErrorCode.fetch_session_topic_id_error,
    }
)


def _code_with_same_name(kind: type[MoldauError]) -> ErrorCode:
    """Returns the code that has the name of the error, for example `invalid_request` for InvalidRequestError."""
    return ErrorCode[re.sub(r"\B(?=[A-Z])", "_", kind.__name__.removesuffix("Error")).lower()]


ERROR_CODES: Mapping[type[MoldauError], ErrorCode] = MappingProxyType(
    {
        kind: _CODES_WITH_OTHER_NAMES.get(kind) or _code_with_same_name(kind)
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, MoldauError) and kind is not MoldauError
    }
)

MESSAGE_LENGTH_MAX = 2000
"""Longer messages are truncated. They may quote the request, but a response string has at most 32,767 bytes."""


def error_code(error: BaseException | None) -> int:
    """Returns Kafka's code for the class of an error or its nearest base class in the table. Returns 0 for None."""
    if error is None:
        return int(ErrorCode.none)
    for kind in type(error).__mro__:
        code = ERROR_CODES.get(kind)
        if code is not None:
            return int(code)
    return int(ErrorCode.unknown_server_error)


def error_message(error: BaseException | None) -> str | None:
    """Returns the message for the client; None for unexpected exceptions, which may contain internal data."""
    if not isinstance(error, MoldauError):
        return None
    return str(error)[:MESSAGE_LENGTH_MAX] or None


__all__ = ["ERROR_CODES", "ErrorCode", "error_code", "error_message"]
