"""Delivery of committed batches and snapshots to the metadata loader, each once and in order."""

from collections.abc import Callable, Sequence

from moldau.errors import CorruptRecordError
from moldau.logs.store import Log
from moldau.raft.batches import CommittedBatch, iterate_batches, read_committed_batch
from moldau.raft.messages import SnapshotId
from moldau.raft.snapshot_format import SnapshotContents

READ_BYTES_MAX = 8 * 1024 * 1024


class CommitDelivery:
    def __init__(
        self,
        log: Log,
        on_commit: Callable[[Sequence[CommittedBatch]], None],
        on_load_snapshot: Callable[[Sequence[bytes], SnapshotId, int], None],
    ) -> None:
        self._log = log
        self._on_commit = on_commit
        self._on_load_snapshot = on_load_snapshot
        self._pending_snapshot: SnapshotContents | None = None
        self.next_offset = log.start_offset

    def start_at(self, offset: int, snapshot: SnapshotContents | None) -> None:
        """Continues at `offset`. If there is a snapshot, it ends at `offset` and is delivered first."""
        self.next_offset = offset
        self._pending_snapshot = snapshot

    async def deliver(self, end_offset: int) -> None:
        """Delivers everything below `end_offset` that was not delivered before."""
        if end_offset < self.next_offset:
            return
        if self._pending_snapshot is not None:
            contents, self._pending_snapshot = self._pending_snapshot, None
            self._on_load_snapshot(contents.values, contents.id, contents.leader_id)
        committed: list[CommittedBatch] = []
        while self.next_offset < end_offset:
            from_offset = self.next_offset
            slices = await self._log.read(from_offset, READ_BYTES_MAX, end_offset)
            for batch in iterate_batches(slices.read()):
                committed.append(read_committed_batch(batch))
                self.next_offset = batch.next_offset
            if self.next_offset == from_offset:
                raise CorruptRecordError(f"the metadata log has no batch at {from_offset}, below {end_offset}")
        if committed:
            self._on_commit(committed)
