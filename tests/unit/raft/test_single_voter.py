"""The Raft client of a single voter: order of writes, delivery of commits, failing disks."""

import asyncio
import random
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest

from moldau.errors import NotControllerError, StorageError
from moldau.raft.batches import CommittedBatch
from moldau.raft.epoch_roles import ElectionState
from moldau.raft.messages import SnapshotId, VoterNode
from moldau.raft.quorum_state_store import MemoryQuorumStateStore, QuorumStateStore
from moldau.raft.raft_client import RaftClient
from moldau.raft.snapshot_format import SnapshotContents
from moldau.raft.snapshot_store import MemorySnapshotStore
from moldau.records.batch import Batch
from support.control_plane import DIRECTORY, FixedClock, NoPeers, TestLog


class SingleVoter:
    def __init__(
        self, log: TestLog, elections: QuorumStateStore | None = None, snapshots: MemorySnapshotStore | None = None
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
            snapshots=snapshots or MemorySnapshotStore(),
            on_commit=self._commit,
            on_fatal=self.failures.append,
        )

    def _commit(self, batches: Sequence[CommittedBatch]) -> None:
        self.calls.append(len(batches))
        self.committed += batches

    @property
    def values(self) -> list[bytes]:
        return [value for batch in self.committed for value in batch.values]


async def run_pending_tasks() -> None:
    for _ in range(40):
        await asyncio.sleep(0)


def run_with_both_logs(scenario: Callable[[TestLog], Coroutine[Any, Any, None]]) -> None:
    for awaits in (False, True):
        asyncio.run(scenario(TestLog(awaits=awaits)))


def test_appended_values_are_delivered_once_and_in_order_when_durable() -> None:
    async def scenario(log: TestLog) -> None:
        voter = SingleVoter(log)
        await voter.quorum.start()
        assert await voter.quorum.append([b"a", b"b"]) == 4
        assert await voter.quorum.append([b"c"]) == 5
        await run_pending_tasks()
        assert voter.committed == [
            CommittedBatch(0, 2, 1, leader_id=1),
            CommittedBatch(3, 4, 1, (b"a", b"b")),
            CommittedBatch(5, 5, 1, (b"c",)),
        ]
        assert voter.quorum.high_watermark == 6

    run_with_both_logs(scenario)


def test_nothing_is_delivered_before_it_is_durable() -> None:
    async def scenario(log: TestLog) -> None:
        voter = SingleVoter(log)
        await voter.quorum.start()
        await run_pending_tasks()
        log.sync_gate = asyncio.Event()
        await voter.quorum.append([b"a"])
        await run_pending_tasks()
        assert voter.values == []
        log.sync_gate.set()
        await run_pending_tasks()
        assert voter.values == [b"a"]

    run_with_both_logs(scenario)


def test_appends_during_a_flush_share_the_next_flush() -> None:
    async def scenario(log: TestLog) -> None:
        voter = SingleVoter(log)
        await voter.quorum.start()
        await run_pending_tasks()
        log.sync_gate = asyncio.Event()
        await voter.quorum.append([b"0"])
        await run_pending_tasks()
        syncs = log.syncs
        for number in range(1, 51):
            await voter.quorum.append([b"%d" % number])
        log.sync_gate.set()
        await run_pending_tasks()
        assert len(voter.values) == 51
        assert log.syncs == syncs + 2

    run_with_both_logs(scenario)


def test_concurrent_appends_become_consecutive_batches() -> None:
    async def scenario(log: TestLog) -> None:
        voter = SingleVoter(log)
        await voter.quorum.start()
        offsets = await asyncio.gather(*(voter.quorum.append([b"%d" % n, b"x"]) for n in range(10)))
        assert offsets == [4 + 2 * n for n in range(10)]
        await run_pending_tasks()
        assert voter.values == [value for n in range(10) for value in (b"%d" % n, b"x")]

    run_with_both_logs(scenario)


def test_a_restart_starts_a_new_epoch_and_delivers_the_whole_log_at_once() -> None:
    async def scenario(log: TestLog) -> None:
        elections = MemoryQuorumStateStore()
        first = SingleVoter(log, elections)
        await first.quorum.start()
        await first.quorum.append([b"a"])
        await first.quorum.append([b"b"])
        await first.quorum.close()
        second = SingleVoter(log, elections)
        await second.quorum.start()
        await run_pending_tasks()
        assert second.values == [b"a", b"b"]
        assert second.calls == [4]
        assert second.committed[-1] == CommittedBatch(5, 5, 2, leader_id=1)
        assert elections.load() == ElectionState(2, 1, 1, DIRECTORY)

    run_with_both_logs(scenario)


