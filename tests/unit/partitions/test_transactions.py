"""Transactions in replicated partitions: the last stable offset, verification guards, markers and their errors."""

import pytest

from moldau.errors import (
    InvalidProducerEpochError,
    InvalidTransactionStateError,
    NotEnoughReplicasError,
    NotLeaderOrFollowerError,
    TransactionCoordinatorFencedError,
)
from moldau.partitions.partition import LogAppendInfo, Partition
from moldau.records.batch import Batch, split
from moldau.records.control_records import EndTransaction
from support.replicas import BYTES_MAX, Replicas, batch
from support.replication_stories import run
from support.transactional_logs import data, visible_records

PRODUCER = 7
COMMIT, ABORT = EndTransaction(True, 0), EndTransaction(False, 0)
TV1, TV2 = 1, 2


async def write(partition: Partition, records: Batch) -> LogAppendInfo:
    """Appends to a transaction that the coordinator knows."""
    guard = partition.begin_verification(
        records.producer_id, records.producer_epoch, records.base_sequence, supports_epoch_bump=True
    )
    try:
        return await partition.append([records], verification=guard)
    finally:
        if guard is not None:
            partition.end_verification(guard, records, None)


async def end(partition: Partition, marker: EndTransaction, *, epoch: int = 0, version: int = TV1) -> LogAppendInfo:
    return await partition.append_marker(PRODUCER, epoch, marker, version)


async def committed(partition: Partition, offset: int = 0) -> list[bytes | None]:
    """Returns what a consumer with read_committed reads from a leader or follower."""
    found = await partition.read(offset, BYTES_MAX, committed_only=True, from_follower=True)
    assert found.aborted_transactions is not None
    return [record.value for record in visible_records(split(found.records.read()), found.aborted_transactions)]


async def started(*nodes: int) -> Replicas:
    replicas = Replicas(nodes or (1,))
    await replicas.begin()
    return replicas


def test_the_last_stable_offset_follows_transactions_and_replication() -> None:
    async def main() -> None:
        both = await started(1, 2)
        leader, follower = both[1], both[2]
        await leader.append([batch(b"plain")])
        await write(leader, data(0, [b"a"]))
        await both.replicate(2)
        assert (leader.high_watermark, leader.last_stable_offset, follower.last_stable_offset) == (2, 1, 1)
        await end(leader, COMMIT)
        assert leader.last_stable_offset == 1, "the marker is not committed"
        await both.fetch(2)
        assert (leader.high_watermark, leader.last_stable_offset) == (2, 1)
        await both.fetch(2)
        assert (leader.high_watermark, leader.last_stable_offset) == (3, 3)
        assert await committed(leader) == [b"plain", b"a"]
        assert await committed(follower) == [b"plain", b"a"]

    run(main())


def test_aborted_records_are_listed_by_leader_and_follower() -> None:
    async def main() -> None:
        both = await started(1, 2)
        await write(both[1], data(0, [b"a"]))
        await end(both[1], ABORT)
        await write(both[1], data(0, [b"b"], sequence=1))
        await end(both[1], COMMIT)
        await both.replicate(2, times=3)
        for node in (1, 2):
            assert await committed(both[node]) == [b"b"]
            found = await both[node].read(0, BYTES_MAX, from_follower=True)
            assert found.aborted_transactions is None
            assert found.last_stable_offset == 4

    run(main())


def test_a_new_leader_knows_the_open_transactions() -> None:
    async def main() -> None:
        both = await started(1, 2)
        await write(both[1], data(0, [b"a"]))
        await both.replicate(2)
        both.elect(2)
        await both.publish_image()
        await both.replicate(1)
        assert both[2].last_stable_offset == 0
        assert both[2].begin_verification(PRODUCER, 0, 1, supports_epoch_bump=True) is None
        await end(both[2], ABORT)
        await both.replicate(1)
        assert both[2].last_stable_offset == both[2].high_watermark == 2
        assert await committed(both[2]) == []

    run(main())


def test_a_marker_that_a_new_leader_lacks_opens_the_transaction_again() -> None:
    async def main() -> None:
        both = await started(1, 2)
        await write(both[1], data(0, [b"a"]))
        await both.replicate(2)
        await end(both[1], ABORT)
        both.elect(2)
        await both.publish_image()
        await both.produce(2, b"later")
        await both.replicate(1)
        assert both[1].last_stable_offset == 0
        state = both.log(1).producers.get(PRODUCER)
        assert state is not None
        assert state.transaction_first_offset == 0
        await end(both[2], COMMIT)
        await both.replicate(1, times=3)
        for node in (1, 2):
            assert await committed(both[node]) == [b"a", b"later"]

    run(main())


def test_completed_transactions_are_forgotten_without_readers() -> None:
    async def main() -> None:
        both = await started(1, 2)
        for number in range(50):
            await write(both[1], data(0, [b"a"], sequence=number))
            await end(both[1], COMMIT)
            await both.replicate(2)
        await end(both[1], COMMIT)
        for node in (1, 2):
            assert len(both.log(node).producers.unstable.completed) <= 1

    run(main())


