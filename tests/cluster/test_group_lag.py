"""Lag of groups under a known load, over failovers: records, seconds and rates are right to within one second."""

import asyncio
import time
from bisect import bisect_right
from collections.abc import Awaitable, Callable
from typing import NamedTuple

import pytest

from moldau.client import Admin, Consumer, Producer, TopicPartition
from moldau.client.admin.group_lag import GroupLagSample
from moldau.client.errors import KafkaError
from moldau.lag.state import WINDOW, LagState, PartitionLag
from moldau.testing import Cluster

LOAD = TopicPartition("load", 0)
PAYMENTS = TopicPartition("payments", 0)
OFFSETS_TOPIC = "__consumer_offsets"
PRODUCE_RATE = 50
SLOW_RATE, FAST_RATE = 20, 150
FAST_START = 75
TOLERANCE_MS = 1_000
TRANSACTION_RECORDS = 5
PATIENCE_S = 120


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class Change(NamedTuple):
    """A change of an offset: it happened in between these times."""

    sent_ms: int
    acked_ms: int
    offset: int


class Load:
    """Produces and commits at known rates, and knows afterwards what was true at any time."""

    def __init__(self, producer: Producer, admin: Admin) -> None:
        self._producer = producer
        self._admin = admin
        self.appended: dict[int, Change] = {}
        """By offset."""
        self.commits: dict[str, list[Change]] = {}

    @property
    def end(self) -> int:
        return max(self.appended, default=-1) + 1

    async def produce(self) -> None:
        next_s = time.monotonic()
        while True:
            sent_ms = now_ms()
            sent = await (await self._producer.send(LOAD.topic, b"v", partition=LOAD.partition))
            self.appended[sent.offset] = Change(sent_ms, now_ms(), sent.offset)
            # After a failover the rate is the same as before, not higher.
            next_s = max(next_s + 1 / PRODUCE_RATE, time.monotonic() - 0.1)
            await asyncio.sleep(max(0, next_s - time.monotonic()))

    async def commit(self, group: str, offset: Callable[[float], int]) -> None:
        """Commits `offset(seconds)`, limited to the end, five times a second."""
        start_s = time.monotonic()
        while True:
            await self.commit_once(group, LOAD, min(self.end, offset(time.monotonic() - start_s)))
            await asyncio.sleep(0.2)

    async def commit_once(self, group: str, partition: TopicPartition, offset: int) -> None:
        sent_ms = now_ms()
        results = await self._admin.alter_group_offsets(group, {partition: offset})
        error = results[partition]
        if isinstance(error, KafkaError):
            raise error
        self.commits.setdefault(group, []).append(Change(sent_ms, now_ms(), offset))

    # What is true

    def committed_near(self, group: str, at_ms: int) -> tuple[int, int]:
        """Returns the lowest and the highest offset that was committed within TOLERANCE_MS."""
        commits = self.commits[group]
        first = max(0, bisect_right([each.acked_ms for each in commits], at_ms - TOLERANCE_MS) - 1)
        last = bisect_right([each.sent_ms for each in commits], at_ms + TOLERANCE_MS)
        offsets = [each.offset for each in commits[first:last]]
        return min(offsets), max(offsets)

    def end_near(self, at_ms: int) -> tuple[int, int]:
        lowest = sum(each.acked_ms <= at_ms - TOLERANCE_MS for each in self.appended.values())
        highest = sum(each.sent_ms <= at_ms + TOLERANCE_MS for each in self.appended.values())
        return lowest, highest

    def produced(self, from_ms: float, to_ms: float) -> int:
        """Returns the number of records that were produced in this time. On a busy machine, the load is lower."""
        return sum(from_ms < each.acked_ms <= to_ms for each in self.appended.values())

    def check(self, group: str, lag: PartitionLag) -> int:
        """Returns by how many milliseconds the lag is wrong."""
        at_ms = lag.sampled_ms
        lowest, highest = self.committed_near(group, at_ms)
        assert lowest <= lag.committed_offset <= highest, (group, lag)
        lowest, highest = self.end_near(at_ms)
        assert lowest <= lag.high_watermark <= highest, (group, lag, lowest, highest)
        assert lag.lag_records == lag.high_watermark - lag.committed_offset
        assert lag.lag_ms is not None
        if not lag.lag_records:
            assert lag.lag_ms == 0
            return 0
        first_unread = self.appended[lag.committed_offset]
        error_ms = max(at_ms - first_unread.acked_ms - lag.lag_ms, lag.lag_ms - (at_ms - first_unread.sent_ms), 0)
        assert error_ms <= TOLERANCE_MS, (group, lag, first_unread)
        return error_ms


