"""Decisions on brokers (Kafka's ClusterControlManager) and producer ids.

The change of a broker and the changes of its partitions are one decision (records plus a response). If the decision
would have too many records, it contains only the first of them. The response says so, and the caller submits the
decision again. The cluster is consistent after each part.
"""

from collections.abc import Iterable
from typing import NamedTuple

from moldau.controller.elections import elect_leaderless_partitions, remove_broker_from_isrs
from moldau.controller.features import SUPPORTED_FEATURES
from moldau.controller.heartbeat_manager import BrokerHeartbeatManager
from moldau.controller.partition_change_builder import RetainedData
from moldau.controller.reassignment import add_replicas
from moldau.controller.requests import BrokerHeartbeat, BrokerHeartbeatReply, BrokerRegistrationRequest
from moldau.controller.state import RECORDS_PER_DECISION_MAX, ControllerState
from moldau.coordinator import CoordinatorResult
from moldau.errors import (
    BrokerIdNotRegisteredError,
    DuplicateBrokerRegistrationError,
    InconsistentClusterIdError,
    InvalidRegistrationError,
    InvalidRequestError,
    StaleBrokerEpochError,
    UnsupportedVersionError,
)
from moldau.metadata.image import BrokerRegistration, MetadataImage
from moldau.metadata.records import (
    BrokerEndpoint,
    BrokerFeature,
    BrokerRegistrationChangeRecord,
    PartitionChangeRecord,
    ProducerIdsRecord,
    Record,
    RegisterBrokerRecord,
    UnregisterBrokerRecord,
)

PRODUCER_ID_BLOCK_SIZE = 1000
PRODUCER_ID_LIMIT = 2**63

FENCED, UNFENCED = 1, -1

PORT_MAX = 65535
PARTITIONS_NAMED_MAX = 3
"""The maximum number of partitions that an error message names."""


class HeartbeatOutcome(NamedTuple):
    """The response of the decision on a heartbeat."""

    reply: BrokerHeartbeatReply
    is_complete: bool = True
    """Whether all partition changes fit into the decision."""
    controlled_shutdown_offset: int | None = None
    """The new `controlled_shutdown_offset` of the broker's session, if the broker wants to shut down."""


def check_broker_epoch(image: MetadataImage, broker_id: int, broker_epoch: int) -> BrokerRegistration:
    """Returns the broker's registration. Raises BrokerIdNotRegisteredError if there is none, and StaleBrokerEpochError
    if it has another epoch."""
    broker = image.brokers.get(broker_id)
    if broker is None:
        raise BrokerIdNotRegisteredError(f"Broker {broker_id} is not registered.")
    if broker.epoch != broker_epoch:
        raise StaleBrokerEpochError(f"Broker {broker_id} is registered with epoch {broker.epoch}, not {broker_epoch}.")
    return broker


def is_clean_restart(known: BrokerRegistration, broker: BrokerRegistrationRequest) -> bool:
    """Returns whether the registered incarnation closed its logs at shutdown. Otherwise unsynced records may be
    lost."""
    return broker.previous_epoch == known.epoch


def is_same_disk(known: BrokerRegistration, broker: BrokerRegistrationRequest) -> bool:
    """Returns whether the registered incarnation ran on the broker's current disk. Otherwise the disk is empty or has
    an older state, and committed records may be missing."""
    return known.incarnation_id in broker.previous_incarnations


def retained_data(known: BrokerRegistration | None, broker: BrokerRegistrationRequest) -> RetainedData:
    """Returns which committed records a registering broker still has. Returns NONE for an unregistered broker, because
    its last incarnation is unknown."""
    if known is None:
        return RetainedData.NONE
    if is_clean_restart(known, broker):
        return RetainedData.ALL
    return RetainedData.SYNCED if is_same_disk(known, broker) else RetainedData.NONE


# Registration


