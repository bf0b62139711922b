"""The first difference of each replica, from groups of rows and from two copies of a batch."""

import pytest

from moldau.client.record import TopicPartition
from moldau.records.batch import Batch
from moldau.records.batch_builder import build_batch
from moldau.records.record import Record
from moldau.spark.audit.batch_difference import describe_difference
from moldau.spark.audit.findings import Difference, partition_results
from moldau.spark.audit.groups import BATCH, RECORD, START, STOP, Group, ReplicaValue
from moldau.spark.audit.plan import PlannedPartition
from moldau.spark.source.replica_reader import ReplicaReadError, stored_batches

ORDERS = TopicPartition("orders", 0)
LEADER, SECOND, THIRD = 1, 2, 3
BROKERS = (LEADER, SECOND, THIRD)
EQUAL = dict.fromkeys(BROKERS, "a")


def planned(*, by_key: bool = False, **changes: object) -> PlannedPartition:
    plan = PlannedPartition("orders", 0, LEADER, BROKERS, (), (), 0, 100, by_key)
    return plan._replace(**changes)  # type: ignore[arg-type]


def group(offset: int, digests: dict[int, str], *, kind: str = BATCH, count: int = 1, **problems: str) -> Group:
    """Returns a group; `problems` are by b<broker>."""
    values = tuple(
        ReplicaValue(BROKERS.index(broker), broker, offset, digest, problems.get(f"b{broker}"))
        for broker, digest in digests.items()
    )
    is_equal = digests == EQUAL and not problems
    return Group(ORDERS, kind, offset, b"k" if kind == RECORD else None, values, count, 10 * count, is_equal)


def stop(broker: int, offset: int, reason: str = "its log ends") -> Group:
    return Group(ORDERS, STOP, offset, None, (ReplicaValue(0, broker, offset, None, reason),), 1, 0, is_equal=False)


def found(
    *groups: Group, plan: PlannedPartition | None = None, log_start: int = 0
) -> list[tuple[int, int | None, str]]:
    (result,) = partition_results([plan or planned()], groups, {ORDERS: log_start})
    return [(each.replica, each.offset, each.what) for each in result.differences]


def test_equal_groups_have_no_difference_and_are_counted() -> None:
    (result,) = partition_results([planned()], [group(0, EQUAL, count=7)], {})

    assert result.is_equal
    assert (result.units, result.size) == (7, 70)


def test_another_replica_than_the_leader_differs() -> None:
    assert found(group(0, EQUAL), group(5, {LEADER: "a", SECOND: "b", THIRD: "a"})) == [
        (SECOND, 5, "the batch has other bytes")
    ]


def test_the_leader_is_no_reference_if_its_checksum_is_wrong() -> None:
    damaged = group(5, {LEADER: "b", SECOND: "a", THIRD: "a"}, b1="the checksum of the batch is wrong")

    assert found(damaged) == [(LEADER, 5, "the checksum of the batch is wrong")]


def test_each_replica_is_reported_with_its_lowest_offset_and_all_of_its_batches() -> None:
    groups = [
        group(30, {LEADER: "a", SECOND: "b", THIRD: "a"}, count=2),
        group(9, {LEADER: "a", SECOND: "b", THIRD: "b"}, count=3),
        group(4, {LEADER: "a", THIRD: "a"}, count=4),
    ]
    (result,) = partition_results([planned()], groups, {})

    assert [(each.replica, each.offset, each.count) for each in result.differences] == [(SECOND, 4, 9), (THIRD, 9, 3)]


def test_batches_after_the_end_of_a_replica_are_not_reported_one_by_one() -> None:
    missing = group(50, {LEADER: "a", THIRD: "a"}, count=40)

    assert found(stop(SECOND, 50), missing) == [(SECOND, 50, "its log ends")]


def test_a_batch_missing_before_the_end_of_a_replica_is_reported_first() -> None:
    missing = group(20, {LEADER: "a", THIRD: "a"}, count=40)

    assert found(stop(SECOND, 50), missing) == [(SECOND, 20, "the batch is missing")]


def test_a_replica_behind_names_that_it_is_not_in_the_isr() -> None:
    plan = planned(out_of_sync=(SECOND,))

    assert found(stop(SECOND, 50), plan=plan) == [(SECOND, 50, "its log ends, and is not in the ISR")]