class Watcher:
    """Collects the samples of all groups."""

    def __init__(self, admin: Admin, groups: list[str], interval_ms: int) -> None:
        self._admin = admin
        self._groups = groups
        self.interval_ms = interval_ms
        self.samples: dict[str, list[PartitionLag]] = {group: [] for group in groups}

    async def run(self) -> None:
        while True:
            results = await self._admin.describe_group_lags(self._groups)
            for group, sample in results.items():
                if isinstance(sample, GroupLagSample):
                    for each in sample.partitions:
                        known = self.samples[group]
                        # The lag can be unknown during a failover.
                        is_known = each.lag.state is not LagState.UNKNOWN
                        if is_known and (not known or known[-1].sampled_ms < each.lag.sampled_ms):
                            known.append(each.lag)
            await asyncio.sleep(self.interval_ms / 2_000)

    async def wait_for(self, group: str, condition: Callable[[PartitionLag], bool]) -> PartitionLag:
        while not self.samples[group] or not condition(self.samples[group][-1]):
            await asyncio.sleep(0.05)
        return self.samples[group][-1]

    async def wait_for_full_window(self) -> None:
        """Waits until the rates of each group come only from samples after now."""
        later_ms = now_ms() + WINDOW * self.interval_ms
        for group in self._groups:
            await self.wait_for(group, lambda lag: lag.sampled_ms >= later_ms)


def check_rates(lag: PartitionLag, load: Load, commit_rate: float | None, interval_ms: int) -> None:
    """`commit_rate` is None for a group that commits what is produced."""
    assert lag.commit_rate is not None
    assert lag.produce_rate is not None
    # One second of the load is the tolerance of both ends of the window.
    window_s = (WINDOW - 1) * interval_ms / 1_000
    produced = load.produced(lag.sampled_ms - window_s * 1_000, lag.sampled_ms)
    assert abs(lag.produce_rate * window_s - produced) <= PRODUCE_RATE, (lag, produced)
    if commit_rate is None:
        assert abs(lag.commit_rate * window_s - produced) <= PRODUCE_RATE, (lag, produced)
    else:
        assert abs(lag.commit_rate - commit_rate) * window_s <= commit_rate, lag


async def fail_coordinator(cluster: Cluster) -> None:
    await restart_after_kill(cluster, cluster.leader_of(OFFSETS_TOPIC))


async def fail_leader(cluster: Cluster) -> None:
    await restart_after_kill(cluster, cluster.leader_of(LOAD.topic))


async def restart_after_kill(cluster: Cluster, node_id: int) -> None:
    await asyncio.to_thread(cluster.kill, node_id)
    await asyncio.sleep(1)
    await asyncio.to_thread(cluster.restart, node_id)