def register_broker(
    state: ControllerState, broker: BrokerRegistrationRequest, heartbeat_manager: BrokerHeartbeatManager, now_ms: int
) -> CoordinatorResult[Record, int | None]:
    """Registers a broker as fenced. The response is the broker epoch, which is the offset of the registration record.
    The response is None, and the caller submits the decision again, if the decision has too many records, or if a
    broker that joins the cluster has to leave ISRs or ELRs first.

    An incarnation that registers again keeps its epoch. This happens if the first response was lost or the endpoints
    changed.
    """
    _check_registration(state.image, broker)
    known = state.image.brokers.get(broker.broker_id)
    if known is not None and known.incarnation_id == broker.incarnation_id:
        return CoordinatorResult([_registration_record(broker, known.epoch, known)], known.epoch)
    if known is not None:
        _check_no_live_session(known, broker, heartbeat_manager, now_ms)
    records = remove_broker_from_isrs(state, broker.broker_id, retained_data(known, broker))
    if known is None:
        # The broker joins the cluster. Its replicas are added in the decision that registers it, so that a new
        # controller does not have to find out whether they are missing or were drained.
        added = add_replicas(state, state.controller_led_topics, [broker.broker_id])
        if records and added:
            # Remove the broker from ISRs and ELRs first. A decision must not change a partition twice: both records are
            # built from the same state, so the second one could put the broker back into the ELR.
            return CoordinatorResult(_limit_batch(records), None)
        records += added
    if len(records) >= RECORDS_PER_DECISION_MAX:
        # Fence the previous incarnation, so that it is not elected before the new incarnation is registered.
        fence = [] if known is None or known.fenced else [_registration_change(known, fenced=FENCED)]
        return CoordinatorResult(_limit_batch([*fence, *records]), None)
    # The registration record comes first, because its offset is the broker epoch.
    return CoordinatorResult([_registration_record(broker, state.next_offset, None), *records], state.next_offset)


def partitions_without_isr(image: MetadataImage, records: Iterable[Record]) -> list[str]:
    """Returns the names of the partitions whose ISR these records make empty."""
    return [
        f"{image.topic_names[record.topic_id]}-{record.partition_id}"
        for record in records
        if isinstance(record, PartitionChangeRecord) and record.isr == ()
    ]


def _check_registration(image: MetadataImage, broker: BrokerRegistrationRequest) -> None:
    if broker.cluster_id and image.cluster_id and broker.cluster_id != image.cluster_id:
        raise InconsistentClusterIdError(
            f"Node {broker.broker_id} belongs to cluster {broker.cluster_id}, but this is cluster {image.cluster_id}. "
            "Start it with the nodes of its own cluster, or with an empty data.dir to join this one."
        )
    if broker.broker_id < 0:
        raise InvalidRegistrationError(f"The broker id must not be negative: {broker.broker_id}.")
    if not broker.endpoints:
        raise InvalidRegistrationError(f"Broker {broker.broker_id} registers without an endpoint.")
    for at in broker.endpoints:
        if not at.host or not 0 < at.port <= PORT_MAX:
            raise InvalidRegistrationError(
                f"Broker {broker.broker_id} registers an endpoint that cannot be connected to: '{at.host}:{at.port}'."
            )
    supported = SUPPORTED_FEATURES if broker.features is None else broker.features
    for name, level in image.features.items():
        low, high = supported.get(name, (0, 0))
        if not low <= level <= high:
            raise UnsupportedVersionError(
                f"The cluster uses level {level} of {name}; node {broker.broker_id} supports {low} to {high}. "
                "Start it with a version of Moldau that supports this level."
            )


def _check_no_live_session(
    known: BrokerRegistration, broker: BrokerRegistrationRequest, heartbeat_manager: BrokerHeartbeatManager, now_ms: int
) -> None:
    """Raises DuplicateBrokerRegistrationError if the registered incarnation has a valid session, so that two processes
    cannot run with one broker id.

    If that incarnation has sent no heartbeat to this controller (as after a restart of the whole cluster), `broker` is
    accepted if it has the same endpoints, because it has then replaced that incarnation.
    """
    session = heartbeat_manager.session_of(known.broker_id, known.epoch)
    if session is None or now_ms >= session.deadline_ms or known.in_controlled_shutdown:
        return
    if session.heartbeat_count > 0 or known.endpoints != tuple(broker.endpoints):
        at = ", ".join(f"{endpoint.host}:{endpoint.port}" for endpoint in known.endpoints)
        raise DuplicateBrokerRegistrationError(
            f"Another process is registered as node {known.broker_id} ({at}) and has a valid session. Give this one "
            "another node.id, or stop the other one; if it has stopped already, its session expires soon."
        )


