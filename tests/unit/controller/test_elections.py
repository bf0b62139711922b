"""Leader elections when brokers are fenced or unfenced and on request: ISR, ELR and unclean elections."""

import pytest

from moldau.controller import elections
from moldau.controller import state as controller_state
from moldau.controller.cluster_control import register_broker, retained_data, unregister_broker
from moldau.controller.configuration_control import MIN_ISR_CONFIG, alter_configs
from moldau.controller.elections import elect_unclean_leaders, remove_broker_from_isrs, unclean_election_candidates
from moldau.controller.heartbeat_manager import BrokerHeartbeatManager
from moldau.controller.ids import random_uuid
from moldau.controller.partition_change_builder import RetainedData
from moldau.controller.partition_index import PartitionName
from moldau.controller.requests import BrokerRegistrationRequest, ConfigChange, ElectionType, PartitionResult
from moldau.errors import (
    ElectionNotNeededError,
    EligibleLeadersNotAvailableError,
    InvalidReplicaAssignmentError,
    MoldauError,
    PreferredLeaderNotAvailableError,
    UnknownTopicOrPartitionError,
)
from moldau.metadata.image import BROKER_RESOURCE, NO_LEADER, TOPIC_RESOURCE, ConfigResource, Endpoint
from moldau.metadata.records import ConfigRecord
from moldau.raft.messages import EpochEndOffset
from moldau.settings.broker import BrokerSettings
from moldau.settings.effective import EffectiveSettings
from moldau.settings.topic import TopicSettings
from support.partition_decisions import ControlledCluster

ORDERS = PartitionName("orders", 0)


def cluster_of(*replicas: int, **configs: str) -> ControlledCluster:
    cluster = ControlledCluster(sorted({1, 2, 3, *replicas}))
    cluster.create("orders", replicas, **configs)
    return cluster


def shape(cluster: ControlledCluster) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    """Leader, ISR, ELR."""
    partition = cluster.partition()
    return partition.leader, partition.isr, partition.elr


def error_of(results: list[PartitionResult]) -> type[MoldauError] | None:
    [result] = results
    return None if result.error is None else type(result.error)


# Fencing and unfencing


def test_the_next_isr_member_leads_when_the_leader_is_fenced() -> None:
    cluster = cluster_of(2, 3, 1)
    cluster.fence(2)
    assert shape(cluster) == (3, (3, 1), ())
    assert cluster.partition().leader_epoch == 1


def test_a_fenced_follower_leaves_the_isr_and_the_leader_epoch_stays() -> None:
    cluster = cluster_of(2, 3, 1)
    cluster.fence(3)
    assert shape(cluster) == (2, (2, 1), ())
    assert (cluster.partition().leader_epoch, cluster.partition().partition_epoch) == (0, 1)


def test_the_last_isr_member_stays_and_leads_again_when_unfenced() -> None:
    cluster = cluster_of(1, 2)
    cluster.fence(2)
    cluster.fence(1)
    assert shape(cluster) == (NO_LEADER, (1,), ())
    cluster.unfence(2)
    assert shape(cluster) == (NO_LEADER, (1,), ()), "2 was left behind: it may lack what 1 has committed alone"
    cluster.unfence(1)
    assert shape(cluster) == (1, (1,), ())
    assert cluster.partition().leader_epoch == 2


def test_a_controlled_shutdown_moves_leadership() -> None:
    cluster = cluster_of(1, 2, 3)
    cluster.shut_down(1)
    assert shape(cluster) == (2, (2, 3), ())
    assert remove_broker_from_isrs(cluster.state, 1) == []


def test_a_broker_in_controlled_shutdown_is_not_elected_when_unfenced() -> None:
    cluster = cluster_of(1)
    cluster.shut_down(1)
    cluster.fence(1)
    cluster.unfence(1)
    assert shape(cluster) == (NO_LEADER, (1,), ())


# Eligible leader replicas


def test_a_replica_that_leaves_the_isr_below_min_isr_joins_the_elr() -> None:
    cluster = cluster_of(1, 2, 3, min_insync_replicas="2")
    cluster.fence(3)
    assert shape(cluster) == (1, (1, 2), ())
    cluster.fence(2)
    assert shape(cluster) == (1, (1,), (2,))
    cluster.fence(1)
    assert shape(cluster) == (NO_LEADER, (1,), (2,))


