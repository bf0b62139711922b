"""The table that maps domain errors to HTTP statuses, beside `error_codes.py`, which maps them to Kafka's codes.

An error that is not in the table has the status of its nearest base class. Any other exception is a bug: status 500.
"""

from collections.abc import Mapping
from types import MappingProxyType

from moldau import errors
from moldau.errors import MoldauError

BAD_REQUEST, FORBIDDEN, NOT_FOUND, CONFLICT, TOO_LARGE = 400, 403, 404, 409, 413
MISDIRECTED, UNAVAILABLE, STORAGE_FAILED = 421, 503, 507

_ERRORS: Mapping[int, tuple[type[MoldauError], ...]] = {
    FORBIDDEN: (
        errors.TopicAuthorizationError,
        errors.TransactionalIdAuthorizationError,
        errors.TopicDeletionDisabledError,
    ),
    NOT_FOUND: (
        errors.UnknownTopicOrPartitionError,
        errors.UnknownTopicIdError,
        errors.GroupIdNotFoundError,
        errors.TransactionalIdNotFoundError,
        errors.BrokerIdNotRegisteredError,
        errors.VoterNotFoundError,
        errors.NoReassignmentInProgressError,
        errors.LogDirNotFoundError,
        errors.SnapshotNotFoundError,
        errors.FetchSessionIdNotFoundError,
        errors.UnknownMemberIdError,
    ),
    CONFLICT: (
        errors.TopicExistsError,
        errors.NonEmptyGroupError,
        errors.GroupSubscribedToTopicError,
        errors.DuplicateVoterError,
        errors.DuplicateBrokerRegistrationError,
        errors.ElectionNotNeededError,
        errors.IllegalGenerationError,
        errors.RebalanceInProgressError,
        errors.FencedInstanceIdError,
        errors.ProducerFencedError,
        errors.InvalidProducerEpochError,
        errors.InvalidUpdateVersionError,
        errors.ConcurrentTransactionsError,
        errors.InvalidTransactionStateError,
        errors.InconsistentTopicIdError,
        errors.InconsistentGroupProtocolError,
        errors.OutOfOrderSequenceError,
        errors.DuplicateSequenceError,
        errors.StaleBrokerEpochError,
        errors.InvalidProducerIdMappingError,
        errors.InvalidFetchSessionEpochError,
        errors.TransactionAbortableError,
        errors.TransactionCoordinatorFencedError,
        errors.NewLeaderElectedError,
        errors.IneligibleReplicaError,
    ),
    TOO_LARGE: (errors.RecordTooLargeError, errors.OffsetMetadataTooLargeError, errors.InvalidCommitOffsetSizeError),
    MISDIRECTED: (
        errors.NotLeaderOrFollowerError,
        errors.FencedLeaderEpochError,
        errors.NotControllerError,
        errors.NotCoordinatorError,
    ),
    UNAVAILABLE: (
        errors.NotEnoughReplicasError,
        errors.NotEnoughReplicasAfterAppendError,
        errors.OffsetNotAvailableError,
        errors.ReplicaNotAvailableError,
        errors.RequestTimedOutError,
        errors.PeerUnreachableError,
        errors.CoordinatorNotAvailableError,
        errors.CoordinatorLoadInProgressError,
        errors.UnknownLeaderEpochError,
        errors.UnstableOffsetCommitError,
        errors.OperationNotAttemptedError,
        errors.PreferredLeaderNotAvailableError,
        errors.EligibleLeadersNotAvailableError,
        errors.GroupMaxSizeReachedError,
    ),
    STORAGE_FAILED: (errors.StorageError, errors.CorruptRecordError),
}

ERROR_STATUSES: Mapping[type[MoldauError], int] = MappingProxyType(
    {kind: status for status, kinds in _ERRORS.items() for kind in kinds}
)
"""The errors that do not have the status 400, which means that the request itself is wrong."""


def error_status(error: MoldauError) -> int:
    """Returns the HTTP status for the class of an error or its nearest base class in the table."""
    for kind in type(error).__mro__:
        if kind in ERROR_STATUSES:
            return ERROR_STATUSES[kind]
    # The base class itself stands for an error that another node did not explain.
    return UNAVAILABLE if type(error) is MoldauError else BAD_REQUEST
