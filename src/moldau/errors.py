"""What can go wrong, in the words of the domain. `server/errors.py` maps each to its Kafka error code."""


class MoldauError(Exception):
    """Base of all errors that are answers, not bugs. The message is shown to the caller."""


# Records


class CorruptRecordError(MoldauError):
    """Bytes that are not a whole, well-formed record batch, or whose checksum is wrong."""


class UnsupportedMagicError(MoldauError):
    """Record batches of a format older (or newer) than v2."""


class InvalidRecordError(MoldauError):
    """A well-formed batch that this topic cannot take; `record_index` is the one at fault, where it is one."""

    def __init__(self, message: str, record_index: int | None = None) -> None:
        super().__init__(message)
        self.record_index = record_index


class InvalidTimestampError(MoldauError):
    """A record timestamp too far from the broker's clock."""


class RecordTooLargeError(MoldauError):
    """A batch over max.message.bytes."""


class UnsupportedCompressionError(MoldauError):
    """A codec that is unknown, or that the caller's version of the protocol does not have."""


# Producers


class OutOfOrderSequenceError(MoldauError):
    """A sequence that leaves a gap after the producer's last batch."""


class DuplicateSequenceError(MoldauError):
    """A sequence older than the batches that are remembered: written before, offset no longer known."""


class InvalidProducerEpochError(MoldauError):
    """A producer that a newer one with the same id has replaced."""


class TransactionalIdAuthorizationError(MoldauError):
    """A transactional batch without a transactional id that would vouch for it."""


class InvalidTransactionStateError(MoldauError):
    """A transactional batch while no transaction is open."""


# Logs and partitions


class OffsetOutOfRangeError(MoldauError):
    """An offset below the log's start or beyond its end."""


class StorageError(MoldauError):
    """The disk failed or a log is damaged: the partition is offline until an operator looks at it."""


class NotLeaderOrFollowerError(MoldauError):
    """This node does not lead the partition (any more); `leader_id` is who does, -1 where that is not known."""

    def __init__(self, message: str = "", leader_id: int = -1, leader_epoch: int = -1) -> None:
        super().__init__(message)
        self.leader_id = leader_id
        self.leader_epoch = leader_epoch


class FencedLeaderEpochError(MoldauError):
    """The caller knows an older leader epoch than the partition has."""


class UnknownLeaderEpochError(MoldauError):
    """The caller knows a newer leader epoch than this node."""


class UnknownTopicOrPartitionError(MoldauError):
    """No such topic or partition."""


class UnknownTopicIdError(MoldauError):
    """No topic with this id."""


class InconsistentTopicIdError(MoldauError):
    """A topic id that does not belong to the topic named."""


class InvalidRequiredAcksError(MoldauError):
    """An acks other than -1, 0 and 1."""


class NotEnoughReplicasError(MoldauError):
    """Fewer replicas in sync than min.insync.replicas asks for."""


class NotEnoughReplicasAfterAppendError(MoldauError):
    """Appended, but the in-sync set has become too small since: the records may or may not stay."""


class OffsetNotAvailableError(MoldauError):
    """A leader that has just begun cannot say yet how far its log is committed."""


class ReplicaNotAvailableError(MoldauError):
    """This node has no replica of the partition that could be asked."""


class PolicyViolationError(MoldauError):
    """Refused by the topic's cleanup policy (DeleteRecords on a compacted topic, ...)."""


# Control plane


class InvalidTopicError(MoldauError):
    """A topic name that is empty, too long or has characters it may not have, or an internal topic."""


class TopicExistsError(MoldauError):
    """A topic of this name is there already."""


class InvalidPartitionsError(MoldauError):
    """A partition count that cannot be."""


class InvalidReplicationFactorError(MoldauError):
    """A replication factor that cannot be, or more replicas than there are brokers."""


class InvalidReplicaAssignmentError(MoldauError):
    """A manual replica assignment with gaps, repeats or unknown brokers."""


class InvalidConfigError(MoldauError):
    """A setting that is unknown, or a value it cannot take."""


class InvalidRequestError(MoldauError):
    """A request that contradicts itself or this node's state."""


class UnsupportedVersionError(MoldauError):
    """An API, version or mode that is not served."""


class NotControllerError(MoldauError):
    """This node is not the active controller."""


class RequestTimedOutError(MoldauError):
    """It could not be done in the time the caller gave."""