def test_an_elr_member_leads_when_it_is_unfenced_first() -> None:
    cluster = cluster_of(1, 2, 3, min_insync_replicas="2")
    for broker_id in (3, 2, 1):
        cluster.fence(broker_id)
    cluster.unfence(3)
    assert shape(cluster) == (NO_LEADER, (1,), (2,))
    cluster.unfence(2)
    assert shape(cluster) == (2, (2,), (1,))
    assert not cluster.partition().is_recovering


def test_the_elr_is_empty_once_the_isr_has_min_isr_members() -> None:
    cluster = cluster_of(1, 2, 3, min_insync_replicas="2")
    cluster.fence(3)
    cluster.fence(2)
    cluster.unfence(3)
    assert cluster.alter([1, 3]).error is None
    assert shape(cluster) == (1, (1, 3), ())


def test_min_isr_is_limited_to_the_replica_count() -> None:
    cluster = cluster_of(1, 2, min_insync_replicas="3")
    cluster.fence(2)
    assert shape(cluster) == (1, (1,), (2,))
    cluster = cluster_of(1, min_insync_replicas="3")
    assert shape(cluster) == (1, (1,), ())


def test_an_uncommitted_min_isr_is_used() -> None:
    cluster = cluster_of(1, 2)
    cluster.configure("orders", "min.insync.replicas", "2")
    assert cluster.settings.topic("orders").min_insync_replicas == 1, "the node's own settings are older"
    cluster.fence(2)
    assert shape(cluster) == (1, (1,), (2,))


@pytest.mark.parametrize("resource", [ConfigResource(TOPIC_RESOURCE, "orders"), ConfigResource(BROKER_RESOURCE, "")])
def test_lowering_min_isr_empties_the_elr(resource: ConfigResource) -> None:
    cluster = ControlledCluster()
    cluster.create("orders", (1, 2, 3))
    cluster.apply(
        [ConfigRecord(resource_type=resource.type, resource_name=resource.name, name=MIN_ISR_CONFIG, value="3")]
    )
    cluster.fence(3)
    cluster.fence(2)
    assert shape(cluster) == (1, (1,), (2, 3))
    for minimum, elr in (("2", (2, 3)), ("1", ())):
        changes = {resource: [ConfigChange(MIN_ISR_CONFIG, minimum)]}
        cluster.do(alter_configs(cluster.state, changes, incremental=True, validate_only=False))
        assert shape(cluster) == (1, (1,), elr)


def test_the_brokers_min_isr_is_the_default() -> None:
    settings = EffectiveSettings(BrokerSettings(node_id=1, topic_defaults=TopicSettings(min_insync_replicas=2)))
    cluster = ControlledCluster(settings=settings)
    cluster.create("orders", (1, 2))
    cluster.fence(2)
    assert shape(cluster) == (1, (1,), (2,))


# Unclean restarts


@pytest.mark.parametrize(
    ("kept", "write_caching", "elr"),
    [
        (RetainedData.ALL, "false", (2, 3)),
        (RetainedData.ALL, "true", (2, 3)),
        (RetainedData.SYNCED, "false", (2, 3)),
        (RetainedData.SYNCED, "true", (2,)),
        (RetainedData.NONE, "false", (2,)),
        (RetainedData.NONE, "true", (2,)),
    ],
)
def test_a_replica_that_may_have_lost_records_leaves_the_elr(
    kept: RetainedData, write_caching: str, elr: tuple[int, ...]
) -> None:
    cluster = cluster_of(1, 2, 3, min_insync_replicas="3", write_caching=write_caching)
    cluster.fence(3)
    cluster.fence(2)
    assert shape(cluster) == (1, (1,), (2, 3))
    cluster.register(3, kept)
    assert shape(cluster) == (1, (1,), elr)


def test_a_crashed_replica_stays_in_the_elr_if_it_is_the_last() -> None:
    cluster = cluster_of(1, 2, min_insync_replicas="2")
    cluster.register(2, RetainedData.SYNCED)
    assert shape(cluster) == (1, (1,), (2,))


@pytest.mark.parametrize("kept", RetainedData)
def test_a_leader_that_restarts_unnoticed_loses_its_leadership(kept: RetainedData) -> None:
    cluster = cluster_of(1, 2)
    cluster.register(1, kept)
    assert shape(cluster) == (2, (2,), ())


