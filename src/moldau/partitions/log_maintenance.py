"""Periodic maintenance of all logs: retention, compaction, high watermark checkpoints, retries after a full disk, and
warnings about transactions that do not end."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from moldau.errors import MoldauError, StorageError
from moldau.observe.logging import get_logger
from moldau.partitions.overdue_transactions import OverdueTransactions
from moldau.partitions.partition import Partition
from moldau.partitions.replica_manager import ReplicaManager
from moldau.platform.clock import Clock
from moldau.settings.effective import EffectiveSettings

log = get_logger(__name__)

HIGH_WATERMARK_CHECKPOINT_MS = 5_000
DISK_SPACE_CHECK_MS = 5_000
TRANSACTION_CHECK_MS = 60_000
LOGGED_PARTITIONS_MAX = 5


class LogMaintenance:
    def __init__(self, partitions: ReplicaManager, settings: EffectiveSettings, clock: Clock) -> None:
        self._partitions = partitions
        self._settings = settings
        self._clock = clock
        self._tasks: list[asyncio.Task[None]] = []
        self._was_full = False
        """Whether the last check found the disk full."""
        self._overdue_transactions = OverdueTransactions()

    def start(self) -> None:
        settings = self._settings
        rounds: Sequence[tuple[Callable[[], int], Callable[[], Awaitable[None]]]] = (
            (lambda: settings.broker.log_retention_check_interval_ms, self.run_retention),
            (lambda: settings.broker.log_cleaner_backoff_ms, self.run_compaction),
            (lambda: HIGH_WATERMARK_CHECKPOINT_MS, self.checkpoint_high_watermarks),
            (lambda: DISK_SPACE_CHECK_MS, self.check_disk_space),
            (lambda: TRANSACTION_CHECK_MS, self.check_transactions),
        )
        self._tasks = [asyncio.create_task(self._repeat(*each)) for each in rounds]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _repeat(self, interval_ms: Callable[[], int], work: Callable[[], Awaitable[None]]) -> None:
        while True:
            await asyncio.sleep(interval_ms() / 1000)
            try:
                await work()
            except Exception:
                # A bug must not stop the maintenance.
                log.exception("a round of log maintenance failed")

    async def run_retention(self) -> None:
        await self._partitions.retry_offline_logs()
        await self._for_each_partition(Partition.apply_retention)

    async def run_compaction(self) -> None:
        if self._settings.broker.log_cleaner_enable:
            await self._for_each_partition(Partition.compact)

    async def checkpoint_high_watermarks(self) -> None:
        try:
            await self._partitions.checkpoint_high_watermarks()
        except StorageError as error:
            log.warning("high watermarks were not checkpointed", reason=str(error))

    async def check_disk_space(self) -> None:
        was_full, self._was_full = self._was_full, False
        if not self._partitions.has_errors:
            return
        if self._partitions.probe_disk_space():
            await self._partitions.retry_offline_logs(transient_only=True)
            return
        self._was_full = True
        if not was_full:
            # Apply retention only once while the disk is full. Without appends, few more records expire before the
            # next regular round.
            await self._for_each_partition(Partition.apply_retention)

    async def check_transactions(self) -> None:
        """Logs the transactions that are open for longer than the maximum timeout. Their coordinator is unavailable, or
        does not know them."""
        first_open = {
            partition.name: found
            for partition in self._partitions
            if partition.is_leader and (found := partition.log.producers.unstable.first_open) is not None
        }
        timeout_max_ms = self._settings.static.transaction_max_timeout_ms
        for each in self._overdue_transactions.update(self._clock.monotonic_ms(), first_open, timeout_max_ms):
            names = ", ".join(map(str, each.partitions[:LOGGED_PARTITIONS_MAX]))
            more = len(each.partitions) - LOGGED_PARTITIONS_MAX
            log.warning(
                "a transaction that does not end holds back consumers with read_committed: run "
                "`moldau transaction hanging` to see and end it",
                producer_id=each.producer_id,
                partitions=f"{names} and {more} more" if more > 0 else names,
                open_min=each.open_ms // 60_000,
            )
        self._partitions.late_transaction_count = self._overdue_transactions.partition_count

    async def _for_each_partition(self, work: Callable[[Partition, int], Awaitable[object]]) -> None:
        """Calls `work` with each online partition and the current time. Continues after an error."""
        for partition in self._partitions:
            if partition.failure is None:
                try:
                    await work(partition, self._clock.wall_ms())
                except MoldauError as error:
                    log.warning("log maintenance skipped a partition", partition=str(partition.name), reason=str(error))
                except Exception:
                    log.exception("log maintenance failed on a partition", partition=str(partition.name))
