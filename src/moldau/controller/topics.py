"""Decisions on topics: create, delete, add partitions. Each topic of a request succeeds or fails independently of the
others."""

from collections import Counter
from collections.abc import Mapping, Sequence
from uuid import UUID

from moldau.controller.ids import Randomness, random_uuid
from moldau.controller.placement import (
    ReplicaLoad,
    Replicas,
    initial_isr,
    place_on_all_brokers,
    place_replicas,
    validate_controller_led_assignment,
    validate_manual_assignment,
)
from moldau.controller.requests import CreateTopicResult, NewTopic, PartitionIncrease, TopicRef, TopicResult
from moldau.controller.state import ControllerState, check_batch_size
from moldau.controller.topic_names import METADATA_TOPIC, collision_key, is_internal, validate_topic_name
from moldau.coordinator import CoordinatorResult
from moldau.errors import (
    InvalidConfigError,
    InvalidPartitionsError,
    InvalidReplicaAssignmentError,
    InvalidReplicationFactorError,
    InvalidRequestError,
    InvalidTopicError,
    MoldauError,
    PolicyViolationError,
    TopicDeletionDisabledError,
    TopicExistsError,
    UnknownTopicIdError,
    UnknownTopicOrPartitionError,
)
from moldau.metadata.image import TOPIC_RESOURCE, MetadataImage, TopicImage
from moldau.metadata.records import ConfigRecord, PartitionRecord, Record, RemoveTopicRecord, TopicRecord
from moldau.settings.effective import EffectiveSettings

PARTITIONS_PER_REQUEST_MAX = 10_000
PARTITIONS_PER_TOPIC_MAX = 10_000

_NO_ID = UUID(int=0)


def create_topics(
    state: ControllerState, topics: Sequence[NewTopic], random: Randomness, *, validate_only: bool
) -> CoordinatorResult[Record, list[CreateTopicResult]]:
    """Creates topics. The response has one result per topic name."""
    if sum(_requested_partition_count(topic, state.settings) for topic in topics) > PARTITIONS_PER_REQUEST_MAX:
        raise PolicyViolationError("Excessively large number of partitions per request.")
    times_named = Counter(topic.name for topic in topics)
    records: list[Record] = []
    results: dict[str, CreateTopicResult] = {}
    created_keys: dict[str, str] = {}
    load = _initial_load(state)
    for topic in topics:
        if topic.name in results:
            continue
        try:
            if times_named[topic.name] > 1:
                raise InvalidRequestError("Duplicate topic name.")
            _check_name(state, topic.name, created_keys)
            created = _create_topic(state, topic, random, load)
        except MoldauError as error:
            results[topic.name] = CreateTopicResult(topic.name, error=error)
        else:
            records += created
            results[topic.name] = _create_result(topic.name, created)
            key = collision_key(topic.name)
            if key is not None:
                created_keys[key] = topic.name
    return CoordinatorResult([] if validate_only else check_batch_size(records), list(results.values()))


def _requested_partition_count(topic: NewTopic, settings: EffectiveSettings) -> int:
    if topic.partitions == -1 and not topic.assignment:
        return settings.broker.num_partitions
    return max(topic.partitions, len(topic.assignment))


def _check_name(state: ControllerState, name: str, created_keys: Mapping[str, str]) -> None:
    """Raises an error if no topic with this name can be created. `created_keys` maps collision keys to names that were
    created earlier in the same request."""
    if name == METADATA_TOPIC:
        raise InvalidRequestError(f"Creation of internal topic {METADATA_TOPIC} is prohibited.")
    if name in state.image.topics:
        raise TopicExistsError(f"Topic '{name}' already exists.")
    validate_topic_name(name)
    key = collision_key(name)
    colliding = None if key is None else state.colliding_topic(key) or created_keys.get(key)
    if colliding is not None:
        raise InvalidTopicError(f"Topic '{name}' collides with existing topic: {colliding}")


def _initial_load(state: ControllerState) -> ReplicaLoad | None:
    if state.settings.broker.placement_policy == "load":
        return ReplicaLoad.from_cluster(state.index, state.image.brokers)
    return None


