"""Domain errors. `error_codes.py` maps every error class to a Kafka error code."""

from collections.abc import Sequence
from typing import NamedTuple, Self


class MoldauError(Exception):
    """Base of all expected errors. The message is sent to the client."""


# Fetch sessions


class FetchSessionIdNotFoundError(MoldauError):
    """The fetch session has ended or never existed. The client creates a new session."""


class InvalidFetchSessionEpochError(MoldauError):
    """A request of the fetch session was lost or arrived twice. The client creates a new session."""


class FetchSessionTopicIdError(MoldauError):
    """A request uses topic ids in a session that was created with topic names, or names in a session with ids."""


# Records


class CorruptRecordError(MoldauError):
    """Bytes that are not a complete, well-formed record batch with a correct checksum."""


class RecordError(NamedTuple):
    """The reason why one record of a batch is invalid."""

    batch_index: int
    """The index of the record in its batch."""
    message: str


class InvalidRecordError(MoldauError):
    """A well-formed batch that the topic does not accept. `record_errors` is empty if no single record is invalid."""

    def __init__(self, message: str, record_errors: Sequence[RecordError] = ()) -> None:
        super().__init__(message)
        self.record_errors = record_errors


class InvalidTimestampError(InvalidRecordError):
    """A batch with records whose timestamps are too far from the broker's clock, or of the wrong type."""


class RecordTooLargeError(MoldauError):
    """A batch over max.message.bytes."""


class UnsupportedCompressionError(MoldauError):
    """A codec that is unknown or not supported by the version of the request."""


# Producers


class OutOfOrderSequenceError(MoldauError):
    """A batch whose sequence number does not follow the producer's last batch."""


class DuplicateSequenceError(MoldauError):
    """A duplicate of a batch that is no longer in the cache, so the offset of that batch is unknown."""


class InvalidProducerEpochError(MoldauError):
    """A producer that was fenced by a newer epoch of the same producer id."""


class TransactionalIdAuthorizationError(MoldauError):
    """A transactional batch in a request without a transactional id."""


# Transactions


class InvalidTransactionStateError(MoldauError):
    """The transaction is not in a state in which the request is valid."""


class InvalidProducerIdMappingError(MoldauError):
    """The transactional id does not exist, or has another producer id."""


class ProducerFencedError(MoldauError):
    """A newer producer with the same transactional id has replaced this producer."""


class ConcurrentTransactionsError(MoldauError):
    """The previous transaction of this transactional id is not complete yet. Clients retry."""


class InvalidTransactionTimeoutError(MoldauError):
    """A transaction timeout that is not positive, or above transaction.max.timeout.ms."""


class TransactionCoordinatorFencedError(MoldauError):
    """A marker from a coordinator that is no longer the coordinator of the transactional id."""


class TransactionalIdNotFoundError(MoldauError):
    """No transaction has this transactional id."""


class TransactionAbortableError(MoldauError):
    """The partition is not in the transaction. The producer can only abort."""


class UnstableOffsetCommitError(MoldauError):
    """A transaction that has not ended commits an offset of this partition. Clients retry."""


class OperationNotAttemptedError(MoldauError):
    """A partition that was not added to a transaction, because another partition of the request is invalid."""


class TopicAuthorizationError(MoldauError):
    """A client must not use this topic in this way, for example write to an internal topic in a transaction."""


class InvalidRegularExpressionError(MoldauError):
    """A pattern that is not a regular expression, or that uses a construct that is not supported."""


# Logs and partitions


class OffsetOutOfRangeError(MoldauError):
    """An offset below the log start or beyond the log end."""


class StorageError(MoldauError):
    """The disk failed or a log is corrupt. The partition is offline until an operator intervenes."""


class NotLeaderOrFollowerError(MoldauError):
    """This broker does not lead the partition. `leader_id` is the leader's broker id, or -1 if it is unknown."""

    def __init__(self, message: str = "", leader_id: int = -1, leader_epoch: int = -1) -> None:
        super().__init__(message)
        self.leader_id = leader_id
        self.leader_epoch = leader_epoch


class FencedLeaderEpochError(MoldauError):
    """The request has an older leader epoch than the partition. `leader_id` is the partition's leader, or -1 if it is
    unknown."""

    def __init__(self, message: str = "", leader_id: int = -1, leader_epoch: int = -1) -> None:
        super().__init__(message)
        self.leader_id = leader_id
        self.leader_epoch = leader_epoch


class UnknownLeaderEpochError(MoldauError):
    """The request has a newer leader epoch than this broker knows."""


class UnknownTopicOrPartitionError(MoldauError):
    """No such topic or partition."""


class UnknownTopicIdError(MoldauError):
    """No topic with this id."""


class InconsistentTopicIdError(MoldauError):
    """A topic id that does not belong to the topic name in the request."""


class InvalidRequiredAcksError(MoldauError):
    """A value of acks other than -1, 0 and 1."""


class NotEnoughReplicasError(MoldauError):
    """Fewer in-sync replicas than min.insync.replicas."""


class NotEnoughReplicasAfterAppendError(MoldauError):
    """The ISR became too small after the append, so the records may or may not be committed."""


class OffsetNotAvailableError(MoldauError):
    """A new leader does not know its high watermark yet."""


class ReplicaNotAvailableError(MoldauError):
    """This broker has no usable replica of the partition."""


class LogDirNotFoundError(MoldauError):
    """The path is not a log directory of this broker."""


class PolicyViolationError(MoldauError):
    """The topic's cleanup policy forbids the request, such as DeleteRecords on a compacted topic."""


