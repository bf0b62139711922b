"""The quorum on a log: what is kept, in which order it is kept, and what a failing disk does."""

import asyncio
import random
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest

from moldau.errors import NotControllerError, StorageError
from moldau.raft.batches import CommittedBatch
from moldau.raft.driver import RaftClient
from moldau.raft.epoch_state import ElectionState
from moldau.raft.messages import SnapshotId, VoterNode
from moldau.raft.quorum_state_store import MemoryQuorumStateStore, QuorumStateStore
from moldau.raft.snapshot_format import SnapshotContents
from moldau.raft.snapshot_store import MemorySnapshotStore
from moldau.records.batch import Batch
from support.control_plane import DIRECTORY, FixedClock, NoPeers, TestLog


class OnlyVoter:
    def __init__(
        self,
        log: TestLog,
        elections: QuorumStateStore | None = None,
        snapshots: MemorySnapshotStore | None = None,
    ) -> None:
        self.committed: list[CommittedBatch] = []
        self.calls: list[int] = []
        self.failures: list[BaseException] = []
        self.quorum = RaftClient(
            1,
            DIRECTORY,
            log,
            elections or MemoryQuorumStateStore(),
            FixedClock(),
            random.Random(1),
            initial_voters=[VoterNode(1)],
            channel=NoPeers(),
            snapshots=snapshots,
            on_commit=self._commit,
            on_fatal=self.failures.append,
        )

    def _commit(self, batches: Sequence[CommittedBatch]) -> None:
        self.calls.append(len(batches))
        self.committed += batches

    @property
    def values(self) -> list[bytes]:
        return [value for batch in self.committed for value in batch.values]


async def settle() -> None:
    for _ in range(40):
        await asyncio.sleep(0)


def both_kinds_of_log(story: Callable[[TestLog], Coroutine[Any, Any, None]]) -> None:
    for awaits in (False, True):
        asyncio.run(story(TestLog(awaits=awaits)))


def test_appended_values_are_handed_on_once_and_in_order_when_they_are_durable() -> None:
    async def story(log: TestLog) -> None:
        voter = OnlyVoter(log)
        await voter.quorum.start()
        assert await voter.quorum.append([b"a", b"b"]) == 4
        assert await voter.quorum.append([b"c"]) == 5
        await settle()
        assert voter.committed == [
            CommittedBatch(0, 2, 1, leader_id=1),
            CommittedBatch(3, 4, 1, (b"a", b"b")),
            CommittedBatch(5, 5, 1, (b"c",)),
        ]
        assert voter.quorum.high_watermark == 6

    both_kinds_of_log(story)


def test_nothing_is_handed_on_before_it_is_durable() -> None:
    async def story(log: TestLog) -> None:
        voter = OnlyVoter(log)
        await voter.quorum.start()
        await settle()
        log.sync_gate = asyncio.Event()
        await voter.quorum.append([b"a"])
        await settle()
        assert voter.values == []
        log.sync_gate.set()
        await settle()
        assert voter.values == [b"a"]

    both_kinds_of_log(story)


def test_appends_that_come_while_a_sync_runs_share_the_next_one() -> None:
    async def story(log: TestLog) -> None:
        voter = OnlyVoter(log)
        await voter.quorum.start()
        await settle()
        log.sync_gate = asyncio.Event()
        await voter.quorum.append([b"0"])
        await settle()
        syncs = log.syncs
        for number in range(1, 51):
            await voter.quorum.append([b"%d" % number])
        log.sync_gate.set()
        await settle()
        assert len(voter.values) == 51
        assert log.syncs == syncs + 2

    both_kinds_of_log(story)


def test_appends_at_the_same_time_become_batches_one_after_the_other() -> None:
    async def story(log: TestLog) -> None:
        voter = OnlyVoter(log)
        await voter.quorum.start()
        offsets = await asyncio.gather(*(voter.quorum.append([b"%d" % n, b"x"]) for n in range(10)))
        assert offsets == [4 + 2 * n for n in range(10)]
        await settle()
        assert voter.values == [value for n in range(10) for value in (b"%d" % n, b"x")]

    both_kinds_of_log(story)


def test_a_restart_begins_a_new_epoch_and_hands_on_the_whole_log_at_once() -> None:
    async def story(log: TestLog) -> None:
        elections = MemoryQuorumStateStore()
        first = OnlyVoter(log, elections)
        await first.quorum.start()
        await first.quorum.append([b"a"])
        await first.quorum.append([b"b"])
        await first.quorum.close()
        second = OnlyVoter(log, elections)
        await second.quorum.start()
        await settle()
        assert second.values == [b"a", b"b"]
        assert second.calls == [4]
        assert second.committed[-1] == CommittedBatch(5, 5, 2, leader_id=1)
        assert elections.load() == ElectionState(2, 1, 1, DIRECTORY)

    both_kinds_of_log(story)


def test_a_log_larger_than_one_read_is_handed_on_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("moldau.raft.commit_delivery.READ_BYTES_MAX", 200)

    async def story(log: TestLog) -> None:
        elections = MemoryQuorumStateStore()
        first = OnlyVoter(log, elections)
        await first.quorum.start()
        values = [b"%d" % number * 50 for number in range(20)]
        for value in values:
            await first.quorum.append([value])
        await first.quorum.close()
        second = OnlyVoter(log, elections)
        await second.quorum.start()
        await settle()
        await second.quorum.close()
        assert second.values == values
        assert len(second.calls) == 1

    both_kinds_of_log(story)