def _create_topic(
    state: ControllerState, topic: NewTopic, random: Randomness, load: ReplicaLoad | None
) -> list[Record]:
    image = state.image
    nulls = [name for name, value in topic.configs.items() if value is None]
    if nulls:
        raise InvalidConfigError(f"Null value not supported for topic configs: {','.join(nulls)}")
    is_controller_led = state.settings.validate_topic_configs(topic.configs).leader_follows_controller
    if topic.assignment:
        replicas = _manual_replicas(image, topic)
        if is_controller_led:
            validate_controller_led_assignment(replicas, image.brokers)
    else:
        replicas = _placed_replicas(state, topic, random, load, is_controller_led=is_controller_led)
    if len(replicas) > PARTITIONS_PER_TOPIC_MAX:
        raise InvalidPartitionsError(f"A topic cannot have more than {PARTITIONS_PER_TOPIC_MAX} partitions.")
    topic_id = random_uuid(random, taken=image.topic_names)
    records: list[Record] = [TopicRecord(name=topic.name, topic_id=topic_id)]
    records += [
        ConfigRecord(resource_type=TOPIC_RESOURCE, resource_name=topic.name, name=name, value=value)
        for name, value in topic.configs.items()
    ]
    records += [_partition_record(image, topic_id, index, at) for index, at in enumerate(replicas)]
    return records


def _manual_replicas(image: MetadataImage, topic: NewTopic) -> list[Replicas]:
    prefix = "A manual partition assignment was specified, but"
    if topic.replication_factor != -1:
        raise InvalidRequestError(f"{prefix} replication factor was not set to -1.")
    if topic.partitions != -1:
        raise InvalidRequestError(f"{prefix} numPartitions was not set to -1.")
    replication_factor = None
    for replicas in topic.assignment.values():
        validate_manual_assignment(replicas, image.brokers, replication_factor)
        replication_factor = len(replicas)
    if sorted(topic.assignment) != list(range(len(topic.assignment))):
        raise InvalidReplicaAssignmentError("partitions should be a consecutive 0-based integer sequence")
    return [tuple(topic.assignment[index]) for index in range(len(topic.assignment))]


def _placed_replicas(
    state: ControllerState, topic: NewTopic, random: Randomness, load: ReplicaLoad | None, *, is_controller_led: bool
) -> list[Replicas]:
    if topic.replication_factor == 0 or topic.replication_factor < -1:
        raise InvalidReplicationFactorError("Replication factor must be larger than 0, or -1 to use the default value.")
    if topic.partitions == 0 or topic.partitions < -1:
        raise InvalidPartitionsError("Number of partitions was set to an invalid non-positive value.")
    defaults = state.settings.broker
    partitions = defaults.num_partitions if topic.partitions == -1 else topic.partitions
    if is_controller_led:
        return place_on_all_brokers(state.image.brokers, partitions, state.image.controller_id)
    replication_factor = topic.replication_factor
    if replication_factor == -1:
        replication_factor = defaults.default_replication_factor
    return place_replicas(state.image.brokers, partitions, replication_factor, random, load)


def _partition_record(image: MetadataImage, topic_id: UUID, index: int, replicas: Replicas) -> PartitionRecord:
    isr = initial_isr(replicas, image.brokers, index)
    return PartitionRecord(
        partition_id=index,
        topic_id=topic_id,
        replicas=replicas,
        isr=isr,
        leader=isr[0],
        leader_epoch=0,
        partition_epoch=0,
        directories=(None,) * len(replicas),
    )


def _create_result(name: str, created: Sequence[Record]) -> CreateTopicResult:
    partitions = [record for record in created if isinstance(record, PartitionRecord)]
    return CreateTopicResult(name, partitions[0].topic_id, len(partitions), len(partitions[0].replicas))


def delete_topics(state: ControllerState, topics: Sequence[TopicRef]) -> CoordinatorResult[Record, list[TopicResult]]:
    if not state.settings.broker.delete_topic_enable:
        raise TopicDeletionDisabledError("Topic deletion is disabled.")
    found: list[TopicImage | MoldauError] = [_look_up(state.image, ref) for ref in topics]
    times_named = Counter(topic.topic_id for topic in found if isinstance(topic, TopicImage))
    records: list[Record] = []
    results: list[TopicResult] = []
    for ref, topic in zip(topics, found, strict=True):
        if isinstance(topic, MoldauError):
            results.append(TopicResult(ref.name, ref.topic_id, topic))
        elif times_named[topic.topic_id] > 1:
            reason = "Duplicate topic name." if ref.name is not None else "Duplicate topic id."
            results.append(TopicResult(ref.name, ref.topic_id, InvalidRequestError(reason)))
        else:
            records.append(RemoveTopicRecord(topic_id=topic.topic_id))
            results.append(TopicResult(topic.name, topic.topic_id))
    return CoordinatorResult(check_batch_size(records), results)