# Control plane


class InvalidTopicError(MoldauError):
    """A topic name that is empty, too long or has invalid characters, or an internal topic."""


class TopicExistsError(MoldauError):
    """A topic of this name already exists."""


class InvalidPartitionsError(MoldauError):
    """An invalid number of partitions."""


class InvalidReplicationFactorError(MoldauError):
    """An invalid replication factor, or more replicas than brokers."""


class InvalidReplicaAssignmentError(MoldauError):
    """A manual replica assignment with gaps, duplicates or unknown brokers."""


class InvalidConfigError(MoldauError):
    """An unknown setting or an invalid value."""


class InvalidRequestError(MoldauError):
    """A request that contradicts itself or this node's state."""


class UnsupportedVersionError(MoldauError):
    """An API, version or mode that is not supported."""


class NotControllerError(MoldauError):
    """This node is not the active controller."""


class RequestTimedOutError(MoldauError):
    """The request did not complete within its timeout."""


class TopicDeletionDisabledError(MoldauError):
    """delete.topic.enable is false."""


# The cluster: brokers, partitions and the quorum


class InconsistentClusterIdError(MoldauError):
    """A request from a node of another cluster."""


class BrokerIdNotRegisteredError(MoldauError):
    """No broker with this id is registered."""


class DuplicateBrokerRegistrationError(MoldauError):
    """Another live process has registered with this node id."""

    @classmethod
    def with_advice(cls, node_id: int, detail: object) -> Self:
        """Returns the error with advice for the operator. `detail` says how the other process was found."""
        return cls(
            f"another process is running as node {node_id} of this cluster ({detail}); give this one another node.id, "
            "or stop the other one first"
        )


class InvalidRegistrationError(MoldauError):
    """A registration without endpoints, or without the features that the cluster needs."""


class StaleBrokerEpochError(MoldauError):
    """A request from an earlier incarnation of a broker that has registered again."""


class InvalidUpdateVersionError(MoldauError):
    """The partition epoch of the request is outdated, because the partition has changed."""


class IneligibleReplicaError(MoldauError):
    """A replica that must not join the ISR, because its broker is fenced, shutting down or restarted."""


class NewLeaderElectedError(MoldauError):
    """The partition change was made, and the sender is no longer the leader of the partition."""


class NoReassignmentInProgressError(MoldauError):
    """No reassignment of this partition is in progress."""


class ElectionNotNeededError(MoldauError):
    """The partition already has the requested leader."""


class PreferredLeaderNotAvailableError(MoldauError):
    """The preferred replica is offline or not in sync."""


class EligibleLeadersNotAvailableError(MoldauError):
    """No live replica is eligible to lead."""


class InconsistentVoterSetError(MoldauError):
    """A quorum request from or for a node that is not a voter."""


class DuplicateVoterError(MoldauError):
    """The node is already a voter."""


class VoterNotFoundError(MoldauError):
    """No such voter."""


class InvalidVoterKeyError(MoldauError):
    """The node id or directory id in the request belongs to another voter."""


class SnapshotNotFoundError(MoldauError):
    """The snapshot of this end offset and epoch does not exist any more."""


class PositionOutOfRangeError(MoldauError):
    """A position beyond the end of a snapshot."""


class PeerUnreachableError(MoldauError):
    """Another node did not respond.

    If `is_connection_refused` is set, no process listens at the node's address, so the node is not running. If
    `was_sent` is set, the request was sent, so the node may have executed the request.
    """

    def __init__(self, message: str, *, is_connection_refused: bool = False, was_sent: bool = False) -> None:
        super().__init__(message)
        self.is_connection_refused = is_connection_refused
        self.was_sent = was_sent


# Groups


class CoordinatorNotAvailableError(MoldauError):
    """The coordinator is temporarily not available, for example because its state topic is being created."""


class NotCoordinatorError(MoldauError):
    """This broker is not the coordinator of the group or transactional id."""


class CoordinatorLoadInProgressError(MoldauError):
    """The coordinator is still loading its state. Clients retry."""


class InvalidGroupIdError(MoldauError):
    """A group id that is empty or too long for a record."""


class GroupIdNotFoundError(MoldauError):
    """No such group."""


class NonEmptyGroupError(MoldauError):
    """A group with members cannot be deleted."""


class GroupSubscribedToTopicError(MoldauError):
    """Offsets of a topic that members subscribe to cannot be deleted."""


class UnknownMemberIdError(MoldauError):
    """The group has no member with this id. The client must join again."""


class MemberIdRequiredError(MoldauError):
    """A new member must join again with the member id in this error. The group has not stored the member yet."""

    def __init__(self, member_id: str) -> None:
        super().__init__("the member must join again with its member id")
        self.member_id = member_id


class FencedInstanceIdError(MoldauError):
    """A newer member with the same group.instance.id has replaced this member."""


class IllegalGenerationError(MoldauError):
    """The generation in the request is not the current generation of the group."""


class RebalanceInProgressError(MoldauError):
    """The group is rebalancing. The member must join again."""


class InconsistentGroupProtocolError(MoldauError):
    """A member whose protocol type or protocols do not match those of the group."""


class InvalidSessionTimeoutError(MoldauError):
    """A session timeout outside of the broker's limits."""


class GroupMaxSizeReachedError(MoldauError):
    """The group already has the maximum number of members."""


class OffsetMetadataTooLargeError(MoldauError):
    """The metadata of an offset is longer than offset.metadata.max.bytes."""


class InvalidCommitOffsetSizeError(MoldauError):
    """A commit that does not fit into one batch of the offsets topic."""