def test_followers_are_compared_with_each_other_after_the_leader_ends() -> None:
    after = group(60, {SECOND: "a", THIRD: "b"})

    assert found(stop(LEADER, 50), after) == [(LEADER, 50, "its log ends"), (THIRD, 60, "the batch has other bytes")]


def test_a_batch_that_only_a_follower_has_is_its_difference() -> None:
    assert found(group(5, {SECOND: "a"})) == [(SECOND, 5, "the leader does not have the batch")]


def test_a_log_that_starts_later_than_the_leaders_is_a_difference() -> None:
    start = Group(ORDERS, START, 40, None, (ReplicaValue(1, SECOND, 40, None, None),), 1, 0, is_equal=False)
    missing = group(0, {LEADER: "a", THIRD: "a"}, count=4)

    assert found(start, missing) == [(SECOND, 0, "its log starts at 40, the leader's at 0")]
    assert found(start, log_start=40) == []


def test_the_latest_records_of_a_key_are_compared() -> None:
    plan = planned(by_key=True)
    another = group(7, {LEADER: "7/1000/aa/-", SECOND: "7/1000/bb/-", THIRD: "7/1000/aa/-"}, kind=RECORD)
    (result,) = partition_results([plan], [another], {})

    assert result.differences == (
        Difference(ORDERS, SECOND, 7, "the latest record of the key has another value", LEADER, b"k"),
    )
    assert found(group(7, {LEADER: "x", THIRD: "x"}, kind=RECORD), plan=plan) == [(SECOND, 7, "the record is missing")]


def test_replicas_that_were_not_read_are_differences() -> None:
    assert found(plan=planned(down=(THIRD,), brokers=(LEADER, SECOND))) == [
        (THIRD, None, "the broker is down, so its replica was not compared")
    ]
    assert found(plan=planned(leader=-1, brokers=())) == [
        (-1, None, "the partition has no leader, so its replicas were not compared")
    ]


# Two copies of a batch


def batch(values: list[bytes], *, epoch: int = 0, base_offset: int = 10) -> Batch:
    built = Batch(build_batch([Record(timestamp=1_000, value=value) for value in values]))
    built.base_offset, built.leader_epoch = base_offset, epoch
    return Batch(built.to_bytes())


def damaged(whole: Batch, position: int) -> Batch:
    data = bytearray(whole.data)
    data[position] ^= 1
    return Batch(bytes(data))


@pytest.mark.parametrize(
    ("position", "text"),
    [
        (15, "leader epoch 1 instead of 0"),
        (26, "last offset delta 3 instead of 2"),
        (61, "byte 61 (in the record at offset 10) is 0x"),
        (-1, "(in the record at offset 12) is 0x"),
    ],
)
def test_a_damaged_byte_is_named(position: int, text: str) -> None:
    whole = batch([b"one", b"two", b"three"])

    assert text in (describe_difference(damaged(whole, position % whole.size), whole) or "")
    assert describe_difference(whole, whole) is None


def test_sound_batches_with_other_records_name_the_record() -> None:
    text = describe_difference(batch([b"one", b"two"]), batch([b"one", b"six"]))

    assert text is not None
    assert "the record at offset 11 has another value" in text


# The batches of a response


def test_batches_of_a_response_are_split_without_a_partial_one_at_the_end() -> None:
    data = b"".join(bytes(each.data) for each in (batch([b"a"]), batch([b"b"], base_offset=11), batch([b"c"])))

    assert [each.base_offset for each in stored_batches(memoryview(data)[:-10], 10)] == [10, 11]


@pytest.mark.parametrize(
    ("position", "text"), [(8, "its length field says"), (16, "magic"), (7, "the batch there has the offsets 0 to 0")]
)
def test_bytes_that_are_no_batch_are_an_error_with_its_offset(position: int, text: str) -> None:
    first, second = batch([b"a"], base_offset=0), batch([b"b"], base_offset=1)
    data = bytes(first.data) + bytes(damaged_bytes(second, position))

    with pytest.raises(ReplicaReadError, match=text) as error:
        list(stored_batches(memoryview(data), 0))
    assert error.value.offset == 1


def damaged_bytes(whole: Batch, position: int) -> bytes:
    data = bytearray(whole.data)
    # Byte 8 is the sign of the length.
    data[position] ^= 0x80 if position == 8 else 1
    return bytes(data)