def test_the_vote_is_on_disk_before_the_log_gets_the_first_record_of_the_epoch() -> None:
    order: list[str] = []

    class Watched(MemoryQuorumStateStore):
        async def save(self, election: ElectionState) -> None:
            await asyncio.sleep(0)
            await super().save(election)
            order.append(f"epoch {election.epoch} leader {election.leader_id} voted {election.voted_for}")

    class WatchedLog(TestLog):
        async def append(self, batches: Sequence[Batch]) -> None:
            order.append("append")
            await super().append(batches)

    async def story() -> None:
        voter = OnlyVoter(WatchedLog(), Watched())
        await voter.quorum.start()
        await voter.quorum.close()

    asyncio.run(story())
    assert order == ["epoch 1 leader 1 voted 1", "append"]


def test_a_vote_that_cannot_be_kept_keeps_the_node_from_starting() -> None:
    class Failing(MemoryQuorumStateStore):
        async def save(self, election: ElectionState) -> None:
            raise StorageError("quorum-state cannot be written")

    async def story() -> None:
        log = TestLog()
        voter = OnlyVoter(log, Failing())
        with pytest.raises(StorageError):
            await voter.quorum.start()
        assert log.end_offset == 0

    asyncio.run(story())


def test_a_failing_sync_is_fatal_once_and_refuses_everything_after() -> None:
    async def story(log: TestLog) -> None:
        voter = OnlyVoter(log)
        await voter.quorum.start()
        await settle()
        log.sync_error = StorageError("EIO")
        await voter.quorum.append([b"a"])
        await settle()
        assert voter.failures == [log.sync_error]
        log.sync_error = None
        with pytest.raises(StorageError):
            await voter.quorum.append([b"b"])
        await settle()
        assert voter.values == []
        assert not voter.quorum.is_leader
        assert len(voter.failures) == 1

    both_kinds_of_log(story)


def test_a_failing_append_is_fatal_but_a_full_disk_is_not() -> None:
    async def story(log: TestLog) -> None:
        voter = OnlyVoter(log)
        await voter.quorum.start()
        log.append_error = StorageError("full")
        with pytest.raises(StorageError, match="full"):
            await voter.quorum.append([b"a"])
        assert voter.failures == []
        log.append_error = None
        await voter.quorum.append([b"b"])
        await settle()
        assert voter.values == [b"b"]
        log.append_error = StorageError("dead")
        log.offline = "the disk is gone"
        with pytest.raises(StorageError, match="dead"):
            await voter.quorum.append([b"c"])
        assert voter.failures == [log.append_error]

    both_kinds_of_log(story)


def test_a_log_with_a_flipped_bit_keeps_the_node_from_starting() -> None:
    async def story() -> None:
        log = TestLog()
        elections = MemoryQuorumStateStore()
        first = OnlyVoter(log, elections)
        await first.quorum.start()
        await first.quorum.append([b"value"])
        await first.quorum.close()
        damaged = bytearray(log._batches[1])
        damaged[-3] ^= 1
        log._batches[1] = bytes(damaged)
        second = OnlyVoter(log, elections)
        with pytest.raises(StorageError, match=r"checksum .* Restore it from a backup"):
            await second.quorum.start()
        await second.quorum.close()
        assert second.committed == []
        assert elections.load().epoch == 1

    asyncio.run(story())


def test_only_a_leader_appends() -> None:
    async def story() -> None:
        with pytest.raises(NotControllerError):
            await OnlyVoter(TestLog()).quorum.append([b"a"])

    asyncio.run(story())


@pytest.mark.parametrize("kept", [ElectionState(), ElectionState(1, 1, 1)])
def test_a_quorum_state_that_is_missing_or_older_than_the_log_keeps_the_node_from_starting(
    kept: ElectionState,
) -> None:
    """It could vote a second time in an epoch, or begin one that its log has passed."""

    async def story(log: TestLog) -> None:
        elections = MemoryQuorumStateStore()
        for _ in range(2):
            voter = OnlyVoter(log, elections)
            await voter.quorum.start()
            await voter.quorum.close()
        await elections.save(kept)
        end_offset = log.end_offset
        with pytest.raises(
            StorageError, match=r"quorum-state .* epoch 2: without it this node could vote twice"
        ):
            await OnlyVoter(log, elections).quorum.start()
        assert log.end_offset == end_offset

    both_kinds_of_log(story)


def test_a_snapshot_without_its_quorum_state_keeps_the_node_from_starting() -> None:
    async def story(log: TestLog) -> None:
        snapshots = MemorySnapshotStore()
        await snapshots.store(SnapshotContents(SnapshotId(7, 3), (VoterNode(1, DIRECTORY),), (), 0))
        voter = OnlyVoter(log, snapshots=snapshots)
        with pytest.raises(StorageError, match="quorum-state is missing"):
            await voter.quorum.start()

    both_kinds_of_log(story)
