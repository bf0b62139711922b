"""The follower's fetch session: incremental and full fetches."""

from uuid import UUID

from moldau.partitions.follower_state import FollowerFetchPosition
from moldau.replication.fetch_session import INITIAL_EPOCH, FetchSessionHandler, PartitionKey, build_fetch_request

ORDERS_0 = PartitionKey(UUID(int=1), 0)
ORDERS_1 = PartitionKey(UUID(int=1), 1)
VISITS_0 = PartitionKey(UUID(int=2), 0)


def at(offset: int, leader_epoch: int = 1) -> FollowerFetchPosition:
    return FollowerFetchPosition(offset, 0, leader_epoch, 0)


def begun(*keys: PartitionKey) -> FetchSessionHandler:
    session = FetchSessionHandler()
    for key in keys:
        session.set_position(key, at(0))
    session.build()
    session.handle_response(77)
    return session


def test_the_first_fetch_is_full_and_the_next_names_only_changes() -> None:
    session = FetchSessionHandler()
    session.set_position(ORDERS_0, at(5))
    session.set_position(ORDERS_1, at(6))
    first = session.build()
    assert (first.session_id, first.session_epoch) == (0, INITIAL_EPOCH)
    assert dict(first.to_send) == {ORDERS_0: at(5), ORDERS_1: at(6)}
    session.handle_response(77)
    session.set_position(ORDERS_0, at(5))
    session.set_position(ORDERS_1, at(9))
    second = session.build()
    assert (second.session_id, second.session_epoch) == (77, 1)
    assert (dict(second.to_send), second.to_forget) == ({ORDERS_1: at(9)}, ())
    session.handle_response(77)
    third = session.build()
    assert (third.session_epoch, dict(third.to_send), third.to_forget) == (2, {}, ())


def test_removed_partitions_are_forgotten_once() -> None:
    session = begun(ORDERS_0, ORDERS_1)
    session.remove(ORDERS_0)
    assert session.build().to_forget == (ORDERS_0,)
    session.handle_response(77)
    session.remove(ORDERS_0)
    assert session.build().to_forget == ()


def test_a_partition_removed_and_added_again_unchanged_is_not_sent() -> None:
    session = begun(ORDERS_0, ORDERS_1)
    session.remove(ORDERS_0)
    session.set_position(ORDERS_0, at(0))
    plan = session.build()
    assert (dict(plan.to_send), plan.to_forget) == ({}, ())
    assert session.requested_position(ORDERS_0) == at(0)


def test_a_response_belongs_to_the_requested_position() -> None:
    session = begun(ORDERS_0, ORDERS_1)
    session.build()
    session.set_position(ORDERS_0, at(0, leader_epoch=2))
    session.remove(ORDERS_1)
    session.set_position(VISITS_0, at(3))
    assert session.requested_position(ORDERS_0) == at(0, leader_epoch=1)
    assert session.requested_position(ORDERS_1) == at(0)
    assert session.requested_position(VISITS_0) is None
    session.handle_response(77)
    session.build()
    assert session.requested_position(ORDERS_0) == at(0, leader_epoch=2)
    assert session.requested_position(ORDERS_1) is None
    assert session.requested_position(VISITS_0) == at(3)


def test_after_a_failure_a_full_fetch_replaces_the_session() -> None:
    session = begun(ORDERS_0, ORDERS_1)
    session.set_position(ORDERS_0, at(4))
    session.build()
    session.reset()
    session.set_position(VISITS_0, at(1))
    plan = session.build()
    assert (plan.session_id, plan.session_epoch) == (77, 0)
    assert dict(plan.to_send) == {ORDERS_0: at(4), ORDERS_1: at(0), VISITS_0: at(1)}
    session.handle_response(78)
    assert session.build().session_id == 78


def test_without_a_session_every_fetch_is_full() -> None:
    session = FetchSessionHandler()
    session.set_position(ORDERS_0, at(0))
    session.set_position(ORDERS_1, at(0))
    session.build()
    session.handle_response(0)
    session.set_position(ORDERS_0, at(8))
    plan = session.build()
    assert plan.session_epoch == INITIAL_EPOCH
    assert list(plan.to_send) == [ORDERS_1, ORDERS_0], "partitions that got records are requested last"


def test_a_session_that_the_leader_ended_or_replaced_is_reset() -> None:
    session = begun(ORDERS_0)
    session.build()
    session.handle_response(0)
    plan = session.build()
    assert (plan.session_id, plan.session_epoch) == (0, INITIAL_EPOCH)
    session = begun(ORDERS_0)
    session.build()
    session.handle_response(99)
    assert session.build().session_epoch == INITIAL_EPOCH


def test_session_epochs_wrap_around() -> None:
    session = begun(ORDERS_0)
    session._epoch = 2**31 - 1
    session.build()
    session.handle_response(77)
    assert session.build().session_epoch == 1


def test_the_request_groups_partitions_by_topic() -> None:
    session = FetchSessionHandler()
    for key in (ORDERS_0, VISITS_0, ORDERS_1):
        session.set_position(key, FollowerFetchPosition(5, 2, 3, 1))
    session.build()
    session.handle_response(77)
    session.remove(ORDERS_0)
    session.remove(ORDERS_1)
    session.set_position(VISITS_0, FollowerFetchPosition(6, 2, 3, 1))
    tree = build_fetch_request(
        session.build(),
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
