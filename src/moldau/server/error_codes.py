"""The table that maps domain errors to Kafka's error codes.

Any other exception is a bug. The dispatcher logs such an exception and closes the connection. If a response needs a
code for such an exception, the code is UNKNOWN_SERVER_ERROR without a message.
"""

from collections.abc import Mapping
from types import MappingProxyType

from moldau import errors
from moldau.errors import MoldauError
from moldau.wire.kio import ErrorCode

ERROR_CODES: Mapping[type[MoldauError], ErrorCode] = MappingProxyType(
    {
        errors.CorruptRecordError: ErrorCode.corrupt_message,
        # In the served versions of Produce, Kafka uses this code for older record formats.
        errors.UnsupportedMagicError: ErrorCode.invalid_record,
        errors.InvalidRecordError: ErrorCode.invalid_record,
        errors.InvalidTimestampError: ErrorCode.invalid_timestamp,
        errors.RecordTooLargeError: ErrorCode.message_too_large,
        errors.UnsupportedCompressionError: ErrorCode.unsupported_compression_type,
        errors.OutOfOrderSequenceError: ErrorCode.out_of_order_sequence_number,
        errors.DuplicateSequenceError: ErrorCode.duplicate_sequence_number,
        errors.InvalidProducerEpochError: ErrorCode.invalid_producer_epoch,
        errors.TransactionalIdAuthorizationError: ErrorCode.transactional_id_authorization_failed,
        errors.InvalidTransactionStateError: ErrorCode.invalid_txn_state,
        errors.OffsetOutOfRangeError: ErrorCode.offset_out_of_range,
        errors.StorageError: ErrorCode.kafka_storage_error,
        errors.NotLeaderOrFollowerError: ErrorCode.not_leader_or_follower,
        errors.FencedLeaderEpochError: ErrorCode.fenced_leader_epoch,
        errors.UnknownLeaderEpochError: ErrorCode.unknown_leader_epoch,
        errors.UnknownTopicOrPartitionError: ErrorCode.unknown_topic_or_partition,
        errors.UnknownTopicIdError: ErrorCode.unknown_topic_id,
        errors.InconsistentTopicIdError: ErrorCode.inconsistent_topic_id,
        errors.InvalidRequiredAcksError: ErrorCode.invalid_required_acks,
        errors.NotEnoughReplicasError: ErrorCode.not_enough_replicas,
        errors.NotEnoughReplicasAfterAppendError: ErrorCode.not_enough_replicas_after_append,
        errors.OffsetNotAvailableError: ErrorCode.offset_not_available,
        errors.ReplicaNotAvailableError: ErrorCode.replica_not_available,
        errors.InconsistentClusterIdError: ErrorCode.inconsistent_cluster_id,
        errors.BrokerIdNotRegisteredError: ErrorCode.broker_id_not_registered,
        errors.DuplicateBrokerRegistrationError: ErrorCode.duplicate_broker_registration,
        errors.InvalidRegistrationError: ErrorCode.invalid_registration,
        errors.StaleBrokerEpochError: ErrorCode.stale_broker_epoch,
        errors.InvalidUpdateVersionError: ErrorCode.invalid_update_version,
        errors.IneligibleReplicaError: ErrorCode.ineligible_replica,
        errors.NewLeaderElectedError: ErrorCode.new_leader_elected,
        errors.NoReassignmentInProgressError: ErrorCode.no_reassignment_in_progress,
        errors.ElectionNotNeededError: ErrorCode.election_not_needed,
        errors.PreferredLeaderNotAvailableError: ErrorCode.preferred_leader_not_available,
        errors.EligibleLeadersNotAvailableError: ErrorCode.eligible_leaders_not_available,
        errors.InconsistentVoterSetError: ErrorCode.inconsistent_voter_set,
        errors.DuplicateVoterError: ErrorCode.duplicate_voter,
        errors.VoterNotFoundError: ErrorCode.voter_not_found,
        errors.InvalidVoterKeyError: ErrorCode.invalid_voter_key,
        errors.SnapshotNotFoundError: ErrorCode.snapshot_not_found,
        errors.PositionOutOfRangeError: ErrorCode.position_out_of_range,
        errors.PeerUnreachableError: ErrorCode.network_exception,
        errors.PolicyViolationError: ErrorCode.policy_violation,
        errors.InvalidTopicError: ErrorCode.invalid_topic_exception,
        errors.TopicExistsError: ErrorCode.topic_already_exists,
        errors.InvalidPartitionsError: ErrorCode.invalid_partitions,
        errors.InvalidReplicationFactorError: ErrorCode.invalid_replication_factor,
        errors.InvalidReplicaAssignmentError: ErrorCode.invalid_replica_assignment,
        errors.InvalidConfigError: ErrorCode.invalid_config,
        errors.InvalidRequestError: ErrorCode.invalid_request,
        errors.UnsupportedVersionError: ErrorCode.unsupported_version,
        errors.NotControllerError: ErrorCode.not_controller,
        errors.RequestTimedOutError: ErrorCode.request_timed_out,
        errors.TopicDeletionDisabledError: ErrorCode.topic_deletion_disabled,
        errors.CoordinatorNotAvailableError: ErrorCode.coordinator_not_available,
        errors.NotCoordinatorError: ErrorCode.not_coordinator,
        errors.CoordinatorLoadInProgressError: ErrorCode.coordinator_load_in_progress,
        errors.InvalidGroupIdError: ErrorCode.invalid_group_id,
        errors.GroupIdNotFoundError: ErrorCode.group_id_not_found,
        errors.NonEmptyGroupError: ErrorCode.non_empty_group,
        errors.GroupSubscribedToTopicError: ErrorCode.group_subscribed_to_topic,
        errors.UnknownMemberIdError: ErrorCode.unknown_member_id,
        errors.MemberIdRequiredError: ErrorCode.member_id_required,
        errors.FencedInstanceIdError: ErrorCode.fenced_instance_id,
        errors.IllegalGenerationError: ErrorCode.illegal_generation,
        errors.RebalanceInProgressError: ErrorCode.rebalance_in_progress,
        errors.InconsistentGroupProtocolError: ErrorCode.inconsistent_group_protocol,
        errors.InvalidSessionTimeoutError: ErrorCode.invalid_session_timeout,
        errors.GroupMaxSizeReachedError: ErrorCode.group_max_size_reached,
        errors.OffsetMetadataTooLargeError: ErrorCode.offset_metadata_too_large,
        errors.InvalidCommitOffsetSizeError: ErrorCode.invalid_commit_offset_size,
    }
)


MESSAGE_LENGTH_MAX = 1000
"""Messages are truncated, because they may quote the request. A string in a response has at most 32,767 bytes."""


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
    """Returns the error message for the client, or None if there is no message.

    An unexpected exception has no message for the client, because its text may contain internal data.
    """
    if not isinstance(error, MoldauError):
        return None
    return str(error)[:MESSAGE_LENGTH_MAX] or None


__all__ = ["ERROR_CODES", "ErrorCode", "error_code", "error_message"]
