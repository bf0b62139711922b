"""When a new snapshot of the metadata is due: after so many bytes of records, or after so long a time. Pure."""

from dataclasses import dataclass


@dataclass(slots=True)
class SnapshotPolicy:
    bytes_max: int
    """Of records since the last snapshot."""
    interval_ms: int
    """Since the last snapshot, where anything has changed; 0 sets no limit."""
    begun_ms: int
    """When counting began: at the start, or with the last snapshot."""
    bytes_counted: int = 0
    """Of records from the beginning of counting on."""

    def note(self, count: int) -> None:
        """So many bytes of records were committed."""
        self.bytes_counted += count

    def is_due(self, now_ms: int) -> bool:
        if self.bytes_counted >= self.bytes_max:
            return True
        return self.bytes_counted > 0 and 0 < self.interval_ms <= now_ms - self.begun_ms

    def taken(self, now_ms: int) -> None:
        """A snapshot of all that was noted is being made."""
        self.begun_ms = now_ms
        self.bytes_counted = 0