def test_a_log_larger_than_one_read_is_delivered_completely(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("moldau.raft.log_reader.READ_BYTES_MAX", 200)

    async def scenario(log: TestLog) -> None:
        elections = MemoryQuorumStateStore()
        first = SingleVoter(log, elections)
        await first.quorum.start()
        values = [b"%d" % number * 50 for number in range(20)]
        for value in values:
            await first.quorum.append([value])
        await first.quorum.close()
        second = SingleVoter(log, elections)
        await second.quorum.start()
        await run_pending_tasks()
        await second.quorum.close()
        assert second.values == values
        assert len(second.calls) == 1

    run_with_both_logs(scenario)


def test_the_vote_is_durable_before_the_first_record_of_the_epoch() -> None:
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

    async def scenario() -> None:
        voter = SingleVoter(WatchedLog(), Watched())
        await voter.quorum.start()
        await voter.quorum.close()

    asyncio.run(scenario())
    assert order == ["epoch 1 leader 1 voted 1", "append"]


def test_a_vote_that_cannot_be_persisted_prevents_the_start() -> None:
    class Failing(MemoryQuorumStateStore):
        async def save(self, election: ElectionState) -> None:
            raise StorageError("quorum-state cannot be written")

    async def scenario() -> None:
        log = TestLog()
        voter = SingleVoter(log, Failing())
        with pytest.raises(StorageError):
            await voter.quorum.start()
        assert log.end_offset == 0

    asyncio.run(scenario())


def test_a_failed_flush_is_fatal_once_and_later_calls_raise() -> None:
    async def scenario(log: TestLog) -> None:
        voter = SingleVoter(log)
        await voter.quorum.start()
        await run_pending_tasks()
        log.sync_error = StorageError("EIO")
        await voter.quorum.append([b"a"])
        await run_pending_tasks()
        assert voter.failures == [log.sync_error]
        log.sync_error = None
        with pytest.raises(StorageError):
            await voter.quorum.append([b"b"])
        await run_pending_tasks()
        assert voter.values == []
        assert not voter.quorum.is_leader
        assert len(voter.failures) == 1

    run_with_both_logs(scenario)


def test_a_failed_append_is_fatal_but_a_full_disk_is_not() -> None:
    async def scenario(log: TestLog) -> None:
        voter = SingleVoter(log)
        await voter.quorum.start()
        log.append_error = StorageError("full")
        with pytest.raises(StorageError, match="full"):
            await voter.quorum.append([b"a"])
        assert voter.failures == []
        log.append_error = None
        await voter.quorum.append([b"b"])
        await run_pending_tasks()
        assert voter.values == [b"b"]
        log.append_error = StorageError("dead")
        log.offline = "the disk failed"
        with pytest.raises(StorageError, match="dead"):
            await voter.quorum.append([b"c"])
        assert voter.failures == [log.append_error]

    run_with_both_logs(scenario)


def test_a_log_with_a_flipped_bit_prevents_the_start() -> None:
    async def scenario() -> None:
        log = TestLog()
        elections = MemoryQuorumStateStore()
        first = SingleVoter(log, elections)
        await first.quorum.start()
        await first.quorum.append([b"value"])
        await first.quorum.close()
        damaged = bytearray(log._batches[1])
        damaged[-3] ^= 1
        log._batches[1] = bytes(damaged)
        second = SingleVoter(log, elections)
        with pytest.raises(StorageError, match=r"checksum .* Restore it from a backup"):
            await second.quorum.start()
        await second.quorum.close()
        assert second.committed == []
        assert elections.load().epoch == 1

    asyncio.run(scenario())


def test_only_the_leader_can_append() -> None:
    async def scenario() -> None:
        with pytest.raises(NotControllerError):
            await SingleVoter(TestLog()).quorum.append([b"a"])

    asyncio.run(scenario())


@pytest.mark.parametrize("kept", [ElectionState(), ElectionState(1, 1, 1)])
def test_a_missing_or_outdated_quorum_state_prevents_the_start(kept: ElectionState) -> None:
    """The node could vote twice in an epoch, or start an epoch that its log already has."""

    async def scenario(log: TestLog) -> None:
        elections = MemoryQuorumStateStore()
        for _ in range(2):
            voter = SingleVoter(log, elections)
            await voter.quorum.start()
            await voter.quorum.close()
        await elections.save(kept)
        end_offset = log.end_offset
        with pytest.raises(StorageError, match=r"quorum-state .* epoch 2: without it this node could vote twice"):
            await SingleVoter(log, elections).quorum.start()
        assert log.end_offset == end_offset

    run_with_both_logs(scenario)


def test_a_snapshot_without_its_quorum_state_prevents_the_start() -> None:
    async def scenario(log: TestLog) -> None:
        snapshots = MemorySnapshotStore()
        await snapshots.store(SnapshotContents(SnapshotId(7, 3), (VoterNode(1, DIRECTORY),), (), 0))
        voter = SingleVoter(log, snapshots=snapshots)
        with pytest.raises(StorageError, match="quorum-state is missing"):
            await voter.quorum.start()

    run_with_both_logs(scenario)
