"""Decisions on brokers and what the cluster grants them: registration, heartbeats, fencing, producer ids, features.

A change of a broker and the changes of its partitions are one decision. Where there are too many for one, the decision
says so and is made again: each of them leaves a cluster that is in order, only not finished.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from moldau.controller.elections import elect_leaderless_partitions, remove_broker_from_isrs
from moldau.controller.heartbeat_manager import BrokerHeartbeatManager
from moldau.controller.partition_change_builder import RetainedData
from moldau.controller.requests import BrokerHeartbeat, BrokerHeartbeatReply, BrokerRegistrationRequest
from moldau.controller.state import RECORDS_PER_DECISION_MAX, ControllerState, check_batch_size
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
    FeatureLevelRecord,
    PartitionChangeRecord,
    ProducerIdsRecord,
    Record,
    RegisterBrokerRecord,
    UnregisterBrokerRecord,
)
from moldau.settings.effective import EffectiveSettings

METADATA_VERSION = "metadata.version"

SUPPORTED_FEATURES: Mapping[str, tuple[int, int]] = MappingProxyType({METADATA_VERSION: (30, 30)})
"""The lowest and highest level of each feature. Level 30 of the metadata is Kafka's 4.3-IV0: it says in which
versions the metadata records are written."""

PRODUCER_ID_BLOCK_SIZE = 1000
PRODUCER_ID_LIMIT = 2**63

FENCED, UNFENCED = 1, -1

PORT_MAX = 65535
PARTITIONS_NAMED_MAX = 3
"""So many partitions a refusal names."""


def check_broker_epoch(image: MetadataImage, broker_id: int, broker_epoch: int) -> BrokerRegistration:
    """The broker, if this is the life of it that is registered: what a former one says has no meaning any more."""
    broker = image.brokers.get(broker_id)
    if broker is None:
        raise BrokerIdNotRegisteredError(f"Broker {broker_id} is not registered.")
    if broker.epoch != broker_epoch:
        raise StaleBrokerEpochError(
            f"Broker {broker_id} is registered with epoch {broker.epoch}, not {broker_epoch}."
        )
    return broker


def is_clean_restart(known: BrokerRegistration, broker: BrokerRegistrationRequest) -> bool:
    """Whether the broker closed its logs at the end of the very life that is registered: then they hold all that was
    said of them. Otherwise what had not been synced may be gone."""
    return broker.previous_epoch == known.epoch


def is_same_disk(known: BrokerRegistration, broker: BrokerRegistrationRequest) -> bool:
    """Whether the broker's disk is the one of the life that is registered. Otherwise it is empty, or holds an older
    state, and says nothing of what was committed in that life."""
    return known.incarnation_id in broker.previous_incarnations


def retained_data(known: BrokerRegistration | None, broker: BrokerRegistrationRequest) -> RetainedData:
    """What a broker that registers anew still has. Of one that was unregistered nobody knows which life was its
    last."""
    if known is None:
        return RetainedData.NONE
    if is_clean_restart(known, broker):
        return RetainedData.ALL
    return RetainedData.SYNCED if is_same_disk(known, broker) else RetainedData.NONE


# Registration


def register_broker(
    state: ControllerState,
    settings: EffectiveSettings,
    broker: BrokerRegistrationRequest,
    heartbeat_manager: BrokerHeartbeatManager,
    now_ms: int,
) -> CoordinatorResult[Record, int | None]:
    """Registers a broker, fenced until it has caught up. The reply is its epoch, the offset of its registration in the
    log; None: there was too much to change before it, and it has to be decided again.

    The same incarnation asking again (its first answer was lost, or its endpoints changed) keeps its epoch.
    """
    _check_registration(state.image, broker)
    known = state.image.brokers.get(broker.broker_id)
    if known is not None and known.incarnation_id == broker.incarnation_id:
        return CoordinatorResult([_registration_record(broker, known.epoch, known)], known.epoch)
    if known is not None:
        _check_no_live_session(known, broker, heartbeat_manager, now_ms)
    records = remove_broker_from_isrs(state, settings, broker.broker_id, retained_data(known, broker))
    if len(records) >= RECORDS_PER_DECISION_MAX:
        # The former life must not be elected again while this goes on.
        fence = [] if known is None or known.fenced else [_registration_change(known, fenced=FENCED)]
        return CoordinatorResult(_limit_batch([*fence, *records]), None)
    # The registration comes first, so that its offset is the epoch.
    return CoordinatorResult(
        [_registration_record(broker, state.next_offset, None), *records], state.next_offset
    )


def partitions_without_isr(image: MetadataImage, records: Iterable[Record]) -> list[str]:
    """The partitions of which, by these records, nobody is known to have everything any more."""
    return [
        f"{image.topic_names[record.topic_id]}-{record.partition_id}"
        for record in records
        if isinstance(record, PartitionChangeRecord) and record.isr == ()
    ]


def _check_registration(image: MetadataImage, broker: BrokerRegistrationRequest) -> None:
    if broker.cluster_id and image.cluster_id and broker.cluster_id != image.cluster_id:
        raise InconsistentClusterIdError(
            f"Node {broker.broker_id} belongs to cluster {broker.cluster_id}, and this is cluster {image.cluster_id}. "
            "Start it with the nodes of its own cluster, or with an empty data.dir to join this one."
        )
    if broker.broker_id < 0:
        raise InvalidRegistrationError(f"A broker's id cannot be negative: {broker.broker_id}.")
    if not broker.endpoints:
        raise InvalidRegistrationError(f"Broker {broker.broker_id} registers without an endpoint.")
    for at in broker.endpoints:
        if not at.host or not 0 < at.port <= PORT_MAX:
            raise InvalidRegistrationError(
                f"Broker {broker.broker_id} registers an endpoint where nobody can reach it: '{at.host}:{at.port}'."
            )
    supported = SUPPORTED_FEATURES if broker.features is None else broker.features
    for name, level in image.features.items():
        low, high = supported.get(name, (0, 0))
        if not low <= level <= high:
            raise UnsupportedVersionError(
                f"The cluster works at level {level} of {name}; node {broker.broker_id} supports {low} to {high}. "
                "Start it with a version of Moldau that supports this level."
            )


def _check_no_live_session(
    known: BrokerRegistration,
    broker: BrokerRegistrationRequest,
    heartbeat_manager: BrokerHeartbeatManager,
    now_ms: int,
) -> None:
    """A process at the address of one that was never heard of, as after a restart of the whole cluster, can only have
    taken its place."""
    session = heartbeat_manager.of(known.broker_id, known.epoch)
    if session is None or now_ms >= session.deadline_ms or known.in_controlled_shutdown:
        return
    if session.heartbeat_count > 0 or known.endpoints != tuple(broker.endpoints):
        at = ", ".join(f"{endpoint.host}:{endpoint.port}" for endpoint in known.endpoints)
        raise DuplicateBrokerRegistrationError(
            f"Another process is registered as node {known.broker_id} ({at}) and was heard of just now. Give this one "
            "another node.id, or stop the other one; if that is how it ended, its session runs out by itself."
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
            BrokerEndpoint(
                name=at.listener, host=at.host, port=at.port, security_protocol=at.security_protocol
            )
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


def unregister_broker(
    state: ControllerState, settings: EffectiveSettings, broker_id: int
) -> CoordinatorResult[Record, bool]:
    """The broker is not waited for any more. False: it has to be decided again. One that is alive all the same
    registers anew, as one that may have lost everything: so it must not be the last to have anything."""
    broker = state.image.brokers.get(broker_id)
    if broker is None:
        raise BrokerIdNotRegisteredError(f"Broker {broker_id} is not registered.")
    _check_not_last_in_isr(state, broker_id)
    records = remove_broker_from_isrs(state, settings, broker_id)
    if len(records) >= RECORDS_PER_DECISION_MAX:
        fence = [] if broker.fenced else [_registration_change(broker, fenced=FENCED)]
        return CoordinatorResult(_limit_batch([*fence, *records]), False)
    return CoordinatorResult(
        [*records, UnregisterBrokerRecord(broker_id=broker_id, broker_epoch=broker.epoch)], True
    )


def _check_not_last_in_isr(state: ControllerState, broker_id: int) -> None:
    last = []
    for name in state.index.partitions_on(broker_id):
        partition = state.image.topics[name.topic].partitions[name.partition]
        # Who was unregistered comes back as one that may have lost everything.
        others = [each for each in partition.elr if each in state.image.brokers]
        if partition.isr == (broker_id,) and not others:
            last.append(f"{name.topic}-{name.partition}")
    if last:
        more = f" and {len(last) - PARTITIONS_NAMED_MAX} more" if len(last) > PARTITIONS_NAMED_MAX else ""
        raise InvalidRequestError(
            f"Only broker {broker_id} is known to have all records of "
            f"{', '.join(last[:PARTITIONS_NAMED_MAX])}{more}. Move them "
            "to other brokers while it is alive; if it is gone for good, elect other replicas uncleanly (moldau "
            "cluster elect-leaders --unclean), or delete the topics that have none."
        )


# Alive or not


def process_broker_heartbeat(
    state: ControllerState,
    settings: EffectiveSettings,
    beat: BrokerHeartbeat,
    heartbeat_manager: BrokerHeartbeatManager,
) -> CoordinatorResult[Record, BrokerHeartbeatReply]:
    """What becomes of a broker by what it says of itself.

    One that is fenced is taken in when it has caught up with that: it then knows all that was decided before, and
    first of all what it does not lead any more.
    """
    broker = check_broker_epoch(state.image, beat.broker_id, beat.broker_epoch)
    is_caught_up = beat.metadata_offset >= state.last_fenced_offset(broker.broker_id)
    records: list[Record] = []
    fenced, stop = broker.fenced, False
    if beat.want_shut_down:
        records, fenced, stop = _controlled_shutdown(state, settings, broker, heartbeat_manager)
    elif beat.want_fence:
        if not broker.fenced:
            records = [_registration_change(broker, fenced=FENCED)]
            records += remove_broker_from_isrs(state, settings, broker.broker_id)
            fenced = True
    elif broker.fenced and is_caught_up:
        records = [_registration_change(broker, fenced=UNFENCED)]
        records += elect_leaderless_partitions(state, settings, broker.broker_id)
        fenced = False
    reply = BrokerHeartbeatReply(is_caught_up, fenced, stop)
    # It tells of this broker alone, and does not wait for what else was decided: leases run on it.
    return CoordinatorResult(
        _limit_batch(records), reply, min_committed_offset=state.last_change_offset(broker.broker_id)
    )


def _controlled_shutdown(
    state: ControllerState,
    settings: EffectiveSettings,
    broker: BrokerRegistration,
    heartbeat_manager: BrokerHeartbeatManager,
) -> tuple[list[Record], bool, bool]:
    """A controlled shutdown, step by step: its partitions are handed over, the other brokers learn of that, and then
    it is fenced and may stop."""
    if broker.fenced:
        return [], True, True
    records: list[Record] = []
    if not broker.in_controlled_shutdown:
        records.append(_registration_change(broker, in_controlled_shutdown=1))
    records += remove_broker_from_isrs(state, settings, broker.broker_id)
    session = heartbeat_manager.of(broker.broker_id, broker.epoch)
    if session is None:
        return records, False, False
    if records:
        session.controlled_shutdown_offset = None
        return records, False, False
    if session.controlled_shutdown_offset is None:
        # Whoever asked for the handover may not have heard that it was decided.
        session.controlled_shutdown_offset = state.image.offset
    others = [each.broker_id for each in state.image.brokers.values() if each.is_active]
    behind = heartbeat_manager.lowest_metadata_offset(others)
    if behind is not None and behind < session.controlled_shutdown_offset:
        return [], False, False
    return [_registration_change(broker, fenced=FENCED)], True, True


def fence_broker(
    state: ControllerState, settings: EffectiveSettings, broker_id: int, broker_epoch: int
) -> CoordinatorResult[Record, bool]:
    """Takes the broker out of everything it was in. True when nothing is left to be done; a broker that has begun
    another life meanwhile, or is registered no more, is left alone."""
    broker = state.image.brokers.get(broker_id)
    if broker is None or broker.epoch != broker_epoch:
        return CoordinatorResult([], True)
    records: list[Record] = [] if broker.fenced else [_registration_change(broker, fenced=FENCED)]
    records += remove_broker_from_isrs(state, settings, broker_id)
    return CoordinatorResult(_limit_batch(records), len(records) <= RECORDS_PER_DECISION_MAX)


def reconcile_broker(
    state: ControllerState, settings: EffectiveSettings, broker_id: int
) -> CoordinatorResult[Record, bool]:
    """Does what a controller before this one, or a decision that was too large, has left to be done for a broker: one
    that is not active leads nothing, one that is leads what waits for it. True when nothing is left."""
    broker = state.image.brokers.get(broker_id)
    if broker is None:
        return CoordinatorResult([], True)
    if broker.is_active:
        records = elect_leaderless_partitions(state, settings, broker_id)
    else:
        records = remove_broker_from_isrs(state, settings, broker_id)
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
    """As many as one decision may have. The change of the broker is the first of them: what is left out is found
    again by looking at the partitions of a broker that is no longer what they take it for."""
    return records[:RECORDS_PER_DECISION_MAX]


# What the cluster grants


def allocate_producer_ids(
    state: ControllerState, broker_id: int, broker_epoch: int
) -> CoordinatorResult[Record, range]:
    """The next block of ids, for this broker alone and for ever."""
    check_broker_epoch(state.image, broker_id, broker_epoch)
    first = state.image.next_producer_id
    block = range(first, first + PRODUCER_ID_BLOCK_SIZE)
    if block.stop > PRODUCER_ID_LIMIT:
        raise InvalidRequestError("All producer ids have been given away.")
    record = ProducerIdsRecord(broker_id=broker_id, broker_epoch=broker_epoch, next_producer_id=block.stop)
    return CoordinatorResult([record], block)


def update_features(state: ControllerState, levels: Mapping[str, int]) -> CoordinatorResult[Record, None]:
    """Sets the levels that the whole cluster works at."""
    for name, level in levels.items():
        low, high = SUPPORTED_FEATURES.get(name, (0, 0))
        if not low <= level <= high or level == 0:
            raise InvalidRequestError(f"Feature {name} is not supported at level {level}.")
    return CoordinatorResult(
        check_batch_size(
            [
                FeatureLevelRecord(name=name, feature_level=level)
                for name, level in levels.items()
                if state.image.features.get(name) != level
            ]
        ),
        None,
    )
