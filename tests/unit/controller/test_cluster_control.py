"""Decisions on brokers and producer ids."""

from dataclasses import replace
from uuid import UUID

import pytest

from moldau.controller.cluster_control import (
    allocate_producer_ids,
    fence_broker,
    process_broker_heartbeat,
    register_broker,
    unregister_broker,
)
from moldau.controller.feature_control import set_highest_levels
from moldau.controller.features import SUPPORTED_FEATURES
from moldau.controller.requests import BrokerHeartbeat, BrokerRegistrationRequest, NewTopic
from moldau.errors import (
    BrokerIdNotRegisteredError,
    DuplicateBrokerRegistrationError,
    InconsistentClusterIdError,
    InvalidRegistrationError,
    StaleBrokerEpochError,
    UnsupportedVersionError,
)
from moldau.metadata.image import Endpoint
from moldau.metadata.records import TopicRecord
from support.controller_decisions import Cluster


def test_a_brokers_epoch_is_the_offset_of_its_registration() -> None:
    cluster = Cluster(brokers=())
    cluster.state.apply([TopicRecord(name="x", topic_id=UUID(int=9))], 1)
    assert cluster.register(1) == 1
    assert cluster.state.image.brokers[1].epoch == 1
    assert cluster.register(1) == 2, "a new incarnation gets a new epoch"


def test_the_same_incarnation_keeps_its_epoch() -> None:
    cluster = Cluster(brokers=())
    broker = BrokerRegistrationRequest(1, UUID(int=5), [Endpoint("P", "h", 1)])
    for _ in range(2):
        assert cluster.register_as(broker) == 0
    cluster.unfence(1)
    cluster.register_as(broker)
    assert cluster.state.image.brokers[1].is_active, "it stays unfenced"


def test_a_broker_leads_nothing_from_its_registration_to_its_first_heartbeats() -> None:
    cluster = Cluster(brokers=(1, 2))
    cluster.create(NewTopic("a", assignment={0: [1, 2], 1: [2, 1]}))
    epoch = cluster.state.image.brokers[1].epoch
    cluster.register(1, previous_epoch=epoch)
    [first, second] = cluster.state.image.topics["a"].partitions
    assert (first.leader, first.leader_epoch, first.isr) == (2, 1, (2,))
    assert (second.leader, second.leader_epoch, second.isr) == (2, 0, (2,))
    broker = cluster.state.image.brokers[1]
    behind = BrokerHeartbeat(1, broker.epoch, broker.epoch - 1)
    reply = cluster._do(process_broker_heartbeat(cluster.state, behind, cluster.heartbeat_manager)).reply
    assert (reply.is_caught_up, reply.is_fenced) == (False, True)
    cluster.unfence(1)
    assert cluster.state.image.brokers[1].is_active


def test_a_broker_is_fenced_on_its_own_request() -> None:
    cluster = Cluster(brokers=(1, 2))
    cluster.create(NewTopic("a", assignment={0: [1, 2]}))
    epoch = cluster.state.image.brokers[1].epoch
    for _ in range(2):
        heartbeat = BrokerHeartbeat(1, epoch, 99, want_fence=True)
        reply = cluster._do(process_broker_heartbeat(cluster.state, heartbeat, cluster.heartbeat_manager)).reply
        assert reply.is_fenced
        assert cluster.state.image.topics["a"].partitions[0].leader == 2
    assert cluster.last_records == []


def test_a_broker_is_unfenced_only_when_it_has_applied_the_decision_that_fenced_it() -> None:
    cluster = Cluster(brokers=(1, 2))
    cluster.create(NewTopic("a", assignment={0: [1, 2]}))
    broker = cluster.state.image.brokers[1]
    before = cluster.state.image.offset
    cluster._do(fence_broker(cluster.state, 1, broker.epoch))
    last = cluster.state.image.offset
    for offset, fenced in ((before, True), (last - 1, True), (last, False)):
        heartbeat = BrokerHeartbeat(1, broker.epoch, offset)
        reply = cluster._do(process_broker_heartbeat(cluster.state, heartbeat, cluster.heartbeat_manager)).reply
        assert (reply.is_fenced, reply.is_caught_up) == (fenced, not fenced)
    again = cluster._do(fence_broker(cluster.state, 1, broker.epoch + 1))
    assert again
    assert cluster.state.image.brokers[1].is_active, "the epoch is another incarnation's"