def _registration_record(
    broker: BrokerRegistrationRequest, epoch: int, same: BrokerRegistration | None
) -> RegisterBrokerRecord:
    features = SUPPORTED_FEATURES if broker.features is None else broker.features
    return RegisterBrokerRecord(
        broker_id=broker.broker_id,
        incarnation_id=broker.incarnation_id,
        broker_epoch=epoch,
        end_points=tuple(
            BrokerEndpoint(name=at.listener, host=at.host, port=at.port, security_protocol=at.security_protocol)
            for at in broker.endpoints
        ),
        features=tuple(
            BrokerFeature(name=name, min_supported_version=low, max_supported_version=high)
            for name, (low, high) in features.items()
        ),
        rack=broker.rack,
        fenced=True if same is None else same.fenced,
        in_controlled_shutdown=False if same is None else same.in_controlled_shutdown,
    )


def unregister_broker(state: ControllerState, broker_id: int) -> CoordinatorResult[Record, bool]:
    """Unregisters a broker. If the decision has too many records, the response is False, and the caller submits the
    decision again.

    Raises InvalidRequestError if only this broker has all committed records of a partition. A live broker registers
    again, but the controller then assumes that the broker has lost all records.
    """
    broker = state.image.brokers.get(broker_id)
    if broker is None:
        raise BrokerIdNotRegisteredError(f"Broker {broker_id} is not registered.")
    _check_not_last_in_isr(state, broker_id)
    records = remove_broker_from_isrs(state, broker_id)
    if len(records) >= RECORDS_PER_DECISION_MAX:
        fence = [] if broker.fenced else [_registration_change(broker, fenced=FENCED)]
        return CoordinatorResult(_limit_batch([*fence, *records]), False)
    return CoordinatorResult([*records, UnregisterBrokerRecord(broker_id=broker_id, broker_epoch=broker.epoch)], True)


def _check_not_last_in_isr(state: ControllerState, broker_id: int) -> None:
    last: list[str] = []
    for name in state.index.partitions_on(broker_id):
        partition = state.image.topics[name.topic].partitions[name.partition]
        # Ignore unregistered ELR members. If they register, the controller assumes that they have lost all records.
        others = [each for each in partition.elr if each in state.image.brokers]
        if partition.isr == (broker_id,) and not others:
            last.append(f"{name.topic}-{name.partition}")
    if last:
        more = f" and {len(last) - PARTITIONS_NAMED_MAX} more" if len(last) > PARTITIONS_NAMED_MAX else ""
        raise InvalidRequestError(
            f"Only broker {broker_id} is known to have all records of {', '.join(last[:PARTITIONS_NAMED_MAX])}{more}. "
            "Reassign them to other brokers while it is alive; if it cannot be restarted, run an unclean election "
            "(moldau cluster elect-leaders --unclean), or delete topics that have no other replica."
        )


# Heartbeats and fencing


def process_broker_heartbeat(
    state: ControllerState, beat: BrokerHeartbeat, heartbeat_manager: BrokerHeartbeatManager
) -> CoordinatorResult[Record, HeartbeatOutcome]:
    """Fences, unfences or shuts down a broker according to its heartbeat.

    A fenced broker is unfenced when it has applied the decision that fenced it, because it then knows which partitions
    it no longer leads.
    """
    broker = check_broker_epoch(state.image, beat.broker_id, beat.broker_epoch)
    is_caught_up = beat.metadata_offset >= state.last_fenced_offset(broker.broker_id)
    records: list[Record] = []
    fenced, stop, shutdown_offset = broker.fenced, False, None
    if beat.want_shut_down:
        records, stop, shutdown_offset = _controlled_shutdown(state, broker, heartbeat_manager)
        fenced = fenced or stop
    elif beat.want_fence:
        if not broker.fenced:
            records = [_registration_change(broker, fenced=FENCED)]
            records += remove_broker_from_isrs(state, broker.broker_id)
            fenced = True
    elif broker.fenced and is_caught_up:
        records = [_registration_change(broker, fenced=UNFENCED)]
        records += elect_leaderless_partitions(state, broker.broker_id)
        fenced = False
    outcome = HeartbeatOutcome(
        BrokerHeartbeatReply(is_caught_up, fenced, stop), len(records) < RECORDS_PER_DECISION_MAX, shutdown_offset
    )
    # If the heartbeat causes no records, the response waits only until the last change of this broker's registration is
    # committed. Waiting for other records would delay the extension of the broker's lease.
    offset = state.last_change_offset(broker.broker_id)
    return CoordinatorResult(_limit_batch(records), outcome, min_committed_offset=offset)