@pytest.mark.parametrize("write_caching", ["true", "false"])
def test_a_single_replica_that_crashed_leads_in_a_new_epoch(write_caching: str) -> None:
    cluster = cluster_of(1, write_caching=write_caching)
    cluster.register(1, RetainedData.SYNCED)
    assert shape(cluster) == (NO_LEADER, (1,), ())
    assert cluster.partition().last_known_elr == ((1,) if write_caching == "true" else ())
    cluster.unfence(1)
    assert shape(cluster) == (1, (1,), ())
    assert cluster.partition().leader_epoch == 2
    assert cluster.partition().last_known_elr == ()


def test_an_uncommitted_write_caching_setting_is_used() -> None:
    cluster = cluster_of(1, 2, min_insync_replicas="2")
    cluster.configure("orders", "write.caching", "true")
    cluster.register(2, RetainedData.SYNCED)
    assert shape(cluster) == (1, (1,), ())


def test_an_elr_member_is_preferred_to_a_replica_that_lost_its_disk() -> None:
    cluster = cluster_of(1, 2, min_insync_replicas="2")
    cluster.fence(2)
    cluster.fence(1)
    cluster.register(1, RetainedData.NONE)
    assert shape(cluster) == (NO_LEADER, (2,), ())
    cluster.unfence(1)
    assert shape(cluster) == (NO_LEADER, (2,), ())
    cluster.unfence(2)
    assert shape(cluster) == (2, (2,), ())


def test_the_last_isr_member_without_its_disk_leaves_an_empty_isr() -> None:
    cluster = left_behind()
    cluster.register(1, RetainedData.NONE)
    cluster.unfence(1)
    assert shape(cluster) == (NO_LEADER, (), ())
    assert cluster.partition().last_known_elr == (1,)
    assert error_of([cluster.reassign([2, 3])]) is InvalidReplicaAssignmentError
    # Only an unclean election helps, and it takes the longest log.
    for broker_id in (1, 2, 3):
        cluster.fence(broker_id)
        cluster.register(broker_id)
        cluster.unfence(broker_id)
        assert shape(cluster) == (NO_LEADER, (), ())
    assert unclean_election_candidates(cluster.state) == {}
    assert unclean_election_candidates(cluster.state, [ORDERS]) == {ORDERS: (1, 2, 3)}
    ends = {ORDERS: {1: EpochEndOffset(-1, 0), 2: EpochEndOffset(0, 5), 3: EpochEndOffset(0, 7)}}
    assert error_of(cluster.elect(ElectionType.UNCLEAN, ORDERS, log_ends=ends)) is None
    assert shape(cluster) == (3, (3,), ())
    assert cluster.partition().is_recovering
    assert cluster.partition().last_known_elr == ()


def test_after_all_brokers_were_killed_two_elect_a_leader_without_the_third() -> None:
    cluster = cluster_of(1, 2, 3, min_insync_replicas="2")
    for broker_id in (2, 3):
        cluster.register(broker_id, RetainedData.SYNCED)
        cluster.unfence(broker_id)
    cluster.fence(1)
    assert shape(cluster) == (3, (3,), (1,))
    cluster.alter([3, 2])
    assert shape(cluster) == (3, (3, 2), ())
    cluster.register(1, RetainedData.NONE)
    cluster.unfence(1)
    assert shape(cluster) == (3, (3, 2), ())


@pytest.mark.parametrize(
    ("previous", "lives", "kept"),
    [
        ("registered", "none", RetainedData.ALL),
        ("none", "registered", RetainedData.SYNCED),
        ("older", "registered", RetainedData.SYNCED),
        ("older", "older", RetainedData.NONE),
        ("none", "none", RetainedData.NONE),
    ],
)
def test_a_disk_is_recognized_by_its_previous_incarnations(previous: str, lives: str, kept: RetainedData) -> None:
    cluster = cluster_of(1)
    known = cluster.state.image.brokers[1]
    older, own = random_uuid(cluster.random), random_uuid(cluster.random)
    epochs = {"registered": known.epoch, "older": known.epoch - 1, "none": -1}
    seen = {"registered": (older, known.incarnation_id), "older": (older,), "none": ()}
    anew = BrokerRegistrationRequest(1, own, [], previous_epoch=epochs[previous], previous_incarnations=seen[lives])
    assert retained_data(known, anew) is kept
    assert retained_data(None, anew) is RetainedData.NONE