def test_requests_with_a_stale_broker_epoch_are_rejected() -> None:
    cluster = Cluster()
    epoch = cluster.state.image.brokers[1].epoch
    for broker_id, broker_epoch, error in (
        (1, epoch - 1, StaleBrokerEpochError),
        (1, epoch + 1, StaleBrokerEpochError),
        (9, epoch, BrokerIdNotRegisteredError),
    ):
        with pytest.raises(error):
            process_broker_heartbeat(
                cluster.state, BrokerHeartbeat(broker_id, broker_epoch, 9), cluster.heartbeat_manager
            )
        with pytest.raises(error):
            allocate_producer_ids(cluster.state, broker_id, broker_epoch)


def test_a_broker_with_a_valid_session_is_not_replaced_by_another_process() -> None:
    cluster = Cluster(brokers=())
    epoch = cluster.register(1)
    cluster.heartbeat_manager.start_session(1, epoch, 0)
    cluster.heartbeat_manager.touch(BrokerHeartbeat(1, epoch, 0), 10)
    for endpoint in (Endpoint("P", "h", 9092), Endpoint("P", "other", 9092)):
        duplicate = BrokerRegistrationRequest(1, UUID(int=9), [endpoint])
        with pytest.raises(DuplicateBrokerRegistrationError, match="h:9092"):
            register_broker(cluster.state, duplicate, cluster.heartbeat_manager, 3_009)
        assert register_broker(cluster.state, duplicate, cluster.heartbeat_manager, 3_010).response


def test_invalid_registrations_are_rejected_with_advice() -> None:
    cluster = Cluster()
    cluster.state.image = replace(cluster.state.image, cluster_id="ours")
    cluster._do(set_highest_levels(cluster.state))
    good = BrokerRegistrationRequest(2, UUID(int=9), [Endpoint("P", "h", 9)], cluster_id="ours")
    for changes, error, advice in (
        ({"cluster_id": "theirs"}, InconsistentClusterIdError, "empty data.dir"),
        ({"endpoints": []}, InvalidRegistrationError, "endpoint"),
        ({"endpoints": [Endpoint("P", "", 9)]}, InvalidRegistrationError, "connected to: ':9'"),
        ({"endpoints": [Endpoint("P", "h", 0)]}, InvalidRegistrationError, "connected to: 'h:0'"),
        ({"endpoints": [Endpoint("P", "h", 65536)]}, InvalidRegistrationError, "connected to: 'h:65536'"),
        ({"broker_id": -1}, InvalidRegistrationError, "negative"),
        ({"features": {**SUPPORTED_FEATURES, "metadata.version": (1, 29)}}, UnsupportedVersionError, "of Moldau"),
        ({"features": {"metadata.version": (30, 30)}}, UnsupportedVersionError, "eligible.leader.replicas.version"),
        ({"features": {}}, UnsupportedVersionError, "version of Moldau"),
    ):
        broker = good._replace(**changes)
        with pytest.raises(error, match=advice):
            register_broker(cluster.state, broker, cluster.heartbeat_manager, 0)
    assert cluster.register_as(good) > 0


def test_an_unregistered_broker_is_removed_from_isrs_and_from_the_image() -> None:
    cluster = Cluster(brokers=(1, 2))
    cluster.create(NewTopic("a", assignment={0: [1, 2]}))
    assert cluster._do(unregister_broker(cluster.state, 1))
    [partition] = cluster.state.image.topics["a"].partitions
    assert (partition.leader, partition.isr, partition.replicas) == (2, (2,), (1, 2))
    assert list(cluster.state.image.brokers) == [2]
    with pytest.raises(BrokerIdNotRegisteredError):
        unregister_broker(cluster.state, 1)


def test_producer_id_blocks_do_not_overlap() -> None:
    cluster = Cluster()
    epoch = cluster.state.image.brokers[1].epoch
    blocks = [cluster._do(allocate_producer_ids(cluster.state, 1, epoch)) for _ in range(3)]
    assert blocks == [range(1000), range(1000, 2000), range(2000, 3000)]