def _controlled_shutdown(
    state: ControllerState, broker: BrokerRegistration, heartbeat_manager: BrokerHeartbeatManager
) -> tuple[list[Record], bool, int | None]:
    """Takes the next step of a controlled shutdown. Returns the records, whether the broker may stop, and the
    controlled shutdown offset.

    First, other replicas become the leaders of the broker's partitions. When this broker and all active brokers have
    applied these changes, the broker is fenced and may stop. Then it can name the new leaders to its clients.
    """
    if broker.fenced:
        return [], True, None
    records: list[Record] = []
    if not broker.in_controlled_shutdown:
        records.append(_registration_change(broker, in_controlled_shutdown=1))
    records += remove_broker_from_isrs(state, broker.broker_id)
    session = heartbeat_manager.session_of(broker.broker_id, broker.epoch)
    if records or session is None:
        return records, False, None
    # The session has no offset yet at the first heartbeat after the broker's last partitions got other leaders. The
    # current metadata offset includes those changes.
    offset = session.controlled_shutdown_offset
    offset = state.image.offset if offset is None else offset
    active = [each.broker_id for each in state.image.brokers.values() if each.is_active]
    lowest = heartbeat_manager.lowest_metadata_offset([broker.broker_id, *active])
    if lowest is not None and lowest < offset:
        return [], False, offset
    return [_registration_change(broker, fenced=FENCED)], True, offset


def fence_broker(state: ControllerState, broker_id: int, broker_epoch: int) -> CoordinatorResult[Record, bool]:
    """Fences the broker and removes it from all ISRs. Does nothing if the broker is no longer registered with this
    epoch. The response is True if all changes fit into the decision."""
    broker = state.image.brokers.get(broker_id)
    if broker is None or broker.epoch != broker_epoch:
        return CoordinatorResult([], True)
    records: list[Record] = [] if broker.fenced else [_registration_change(broker, fenced=FENCED)]
    records += remove_broker_from_isrs(state, broker_id)
    return CoordinatorResult(_limit_batch(records), len(records) <= RECORDS_PER_DECISION_MAX)


def reconcile_broker(state: ControllerState, broker_id: int) -> CoordinatorResult[Record, bool]:
    """Makes the partition changes that follow from the broker's state. Such changes are missing if a previous
    controller stopped early or a decision had too many records. The response is True if all changes fit into the
    decision."""
    broker = state.image.brokers.get(broker_id)
    if broker is None:
        return CoordinatorResult([], True)
    if broker.is_active:
        records = elect_leaderless_partitions(state, broker_id)
    else:
        records = remove_broker_from_isrs(state, broker_id)
    return CoordinatorResult(_limit_batch(records), len(records) <= RECORDS_PER_DECISION_MAX)


def _registration_change(
    broker: BrokerRegistration, *, fenced: int = 0, in_controlled_shutdown: int = 0
) -> BrokerRegistrationChangeRecord:
    return BrokerRegistrationChangeRecord(
        broker_id=broker.broker_id,
        broker_epoch=broker.epoch,
        fenced=fenced,
        in_controlled_shutdown=in_controlled_shutdown,
    )


def _limit_batch(records: list[Record]) -> list[Record]:
    """Limits the records to one decision. The record that changes the broker comes first, so that `reconcile_broker`
    can find the omitted partition changes later."""
    return records[:RECORDS_PER_DECISION_MAX]


# Producer ids


def allocate_producer_ids(
    state: ControllerState, broker_id: int, broker_epoch: int
) -> CoordinatorResult[Record, range]:
    """Allocates the next block of producer ids to the broker."""
    check_broker_epoch(state.image, broker_id, broker_epoch)
    first = state.image.next_producer_id
    block = range(first, first + PRODUCER_ID_BLOCK_SIZE)
    if block.stop > PRODUCER_ID_LIMIT:
        raise InvalidRequestError("All producer ids are allocated.")
    record = ProducerIdsRecord(broker_id=broker_id, broker_epoch=broker_epoch, next_producer_id=block.stop)
    return CoordinatorResult([record], block)
