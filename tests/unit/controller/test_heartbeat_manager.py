"""Broker sessions and what heartbeats report."""

from uuid import UUID

from moldau.controller.heartbeat_manager import BrokerHeartbeatManager, remaining_session_ms
from moldau.controller.requests import BrokerHeartbeat, OfflineReplica
from moldau.metadata.image import BrokerRegistration

SESSION_MS = 3_000
TOPIC_ID = UUID(int=77)


def broker(broker_id: int, *, epoch: int = 5, fenced: bool = False, leaving: bool = False) -> BrokerRegistration:
    return BrokerRegistration(broker_id, epoch, UUID(int=broker_id), (), None, fenced, leaving)


def with_brokers(*broker_ids: int) -> BrokerHeartbeatManager:
    heartbeat_manager = BrokerHeartbeatManager(SESSION_MS)
    heartbeat_manager.initialize(0, {each: broker(each) for each in broker_ids}, 40)
    return heartbeat_manager


def ids(heartbeat_manager: BrokerHeartbeatManager, now_ms: int) -> list[int]:
    return [each.broker_id for each in heartbeat_manager.take_expired(now_ms)]


def test_an_expired_session_is_returned_once() -> None:
    heartbeat_manager = with_brokers(1, 2, 3)
    heartbeat_manager.touch(BrokerHeartbeat(2, 5, 0), 1_000)
    assert heartbeat_manager.next_deadline_ms == SESSION_MS
    assert ids(heartbeat_manager, SESSION_MS - 1) == []
    assert ids(heartbeat_manager, SESSION_MS) == [1, 3]
    assert ids(heartbeat_manager, SESSION_MS) == []
    assert heartbeat_manager.next_deadline_ms == 1_000 + SESSION_MS
    heartbeat_manager.touch(BrokerHeartbeat(3, 5, 0), 3_500)
    assert heartbeat_manager.has_valid_session(3, 5, 3_600)
    assert not heartbeat_manager.has_valid_session(1, 5, 3_600)
    assert ids(heartbeat_manager, 3_500 + SESSION_MS) == [2, 3]


def test_a_heartbeat_of_a_previous_incarnation_is_ignored() -> None:
    heartbeat_manager = with_brokers(1)
    heartbeat_manager.start_session(1, 9, 2_000)
    assert not heartbeat_manager.touch(BrokerHeartbeat(1, 5, 99), 4_000)
    assert heartbeat_manager.metadata_offset_of(1) == -1
    assert ids(heartbeat_manager, 2_000 + SESSION_MS) == [1]
    assert not heartbeat_manager.has_valid_session(1, 5, 2_001)


def test_a_delayed_heartbeat_does_not_revert_progress() -> None:
    heartbeat_manager = with_brokers(1)
    broken = OfflineReplica(TOPIC_ID, 0, 1, "EIO")
    assert heartbeat_manager.touch(BrokerHeartbeat(1, 5, 8, not_ready=[broken]), 100)
    assert not heartbeat_manager.touch(BrokerHeartbeat(1, 5, 7), 101)
    assert heartbeat_manager.metadata_offset_of(1) == 8
    assert heartbeat_manager.not_ready_reason(1, TOPIC_ID, 0) == "EIO"
    assert heartbeat_manager.touch(BrokerHeartbeat(1, 5, 8), 102), "it is ready now"
    assert not heartbeat_manager.touch(BrokerHeartbeat(1, 5, 8), 103)


def test_sessions_are_extended_by_a_stall_of_the_controller() -> None:
    heartbeat_manager = with_brokers(1)
    heartbeat_manager.extend_sessions(700)
    assert ids(heartbeat_manager, SESSION_MS + 699) == []
    assert ids(heartbeat_manager, SESSION_MS + 700) == [1]


def test_the_previous_controllers_node_gets_its_remaining_session() -> None:
    heartbeat_manager = BrokerHeartbeatManager(SESSION_MS)
    rest_ms = remaining_session_ms(SESSION_MS, 1_500)
    heartbeat_manager.initialize(
        0, {1: broker(1), 2: broker(2)}, 40, previous_controller=2, previous_session_ms=rest_ms
    )
    assert ids(heartbeat_manager, rest_ms) == [2]
    assert (remaining_session_ms(9_000, 1_500), remaining_session_ms(3_000, 2_000)) == (7_500, 1_500)


def test_a_controlled_shutdown_continues_under_a_new_controller() -> None:
    heartbeat_manager = BrokerHeartbeatManager(SESSION_MS)
    heartbeat_manager.initialize(0, {1: broker(1), 2: broker(2, leaving=True)}, 40)
    leaving, staying = heartbeat_manager.session_of(2, 5), heartbeat_manager.session_of(1, 5)
    assert leaving is not None
    assert staying is not None
    assert (leaving.controlled_shutdown_offset, staying.controlled_shutdown_offset) == (40, None)
    assert heartbeat_manager.lowest_metadata_offset([1]) == -1
    heartbeat_manager.touch(BrokerHeartbeat(1, 5, 41), 10)
    assert heartbeat_manager.lowest_metadata_offset([1]) == 41
    assert heartbeat_manager.lowest_metadata_offset([]) is None


def test_a_broker_whose_process_died_has_no_valid_session() -> None:
    heartbeat_manager = with_brokers(1, 2)
    heartbeat_manager.expire_session(1, 5, 100)
    heartbeat_manager.expire_session(2, 4, 100)
    assert not heartbeat_manager.has_valid_session(1, 5, 100)
    assert heartbeat_manager.has_valid_session(2, 5, 100)
    assert ids(heartbeat_manager, 200) == [], "a session that was ended explicitly is not reported"


def test_an_expired_session_is_monitored_again_after_a_stall() -> None:
    heartbeat_manager = BrokerHeartbeatManager(SESSION_MS)
    heartbeat_manager.start_session(1, 5, 0)
    assert len(heartbeat_manager.take_expired(SESSION_MS)) == 1
    heartbeat_manager.extend_sessions(300)
    assert heartbeat_manager.has_valid_session(1, 5, SESSION_MS)
    assert len(heartbeat_manager.take_expired(SESSION_MS + 300)) == 1