def test_a_batch_of_an_unverified_transaction_is_refused_and_later_ones_too() -> None:
    async def main() -> None:
        partition = (await started())[1]
        with pytest.raises(InvalidTransactionStateError):
            await partition.append([data(0, [b"a"])])
        guard = partition.begin_verification(PRODUCER, 0, 1, supports_epoch_bump=False)
        with pytest.raises(InvalidTransactionStateError, match="sequence 0 of producer 7 was rejected"):
            await partition.append([data(0, [b"b"], sequence=1)], verification=guard)

    run(main())


def test_an_abort_between_verification_and_append_refuses_the_batch() -> None:
    async def main() -> None:
        partition = (await started())[1]
        guard = partition.begin_verification(PRODUCER, 0, 0, supports_epoch_bump=False)
        await end(partition, ABORT)
        with pytest.raises(InvalidTransactionStateError):
            await partition.append([data(0, [b"a"])], verification=guard)
        assert partition.last_stable_offset == partition.log.end_offset

    run(main())


def test_a_rejected_verification_is_the_error_of_later_batches() -> None:
    async def main() -> None:
        partition = (await started())[1]
        first, second = data(0, [b"a"]), data(0, [b"b"], sequence=1)
        guards = [
            partition.begin_verification(PRODUCER, 0, each.base_sequence, supports_epoch_bump=False)
            for each in (first, second)
        ]
        assert guards[0] is guards[1] is not None
        partition.end_verification(guards[0], first, NotEnoughReplicasError("no coordinator"))
        with pytest.raises(NotEnoughReplicasError):
            await partition.append([second], verification=guards[1])
        await write(partition, data(0, [b"a"]))
        await write(partition, data(0, [b"b"], sequence=1))
        assert partition.log.end_offset == 2

    run(main())


def test_a_verification_does_not_outlast_the_leader() -> None:
    async def main() -> None:
        both = await started(1, 2)
        guard = both[1].begin_verification(PRODUCER, 0, 0, supports_epoch_bump=True)
        await both.begin(2)
        await both.begin(1)
        with pytest.raises(InvalidTransactionStateError):
            await both[1].append([data(0, [b"a"])], verification=guard)

    run(main())


def test_only_leaders_verify_and_append_markers() -> None:
    async def main() -> None:
        both = await started(1, 2)
        with pytest.raises(NotLeaderOrFollowerError):
            both[2].begin_verification(PRODUCER, 0, 0, supports_epoch_bump=True)
        with pytest.raises(NotLeaderOrFollowerError):
            await end(both[2], ABORT)
        both.leases[1].valid = False
        with pytest.raises(NotLeaderOrFollowerError):
            await end(both[1], ABORT)

    run(main())


def test_markers_are_checked_by_epoch() -> None:
    async def main() -> None:
        partition = (await started())[1]
        await write(partition, data(0, [b"a"], epoch=3))
        for epoch, version in ((2, TV1), (2, TV2), (3, TV2)):
            with pytest.raises(InvalidProducerEpochError):
                await end(partition, ABORT, epoch=epoch, version=version)
        appended = await end(partition, EndTransaction(False, 5), epoch=4, version=TV2)
        assert (appended.base_offset, appended.next_offset) == (1, 2)
        await end(partition, EndTransaction(False, 5), epoch=4, version=TV2)
        with pytest.raises(TransactionCoordinatorFencedError):
            await end(partition, EndTransaction(False, 4), epoch=4, version=TV2)
        assert partition.log.end_offset == 3

    run(main())


def test_followers_accept_every_marker_of_the_leader() -> None:
    async def main() -> None:
        both = await started(1, 2)
        await write(both[1], data(0, [b"a"], epoch=3))
        await end(both[1], EndTransaction(False, 9), epoch=4, version=TV2)
        both.log(1).producers.rebuild(None, ())
        await end(both[1], EndTransaction(False, 1), epoch=1, version=TV2)
        await both.replicate(2)
        state = both.log(2).producers.get(PRODUCER)
        assert state is not None
        assert (state.epoch, state.coordinator_epoch) == (1, 1)

    run(main())


def test_offsets_by_time_end_at_the_last_stable_offset() -> None:
    async def main() -> None:
        partition = (await started())[1]
        await write(partition, data(0, [b"a"], timestamp_ms=5_000))
        await partition.wait_for_flush()
        assert partition.latest_offset() == 1
        assert partition.latest_offset(committed_only=True) == 0
        assert await partition.offset_for_timestamp(1) is not None
        assert await partition.offset_for_timestamp(1, committed_only=True) is None
        assert await partition.max_timestamp() is not None
        assert await partition.max_timestamp(committed_only=True) is None

    run(main())
