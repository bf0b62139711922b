"""Reads a replica's log from beginning to end, past everything that clients would go through."""

from moldau.logs.store import Log
from moldau.records.batch import LOG_OVERHEAD, Batch
from moldau.records.record import iterate_records
from moldau.testing.simulation.checkers.history_cluster import LogContent

READ_BYTES = 1 << 20


async def read_replica(log: Log) -> LogContent:
    """Offsets and values of all records, whether committed or not."""
    found: list[tuple[int, bytes]] = []
    position, end = log.start_offset, log.end_offset
    while position < end:
        data = memoryview((await log.read(position, READ_BYTES, end)).read())
        invoked_at = position
        while len(data) > LOG_OVERHEAD:
            size = int.from_bytes(data[8:12], "big", signed=True) + LOG_OVERHEAD
            if size > len(data):
                break
            batch = Batch(data[:size])
            if not batch.has_valid_checksum():
                raise AssertionError(f"{log.name} holds {batch!r} with a wrong checksum")
            if not batch.is_control:
                found.extend((record.offset, record.value or b"") for record in iterate_records(batch))
            position = batch.next_offset
            data = data[size:]
        if position == invoked_at:
            raise AssertionError(f"nothing at {position} of {log.name}, where {end} is the end")
    return found