def test_every_unclean_election_sets_the_unclean_epoch() -> None:
    cluster = left_behind(unclean_leader_election_enable="true")
    assert cluster.partition().unclean_epoch == -1
    for broker_id in (2, 3):
        cluster.do(elect_unclean_leaders(cluster.state, {ORDERS: {broker_id: EpochEndOffset(0, 5)}}))
        assert cluster.partition().leader == broker_id
        assert cluster.partition().unclean_epoch == cluster.partition().leader_epoch
        # It is fenced before it reports its recovery.
        cluster.fence(broker_id)
    unclean_epoch = cluster.partition().unclean_epoch
    cluster.unfence(3)
    assert cluster.partition().leader == 3
    assert cluster.partition().unclean_epoch == unclean_epoch


def test_a_broker_that_was_unregistered_counts_as_having_lost_all_records() -> None:
    cluster = cluster_of(1, 2, min_insync_replicas="2")
    cluster.fence(2)
    cluster.do(unregister_broker(cluster.state, 2))
    assert shape(cluster) == (1, (1,), (2,))
    anew = BrokerRegistrationRequest(2, random_uuid(cluster.random), [Endpoint("PLAINTEXT", "host", 9092)])
    cluster.do(register_broker(cluster.state, anew, BrokerHeartbeatManager(3000), 0))
    assert shape(cluster) == (1, (1,), ())


# Preferred elections


def test_a_preferred_election_elects_the_preferred_replica() -> None:
    cluster = cluster_of(1, 2)
    cluster.fence(1)
    cluster.unfence(1)
    assert error_of(cluster.elect(ElectionType.PREFERRED, ORDERS)) is PreferredLeaderNotAvailableError
    cluster.alter([2, 1])
    assert error_of(cluster.elect(ElectionType.PREFERRED, ORDERS)) is None
    assert shape(cluster) == (1, (2, 1), ())
    assert error_of(cluster.elect(ElectionType.PREFERRED, ORDERS)) is ElectionNotNeededError


def test_electing_a_missing_partition_fails() -> None:
    cluster = cluster_of(1)
    for name in (("orders", 1), ("orders", -1), ("nothing", 0)):
        for election in ElectionType:
            assert error_of(cluster.elect(election, name)) is UnknownTopicOrPartitionError


def test_electing_all_partitions_returns_only_those_that_needed_it() -> None:
    cluster = ControlledCluster()
    cluster.create("orders", (1, 2), (2, 3), (3, 1))
    cluster.fence(1)
    cluster.unfence(1)
    cluster.alter([2, 1])
    cluster.fence(3)
    results = cluster.elect(ElectionType.PREFERRED)
    assert [(each.partition, each.error and type(each.error)) for each in results] == [
        (0, None),
        (2, PreferredLeaderNotAvailableError),
    ]


def test_a_partition_named_twice_is_elected_once() -> None:
    cluster = cluster_of(1, 2)
    cluster.fence(1)
    cluster.unfence(1)
    cluster.alter([2, 1])
    cluster.elect(ElectionType.PREFERRED, ORDERS, ORDERS)
    assert len(cluster.last_records) == 1


# Unclean elections


def left_behind(**configs: str) -> ControlledCluster:
    """1 was the only ISR member and is fenced; 2 and 3 are unfenced."""
    cluster = cluster_of(1, 2, 3, **configs)
    for broker_id in (2, 3, 1):
        cluster.fence(broker_id)
    cluster.unfence(2)
    cluster.unfence(3)
    assert shape(cluster) == (NO_LEADER, (1,), ())
    return cluster


def test_only_topics_with_unclean_election_enabled_are_candidates() -> None:
    cluster = left_behind()
    assert unclean_election_candidates(cluster.state) == {}
    ends = {ORDERS: {2: EpochEndOffset(0, 5), 3: EpochEndOffset(0, 7)}}
    cluster.do(elect_unclean_leaders(cluster.state, ends))
    assert shape(cluster) == (NO_LEADER, (1,), ())


