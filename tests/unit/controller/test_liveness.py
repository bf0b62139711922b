"""Sessions of brokers as the controller keeps them, and what is ready by what they say."""

from uuid import UUID

from moldau.controller.liveness import Sessions, rest_of_session
from moldau.controller.readiness import unready
from moldau.controller.requests import Heartbeat, NotReady
from moldau.metadata.image import BrokerImage, ClusterImage, PartitionImage, TopicImage

SESSION_MS = 3_000
TOPIC_ID = UUID(int=77)


def broker(broker_id: int, *, epoch: int = 5, fenced: bool = False, leaving: bool = False) -> BrokerImage:
    return BrokerImage(broker_id, epoch, UUID(int=broker_id), (), None, fenced, leaving)


def with_brokers(*broker_ids: int) -> Sessions:
    sessions = Sessions(SESSION_MS)
    sessions.take_over(0, {each: broker(each) for each in broker_ids}, 40)
    return sessions


def ids(sessions: Sessions, now_ms: int) -> list[int]:
    return [each.broker_id for each in sessions.expired(now_ms)]


def test_a_session_runs_out_unless_it_is_prolonged_and_is_named_once() -> None:
    sessions = with_brokers(1, 2, 3)
    sessions.heard(Heartbeat(2, 5, 0), 1_000)
    assert sessions.next_deadline_ms == SESSION_MS
    assert ids(sessions, SESSION_MS - 1) == []
    assert ids(sessions, SESSION_MS) == [1, 3]
    assert ids(sessions, SESSION_MS) == []
    assert sessions.next_deadline_ms == 1_000 + SESSION_MS
    sessions.heard(Heartbeat(3, 5, 0), 3_500)
    assert sessions.is_alive(3, 5, 3_600)
    assert not sessions.is_alive(1, 5, 3_600)
    assert ids(sessions, 3_500 + SESSION_MS) == [2, 3]


def test_a_heartbeat_of_a_former_life_prolongs_nothing() -> None:
    sessions = with_brokers(1)
    sessions.begin(1, 9, 2_000)
    assert not sessions.heard(Heartbeat(1, 5, 99), 4_000)
    assert sessions.offset_of(1) == -1
    assert ids(sessions, 2_000 + SESSION_MS) == [1]
    assert not sessions.is_alive(1, 5, 2_001)


def test_a_late_heartbeat_takes_nothing_back() -> None:
    sessions = with_brokers(1)
    broken = NotReady(TOPIC_ID, 0, 1, "EIO")
    assert sessions.heard(Heartbeat(1, 5, 8, not_ready=[broken]), 100)
    assert not sessions.heard(Heartbeat(1, 5, 7), 101)
    assert sessions.offset_of(1) == 8
    assert sessions.complaint(1, TOPIC_ID, 0) == "EIO"
    assert sessions.heard(Heartbeat(1, 5, 8), 102), "it could be opened after all"
    assert not sessions.heard(Heartbeat(1, 5, 8), 103)


def test_time_in_which_the_controller_itself_stood_still_does_not_count() -> None:
    sessions = with_brokers(1)
    sessions.postpone(700)
    assert ids(sessions, SESSION_MS + 699) == []
    assert ids(sessions, SESSION_MS + 700) == [1]


def test_the_former_controllers_node_gets_what_is_left_of_its_session() -> None:
    sessions = Sessions(SESSION_MS)
    rest_ms = rest_of_session(SESSION_MS, 1_500)
    sessions.take_over(0, {1: broker(1), 2: broker(2)}, 40, former_controller=2, former_session_ms=rest_ms)
    assert ids(sessions, rest_ms) == [2]
    assert (rest_of_session(9_000, 1_500), rest_of_session(3_000, 2_000)) == (7_500, 1_500)


def test_who_was_leaving_under_the_former_controller_may_go_when_the_others_know_all_it_decided() -> None:
    sessions = Sessions(SESSION_MS)
    sessions.take_over(0, {1: broker(1), 2: broker(2, leaving=True)}, 40)
    leaving, staying = sessions.of(2, 5), sessions.of(1, 5)
    assert leaving is not None
    assert staying is not None
    assert (leaving.handed_over_offset, staying.handed_over_offset) == (40, None)
    assert sessions.lowest_offset([1]) == -1
    sessions.heard(Heartbeat(1, 5, 41), 10)
    assert sessions.lowest_offset([1]) == 41
    assert sessions.lowest_offset([]) is None


def test_one_that_is_gone_is_no_longer_alive() -> None:
    sessions = with_brokers(1, 2)
    sessions.cut_short(1, 5, 100)
    sessions.cut_short(2, 4, 100)
    assert not sessions.is_alive(1, 5, 100)
    assert sessions.is_alive(2, 5, 100)
    assert ids(sessions, 200) == [], "whoever cut it short knows"


def topic(*replicas: tuple[int, ...]) -> TopicImage:
    partitions = tuple(
        PartitionImage(index, each, each, each[0], 0, 0) for index, each in enumerate(replicas)
    )
    return TopicImage("orders", TOPIC_ID, partitions)


def image(at: TopicImage, *brokers: BrokerImage) -> ClusterImage:
    return ClusterImage(offset=50, brokers={each.broker_id: each for each in brokers}, topics={at.name: at})


def test_each_replica_that_is_not_ready_is_named_with_the_reason() -> None:
    sessions = with_brokers(1, 2, 3, 4)
    for broker_id, offset in ((1, 50), (2, 49), (3, 51), (4, 51)):
        sessions.heard(Heartbeat(broker_id, 5, offset), 10)
    sessions.heard(Heartbeat(3, 5, 51, not_ready=[NotReady(TOPIC_ID, 1, 3, "No space left on device")]), 20)
    at = image(
        topic((1, 2, 3), (3, 1, 4), (9, 1, 4)), broker(1), broker(2), broker(3), broker(4, fenced=True)
    )
    assert unready(at, sessions, {"orders": 0}, 50) == {
        "orders": [
            "orders-1 on node 3: its log could not be opened: No space left on device",
            "node 2 has not applied the metadata yet",
            "node 4 is fenced",
            "node 9 is not registered",
        ]
    }
    assert unready(at, sessions, {"orders": 2}, 50) == {
        "orders": ["node 4 is fenced", "node 9 is not registered"]
    }
    assert unready(at, sessions, {"gone": 0}, 50) == {}


def test_a_topic_is_ready_when_all_its_replicas_are() -> None:
    sessions = with_brokers(1, 2)
    at = image(topic((1, 2)), broker(1), broker(2, leaving=True))
    for broker_id in (1, 2):
        assert unready(at, sessions, {"orders": 0}, 50)
        sessions.heard(Heartbeat(broker_id, 5, 50), 10)
    assert unready(at, sessions, {"orders": 0}, 50) == {}


def test_who_was_about_to_be_fenced_when_the_controller_was_held_up_is_looked_after_again() -> None:
    sessions = Sessions(SESSION_MS)
    sessions.begin(1, 5, 0)
    assert len(sessions.expired(SESSION_MS)) == 1
    sessions.postpone(300)
    assert sessions.is_alive(1, 5, SESSION_MS)
    assert len(sessions.expired(SESSION_MS + 300)) == 1
