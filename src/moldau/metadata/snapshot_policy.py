"""When a new snapshot of the metadata is due: after so many bytes of records, or after so long a time. Pure."""

from dataclasses import dataclass


@dataclass(slots=True)
class SnapshotPolicy:
    bytes_max: int
    """Of records since the last snapshot."""
    interval_ms: int
    """Since the last snapshot, where anything has changed; 0 sets no limit."""
    started_ms: int
    """When counting began: at the start, or with the last snapshot."""
    counted_bytes: int = 0
    """Of records from the beginning of counting on."""

    def add_bytes(self, count: int) -> None:
        """So many bytes of records were committed."""
        self.counted_bytes += count

    def is_due(self, now_ms: int) -> bool:
        if self.counted_bytes >= self.bytes_max:
            return True
        return self.counted_bytes > 0 and 0 < self.interval_ms <= now_ms - self.started_ms

    def restart(self, now_ms: int) -> None:
        """A snapshot of all that was noted is being made."""
        self.started_ms = now_ms
        self.counted_bytes = 0