class TopicDeletionDisabledError(MoldauError):
    """delete.topic.enable is false."""


# The cluster: brokers, partitions and the quorum


class InconsistentClusterIdError(MoldauError):
    """A node of another cluster."""


class BrokerIdNotRegisteredError(MoldauError):
    """No broker with this id is registered."""


class DuplicateBrokerRegistrationError(MoldauError):
    """Another process is alive that has registered with this node id."""


class InvalidRegistrationError(MoldauError):
    """A registration that names no endpoints, or features that the cluster cannot work with."""


class StaleBrokerEpochError(MoldauError):
    """The broker has registered anew since: this request is of its former life."""


class InvalidUpdateVersionError(MoldauError):
    """The partition has changed since the caller looked: its partition epoch is another one now."""


class IneligibleReplicaError(MoldauError):
    """A replica that may not join the in-sync set: its broker is fenced, shutting down or started anew."""


class NewLeaderElectedError(MoldauError):
    """The change was made, and by it the caller lost the leadership."""


class NoReassignmentInProgressError(MoldauError):
    """No reassignment of this partition is under way."""


class ElectionNotNeededError(MoldauError):
    """The partition has the leader that was asked for."""


class PreferredLeaderNotAvailableError(MoldauError):
    """The preferred replica is not alive or not in sync."""


class EligibleLeadersNotAvailableError(MoldauError):
    """No replica is alive that may lead."""


class InconsistentVoterSetError(MoldauError):
    """A request of the quorum from or for a node that is no voter."""


class DuplicateVoterError(MoldauError):
    """The voter is one already."""


class VoterNotFoundError(MoldauError):
    """No such voter."""


class InvalidVoterKeyError(MoldauError):
    """A request for a voter that is not this one: another node id or another directory."""


class SnapshotNotFoundError(MoldauError):
    """No snapshot of this end offset and epoch is kept any more."""


class PositionOutOfRangeError(MoldauError):
    """A position beyond the end of a snapshot."""


class PeerUnreachableError(MoldauError):
    """Another node did not answer. `is_connection_refused`: nobody listens at its address, so its process is
    not running.
    `was_sent`: the request had left, so that the other node may have done what it asks for."""

    def __init__(self, message: str, *, is_connection_refused: bool = False, was_sent: bool = False) -> None:
        super().__init__(message)
        self.is_connection_refused = is_connection_refused
        self.was_sent = was_sent


# Groups


class CoordinatorNotAvailableError(MoldauError):
    """There is no coordinator for the moment: its topic is being made, or its log cannot take records."""


class NotCoordinatorError(MoldauError):
    """This node does not coordinate the group (any more)."""


class CoordinatorLoadInProgressError(MoldauError):
    """The groups of this partition are being read; ask again soon."""


class InvalidGroupIdError(MoldauError):
    """A group id that is empty or longer than a record can hold."""


class GroupIdNotFoundError(MoldauError):
    """No such group."""


class NonEmptyGroupError(MoldauError):
    """A group that still has members cannot be deleted."""


class GroupSubscribedToTopicError(MoldauError):
    """Offsets of a topic that members of the group are subscribed to cannot be deleted."""


class UnknownMemberIdError(MoldauError):
    """No such member in the group: it must join anew."""


class MemberIdRequiredError(MoldauError):
    """A new member is given its id first, and joins with it; nothing is kept for those who never come back."""

    def __init__(self, member_id: str) -> None:
        super().__init__("the member must join again with the id it is given")
        self.member_id = member_id


class FencedInstanceIdError(MoldauError):
    """Another member with the same group.instance.id has taken this one's place."""


class IllegalGenerationError(MoldauError):
    """The member is of another generation than the group."""


class RebalanceInProgressError(MoldauError):
    """The group is rebalancing: the member must join again."""


class InconsistentGroupProtocolError(MoldauError):
    """A member whose protocol type or protocols have nothing in common with the group's."""


class InvalidSessionTimeoutError(MoldauError):
    """A session timeout outside of what the broker allows."""


class GroupMaxSizeReachedError(MoldauError):
    """The group has as many members as it may have."""


class OffsetMetadataTooLargeError(MoldauError):
    """The text committed with an offset is longer than offset.metadata.max.bytes."""


class InvalidCommitOffsetSizeError(MoldauError):
    """A commit whose records do not fit into one batch of the offsets topic."""