async def run_load(cluster: Cluster, failures: list[Callable[[Cluster], Awaitable[None]]], interval_ms: int) -> None:
    async with (
        asyncio.timeout(PATIENCE_S),
        asyncio.TaskGroup() as tasks,
        Admin(cluster.bootstrap) as admin,
        Producer(cluster.bootstrap, linger_ms=0) as producer,
        Producer(cluster.bootstrap, transactional_id="payer", transaction_timeout_ms=PATIENCE_S * 1_000) as payer,
    ):
        load = Load(producer, admin)
        running = [tasks.create_task(load.produce())]
        while load.end < FAST_START:
            await asyncio.sleep(0.05)
        running += [
            tasks.create_task(load.commit("stalled", lambda _: 20)),
            tasks.create_task(load.commit("slow", lambda seconds: 20 + int(SLOW_RATE * seconds))),
            tasks.create_task(load.commit("fast", lambda seconds: int(FAST_RATE * seconds))),
        ]
        # A transaction stays open above everything that is committed.
        async with payer.transaction():
            await payer.send(PAYMENTS.topic, b"paid", partition=0)
        settings = {"group_id": "committed", "auto_offset_reset": "earliest", "auto_commit_interval_ms": 100}
        reader = Consumer(cluster.bootstrap, isolation_level="read_committed", **settings)  # type: ignore[arg-type]
        async with reader:
            reader.subscribe([PAYMENTS.topic])
            assert (await anext(reader)).value == b"paid"
            await load.commit_once("uncommitted", PAYMENTS, 2)
            reading = tasks.create_task(anext_or_stop(reader))
            groups = ["stalled", "slow", "fast", "committed", "uncommitted"]
            watcher = Watcher(admin, groups, interval_ms)
            running.append(tasks.create_task(watcher.run()))
            await watcher.wait_for("committed", lambda lag: not lag.lag_records)
            transaction = payer.transaction()
            await transaction.begin()
            opened_ms = now_ms()
            for _ in range(TRANSACTION_RECORDS):
                await payer.send(PAYMENTS.topic, b"open", partition=0)
            await watcher.wait_for("fast", lambda lag: lag.lag_records < PRODUCE_RATE)
            await watcher.wait_for_full_window()
            check_states(watcher, load, opened_ms)
            for fail in failures:
                await fail(cluster)
                # The new coordinator has no history when it is asked first.
                await watcher.wait_for_full_window()
                check_states(watcher, load, opened_ms)
            reading.cancel()
        # The group is gone, and the transaction ends: the lag is that of a group that reads only committed records.
        await transaction.commit()
        unread = await watcher.wait_for("committed", lambda lag: lag.lag_records > TRANSACTION_RECORDS)
        assert unread.lag_ms is not None
        assert abs(unread.lag_ms - (unread.sampled_ms - opened_ms)) <= TOLERANCE_MS
        for task in running:
            task.cancel()
    figures = []
    for group in ("stalled", "slow", "fast"):
        errors_ms = [load.check(group, lag) for lag in watcher.samples[group]]
        longest_ms = max(lag.lag_ms or 0 for lag in watcher.samples[group])
        figures.append(f"{group} lag up to {longest_ms / 1_000:.1f} s, wrong by at most {max(errors_ms)} ms")
        firsts = [lag for lag in watcher.samples[group] if lag.commit_rate is None]
        assert len(firsts) >= 1 + failures.count(fail_coordinator), "each new coordinator has a first sample"
    count = sum(map(len, watcher.samples.values()))
    print(f"\n{count} samples over {len(failures)} failovers: {'; '.join(figures)}")


def check_states(watcher: Watcher, load: Load, opened_ms: int) -> None:
    latest = {group: samples[-1] for group, samples in watcher.samples.items()}
    assert latest["stalled"].state is LagState.STALLED
    assert latest["slow"].state is LagState.FALLING_BEHIND
    assert latest["slow"].catch_up_s == float("inf")
    assert latest["fast"].state is LagState.OK
    check_rates(latest["stalled"], load, 0, watcher.interval_ms)
    check_rates(latest["slow"], load, SLOW_RATE, watcher.interval_ms)
    check_rates(latest["fast"], load, None, watcher.interval_ms)
    committed, uncommitted = latest["committed"], latest["uncommitted"]
    assert (committed.is_read_committed, committed.lag_records, committed.lag_ms) == (True, 0, 0)
    assert (uncommitted.is_read_committed, uncommitted.lag_records) == (False, TRANSACTION_RECORDS)
    assert uncommitted.lag_ms is not None
    assert abs(uncommitted.lag_ms - (uncommitted.sampled_ms - opened_ms)) <= TOLERANCE_MS


async def anext_or_stop(reader: Consumer) -> None:
    async for record in reader:
        raise AssertionError(f"{record} is not committed")


def run_cluster(failures: list[Callable[[Cluster], Awaitable[None]]], interval_ms: int) -> None:
    settings = {
        "lag.sample.interval.ms": str(interval_ms),
        "offsets.topic.num.partitions": "1",
        "transaction.state.log.num.partitions": "1",
    }
    with Cluster(3, topics={LOAD.topic: 1, PAYMENTS.topic: 1}, settings=settings) as cluster:
        asyncio.run(run_load(cluster, failures, interval_ms))


def test_lag_and_rates_are_right_under_a_known_load_and_after_a_failover() -> None:
    run_cluster([fail_coordinator], interval_ms=200)


@pytest.mark.slow
def test_lag_and_rates_are_right_over_many_failovers() -> None:
    run_cluster([fail_leader, fail_coordinator] * 2, interval_ms=1_000)