def _look_up(image: MetadataImage, ref: TopicRef) -> TopicImage | MoldauError:
    by_id = ref.topic_id is not None and ref.topic_id != _NO_ID
    if ref.name is not None:
        if by_id:
            return InvalidRequestError("You may not specify both topic name and topic id.")
        return image.topics.get(ref.name) or UnknownTopicOrPartitionError(
            "This server does not host this topic-partition."
        )
    if ref.topic_id is None or not by_id:
        return InvalidRequestError("Neither topic name nor id were specified.")
    return image.topic_by_id(ref.topic_id) or UnknownTopicIdError("This server does not host this topic ID.")


def create_partitions(
    state: ControllerState, changes: Sequence[PartitionIncrease], random: Randomness, *, validate_only: bool
) -> CoordinatorResult[Record, list[TopicResult]]:
    if sum(_added_partition_count(state.image, change) for change in changes) > PARTITIONS_PER_REQUEST_MAX:
        raise PolicyViolationError("Excessively large number of partitions per request.")
    load = _initial_load(state)
    records: list[Record] = []
    results: list[TopicResult] = []
    times_named = Counter(change.topic for change in changes)
    for change in changes:
        try:
            if times_named[change.topic] > 1:
                raise InvalidRequestError("Duplicate topic name.")
            added = _add_partitions(state, change, random, load)
        except MoldauError as error:
            results.append(TopicResult(change.topic, error=error))
        else:
            records += added
            results.append(TopicResult(change.topic, state.image.topics[change.topic].topic_id))
    return CoordinatorResult([] if validate_only else records, results)


def _added_partition_count(image: MetadataImage, change: PartitionIncrease) -> int:
    """Returns how many partitions the change would add; 0 for a change that is rejected."""
    topic = image.topics.get(change.topic)
    if topic is None or change.count > PARTITIONS_PER_TOPIC_MAX:
        return 0
    return max(0, change.count - len(topic.partitions))


def _add_partitions(
    state: ControllerState, change: PartitionIncrease, random: Randomness, load: ReplicaLoad | None
) -> list[Record]:
    image = state.image
    topic = image.topics.get(change.topic)
    if topic is None:
        raise UnknownTopicOrPartitionError("This server does not host this topic-partition.")
    if is_internal(topic.name):
        raise InvalidPartitionsError(
            f"The partition count of {topic.name} cannot change: it maps groups to partitions."
        )
    have = len(topic.partitions)
    if change.count == have:
        raise InvalidPartitionsError(f"Topic already has {have} partition(s).")
    if change.count < have:
        raise InvalidPartitionsError(
            f"The topic {topic.name} currently has {have} partition(s); {change.count} would not be an increase."
        )
    if change.count > PARTITIONS_PER_TOPIC_MAX:
        raise InvalidPartitionsError(f"A topic cannot have more than {PARTITIONS_PER_TOPIC_MAX} partitions.")
    additional = change.count - have
    first = topic.partitions[0]
    staying = [replica for replica in first.replicas if replica not in first.removing_replicas]
    replication_factor = len(staying)
    is_controller_led = topic.name in state.controller_led_topics
    if change.assignments is None and is_controller_led:
        # Use the brokers of the topic instead of all brokers, because a drained broker must get no new replicas of it.
        brokers = {each: image.brokers[each] for each in staying if each in image.brokers}
        placed = place_on_all_brokers(brokers, additional, image.controller_id)
    elif change.assignments is None:
        load = ReplicaLoad.from_topic(topic.partitions) if load is None else load
        placed = place_replicas(image.brokers, additional, replication_factor, random, load)
    else:
        if len(change.assignments) != additional:
            raise InvalidReplicaAssignmentError(
                f"Attempted to add {additional} additional partition(s), but only "
                f"{len(change.assignments)} assignment(s) were specified."
            )
        for replicas in change.assignments:
            validate_manual_assignment(replicas, image.brokers, replication_factor)
        if is_controller_led:
            validate_controller_led_assignment(change.assignments, staying)
        placed = [tuple(replicas) for replicas in change.assignments]
    return [_partition_record(image, topic.topic_id, have + index, at) for index, at in enumerate(placed)]
