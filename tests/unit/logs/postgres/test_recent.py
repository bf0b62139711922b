"""The recent batches of logs: which are in memory, which are evicted, and how much memory they take."""

import random

from moldau.logs.postgres.recent import BATCH_OVERHEAD, RecentBatches, RecentBytes
from support.logs import batch_at

SIZE = batch_at(0, [b"x"]).size + BATCH_OVERHEAD


def appended(recent: RecentBatches, *offsets: int) -> None:
    for offset in offsets:
        recent.append(batch_at(offset, [b"x"]))


def offsets_of(recent: RecentBatches) -> list[int]:
    return [batch.base_offset for batch in recent.overlapping(0, 2**62)]


def test_only_committed_batches_are_evicted_and_the_oldest_first() -> None:
    memory = RecentBytes(2 * SIZE)
    first, second = RecentBatches(0, memory), RecentBatches(10, memory)
    appended(first, 0, 1)
    appended(second, 10, 11)
    appended(first, 2)
    memory.evict()
    assert (memory.size, memory.uncommitted) == (5 * SIZE, 5 * SIZE)
    second.set_committed(12)
    memory.evict()
    assert offsets_of(second) == [10, 11], "an older batch of the other log is not committed"
    first.set_committed(2)
    memory.evict()
    assert (offsets_of(first), offsets_of(second)) == ([2], [11])
    assert (first.start, second.start) == (2, 11)
    assert (memory.size, memory.uncommitted) == (2 * SIZE, SIZE)


def test_a_truncation_frees_the_memory_of_its_batches() -> None:
    memory = RecentBytes(100 * SIZE)
    recent = RecentBatches(0, memory)
    appended(recent, *range(6))
    recent.set_committed(3)
    recent.truncate(4, 4)
    assert (memory.size, memory.uncommitted) == (4 * SIZE, SIZE)
    assert (recent.start, recent.committed_offset) == (0, 3)
    recent.truncate(2, 2)
    assert (memory.size, memory.uncommitted) == (2 * SIZE, 0)
    assert recent.committed_offset == 2
    appended(recent, 2)
    assert offsets_of(recent) == [0, 1, 2]
    assert memory.uncommitted == SIZE
    recent.reset(7)
    assert (memory.size, memory.uncommitted, recent.start) == (0, 0, 7)


def test_logs_that_remove_their_batches_leave_nothing_behind() -> None:
    """Also while an older batch of another log stays in memory."""
    memory = RecentBytes(100 * SIZE)
    first, second = RecentBatches(0, memory), RecentBatches(0, memory)
    appended(first, 0)
    first.set_committed(1)
    for offset in range(5_000):
        appended(second, offset)
        second.set_committed(offset + 1)
        memory.evict()
        if offset % 10 == 9:
            second.evict_committed()
    assert memory.size == SIZE
    assert len(memory._owners) < 1_100
    appended(second, *range(5_000, 5_100))
    second.set_committed(5_100)
    memory.evict()
    assert (len(first), len(second), memory.size) == (0, 100, 100 * SIZE)


def test_batches_are_found_by_their_last_offset() -> None:
    recent = RecentBatches(0, RecentBytes(2**30))
    for offset in (0, 3, 10):
        recent.append(batch_at(offset, [b"a", b"b", b"c"]))
    assert [batch.base_offset for batch in recent.overlapping(2, 13)] == [0, 3, 10]
    assert [batch.base_offset for batch in recent.overlapping(3, 12)] == [3]
    assert [batch.base_offset for batch in recent.overlapping(6, 13)] == [10]
    assert [batch.base_offset for batch in recent.from_offset(3, 1)] == [3]
    assert [batch.base_offset for batch in recent.from_offset(3, 10_000)] == [3, 10]
    assert recent.from_offset(13, 1) == []
    assert [recent.end_below(offset) for offset in (2, 3, 5, 6, 9, 13)] == [None, 3, 3, 6, 6, 13]


def test_memory_is_counted_right_after_any_operations() -> None:
    for seed in range(200):
        rng = random.Random(seed)
        memory = RecentBytes(rng.choice([0, 3 * SIZE, 20 * SIZE]))
        logs = [RecentBatches(0, memory) for _ in range(3)]
        ends = [0, 0, 0]
        for _ in range(100):
            number = rng.randrange(3)
            recent = logs[number]
            choice = rng.random()
            if choice < 0.5:
                appended(recent, ends[number])
                ends[number] += 1
            elif choice < 0.8:
                recent.set_committed(rng.randint(recent.committed_offset, ends[number]))
            elif choice < 0.9:
                ends[number] = rng.randint(0, ends[number])
                recent.truncate(ends[number], ends[number])
            elif choice < 0.95:
                recent.evict_before(rng.randint(0, ends[number]))
            else:
                recent.evict_committed()
            memory.evict()
            kept = [(each, offset) for each in logs for offset in offsets_of(each)]
            uncommitted = [offset for each, offset in kept if offset >= each.committed_offset]
            assert memory.size == len(kept) * SIZE
            assert memory.uncommitted == len(uncommitted) * SIZE
            for each, end in zip(logs, ends, strict=True):
                assert offsets_of(each) == list(range(each.start, end)), "all batches from the start on"
                assert each.start <= each.committed_offset
