"""The storage of a node: its logs and its small files."""

from collections.abc import Callable

from moldau.logs.store import LogStore
from moldau.platform import Platform
from moldau.platform.disk import SmallFiles
from moldau.settings.broker import BrokerSettings


class Storage:
    """Logs and small files on the disk of the platform, or in memory."""

    def __init__(self, logs: LogStore, files: SmallFiles) -> None:
        self.logs = logs
        self._files = files

    async def start(self) -> SmallFiles:
        """Finds the existing logs and returns the small files."""
        await self.logs.start()
        return self._files

    def watch(self, *, on_unavailable: Callable[[], None], on_failure: Callable[[BaseException], None]) -> None:
        """Starts to call `on_unavailable` again and again while nothing can be stored, and `on_failure` when the
        storage can never be used again. A disk reports its errors with each operation instead."""

    def begin_close(self) -> None:
        """Called when the node starts to stop. From then on, storage that does not respond delays it only shortly."""

    async def close(self, broker_epoch: int) -> None:
        """Closes all logs and records a clean shutdown in this broker epoch."""
        await self.logs.close(broker_epoch)


def make_storage(platform: Platform, settings: BrokerSettings) -> Storage:
    # Import only the store that is used, so that a broker starts sooner.
    producer_expiration_ms = settings.producer_id_expiration_ms
    if settings.store == "memory":
        from moldau.logs.memory import MemoryLogStore

        return Storage(MemoryLogStore(producer_expiration_ms), platform.disk)
    if settings.uses_postgres:
        from moldau.node.postgres_storage import make_postgres_storage

        return make_postgres_storage(platform, settings)
    from moldau.logs.files.store import FileLogStore

    logs = FileLogStore(platform.disk, settings.data_dir, platform.clock, producer_expiration_ms=producer_expiration_ms)
    return Storage(logs, platform.disk)
