"""A follower's fetch session: what each fetch says, and when everything is said again."""

from uuid import UUID

from moldau.replication.requests import fetch_request
from moldau.replication.session import FetchSession, PartitionKey, Position

ORDERS_0 = PartitionKey(UUID(int=1), 0)
ORDERS_1 = PartitionKey(UUID(int=1), 1)
VISITS_0 = PartitionKey(UUID(int=2), 0)


def at(offset: int, leader_epoch: int = 1) -> Position:
    return Position(offset, 0, leader_epoch, 0)


def begun(*keys: PartitionKey) -> FetchSession:
    session = FetchSession()
    for key in keys:
        session.want(key, at(0))
    session.plan()
    session.answered(77)
    return session


def test_the_first_fetch_names_all_and_the_next_only_what_changed() -> None:
    session = FetchSession()
    session.want(ORDERS_0, at(5))
    session.want(ORDERS_1, at(6))
    first = session.plan()
    assert (first.session_id, first.session_epoch, first.is_full) == (0, 0, True)
    assert dict(first.named) == {ORDERS_0: at(5), ORDERS_1: at(6)}
    session.answered(77)
    session.want(ORDERS_0, at(5))
    session.want(ORDERS_1, at(9))
    second = session.plan()
    assert (second.session_id, second.session_epoch) == (77, 1)
    assert (dict(second.named), second.forgotten) == ({ORDERS_1: at(9)}, ())
    session.answered(77)
    third = session.plan()
    assert (third.session_epoch, dict(third.named), third.forgotten) == (2, {}, ())


def test_partitions_that_are_no_longer_wanted_are_forgotten_once() -> None:
    session = begun(ORDERS_0, ORDERS_1)
    session.forget(ORDERS_0)
    assert session.plan().forgotten == (ORDERS_0,)
    session.answered(77)
    session.forget(ORDERS_0)
    assert session.plan().forgotten == ()


def test_a_partition_that_is_forgotten_and_wanted_again_at_the_same_place_is_no_news() -> None:
    session = begun(ORDERS_0, ORDERS_1)
    session.forget(ORDERS_0)
    session.want(ORDERS_0, at(0))
    plan = session.plan()
    assert (dict(plan.named), plan.forgotten) == ({}, ())
    assert session.asked(ORDERS_0) == at(0)


def test_an_answer_belongs_to_what_was_asked_and_not_to_what_is_wanted_since() -> None:
    session = begun(ORDERS_0, ORDERS_1)
    session.plan()
    session.want(ORDERS_0, at(0, leader_epoch=2))
    session.forget(ORDERS_1)
    session.want(VISITS_0, at(3))
    assert session.asked(ORDERS_0) == at(0, leader_epoch=1)
    assert session.asked(ORDERS_1) == at(0)
    assert session.asked(VISITS_0) is None
    session.answered(77)
    session.plan()
    assert session.asked(ORDERS_0) == at(0, leader_epoch=2)
    assert session.asked(ORDERS_1) is None
    assert session.asked(VISITS_0) == at(3)


def test_after_a_failure_everything_is_said_again_and_the_old_session_is_replaced() -> None:
    session = begun(ORDERS_0, ORDERS_1)
    session.want(ORDERS_0, at(4))
    session.plan()
    session.begin_anew()
    session.want(VISITS_0, at(1))
    plan = session.plan()
    assert (plan.session_id, plan.session_epoch) == (77, 0)
    assert dict(plan.named) == {ORDERS_0: at(4), ORDERS_1: at(0), VISITS_0: at(1)}
    session.answered(78)
    assert session.plan().session_id == 78


def test_a_leader_without_room_for_sessions_is_told_everything_each_time() -> None:
    session = FetchSession()
    session.want(ORDERS_0, at(0))
    session.want(ORDERS_1, at(0))
    session.plan()
    session.answered(0)
    session.want(ORDERS_0, at(8))
    plan = session.plan()
    assert plan.is_full
    assert list(plan.named) == [ORDERS_1, ORDERS_0], "who got records is asked for last"


def test_a_session_that_the_leader_has_ended_or_swapped_begins_anew() -> None:
    session = begun(ORDERS_0)
    session.plan()
    session.answered(0)
    plan = session.plan()
    assert (plan.session_id, plan.is_full) == (0, True)
    session = begun(ORDERS_0)
    session.plan()
    session.answered(99)
    assert session.plan().is_full


def test_epochs_wrap_around_behind_the_largest() -> None:
    session = begun(ORDERS_0)
    session._epoch = 2**31 - 1
    session.plan()
    session.answered(77)
    assert session.plan().session_epoch == 1


def test_the_request_groups_partitions_by_topic() -> None:
    session = FetchSession()
    for key in (ORDERS_0, VISITS_0, ORDERS_1):
        session.want(key, Position(5, 2, 3, 1))
    session.plan()
    session.answered(77)
    session.forget(ORDERS_0)
    session.forget(ORDERS_1)
    session.want(VISITS_0, Position(6, 2, 3, 1))
    tree = fetch_request(
        session.plan(),
        cluster_id="c",
        replica_id=2,
        broker_epoch=40,
        wait_ms=500,
        bytes_max=1000,
        partition_bytes_max=100,
    )
    assert tree["replica_state"] == {"replica_id": 2, "replica_epoch": 40}
    assert tree["forgotten_topics_data"] == [{"topic_id": UUID(int=1), "partitions": [0, 1]}]
    assert tree["topics"] == [
        {
            "topic_id": UUID(int=2),
            "partitions": [
                {
                    "partition": 0,
                    "current_leader_epoch": 3,
                    "fetch_offset": 6,
                    "last_fetched_epoch": 2,
                    "log_start_offset": 1,
                    "partition_max_bytes": 100,
                }
            ],
        }
    ]