@pytest.mark.parametrize(
    ("ends", "leader"),
    [
        ({2: EpochEndOffset(0, 5), 3: EpochEndOffset(0, 7)}, 3),
        ({2: EpochEndOffset(1, 5), 3: EpochEndOffset(0, 7)}, 2),
        ({2: EpochEndOffset(1, 5), 3: EpochEndOffset(1, 5)}, 2),
        ({3: EpochEndOffset(0, 0)}, 3),
    ],
)
def test_an_unclean_election_takes_the_longest_log(ends: dict[int, EpochEndOffset], leader: int) -> None:
    cluster = left_behind(unclean_leader_election_enable="true")
    assert unclean_election_candidates(cluster.state) == {ORDERS: (2, 3)}
    cluster.do(elect_unclean_leaders(cluster.state, {ORDERS: ends}))
    assert shape(cluster) == (leader, (leader,), ())
    assert cluster.partition().is_recovering
    assert cluster.alter([leader]).is_recovering is False
    assert not cluster.partition().is_recovering


def test_an_unclean_election_fails_if_there_is_a_leader_again() -> None:
    cluster = left_behind(unclean_leader_election_enable="true")
    ends = {ORDERS: {2: EpochEndOffset(0, 5)}}
    cluster.unfence(1)
    [result] = cluster.do(elect_unclean_leaders(cluster.state, ends))
    assert isinstance(result.error, ElectionNotNeededError)
    assert shape(cluster) == (1, (1,), ())


def test_a_broker_fenced_during_the_query_is_not_elected() -> None:
    cluster = left_behind(unclean_leader_election_enable="true")
    cluster.fence(3)
    ends = {ORDERS: {2: EpochEndOffset(0, 5), 3: EpochEndOffset(0, 7)}}
    cluster.do(elect_unclean_leaders(cluster.state, ends))
    assert shape(cluster) == (2, (2,), ())


def test_a_deleted_topic_is_not_elected() -> None:
    cluster = left_behind(unclean_leader_election_enable="true")
    ends = {PartitionName("gone", 0): {2: EpochEndOffset(0, 5)}}
    assert cluster.do(elect_unclean_leaders(cluster.state, ends)) == []


def test_unclean_elections_are_split_into_decisions(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = ControlledCluster()
    cluster.create("orders", *([1, 2] for _ in range(10)), unclean_leader_election_enable="true")
    for broker_id in (2, 1):
        cluster.fence(broker_id)
    cluster.unfence(2)
    names = list(unclean_election_candidates(cluster.state))
    assert len(names) == 10
    # The first four have no log ends; the others do not wait for them.
    ends = {name: {2: EpochEndOffset(0, 5)} if name in names[4:] else {} for name in names}
    for module in (controller_state, elections):
        monkeypatch.setattr(module, "RECORDS_PER_DECISION_MAX", 3)
    for elected in (3, 6):
        cluster.do(elect_unclean_leaders(cluster.state, ends))
        assert len(cluster.last_records) == 3
        assert list(unclean_election_candidates(cluster.state)) == names[:4] + names[4 + elected :]
    cluster.do(elect_unclean_leaders(cluster.state, ends))
    assert cluster.last_records == []


def test_an_unclean_election_request_overrides_the_topic_setting() -> None:
    cluster = left_behind()
    assert unclean_election_candidates(cluster.state, [ORDERS]) == {ORDERS: (2, 3)}
    assert error_of(cluster.elect(ElectionType.UNCLEAN, ORDERS)) is EligibleLeadersNotAvailableError
    ends = {ORDERS: {2: EpochEndOffset(0, 5), 3: EpochEndOffset(0, 7)}}
    assert error_of(cluster.elect(ElectionType.UNCLEAN, ORDERS, log_ends=ends)) is None
    assert shape(cluster) == (3, (3,), ())
    assert error_of(cluster.elect(ElectionType.UNCLEAN, ORDERS)) is ElectionNotNeededError


# Size


def test_a_broker_with_many_partitions_changes_each_exactly_once() -> None:
    cluster = ControlledCluster((1, 2, 3, 4))
    cluster.create("orders", *([1, 2, 3] for _ in range(3_000)))
    cluster.create("other", *([2, 3, 4] for _ in range(3_000)))
    cluster.fence(1)
    changes = cluster.last_records[1:]
    assert len(changes) == 3_000
    assert cluster.state.index.leader_count(1) == 0
    assert cluster.state.index.leader_count(2) == 6_000
    assert cluster.state.index.replica_count(1) == 3_000
