"""Runs worker processes in every ack mode under one kind of fault, and counts deliveries."""

import asyncio
import os
import random
import signal
import sys
import tempfile
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from ack_modes.deliveries import Deliveries, JournalReader
from ack_modes.modes import (
    BATCH_RECORDS,
    COMMIT_INTERVAL_MS,
    MODES,
    RETRIES,
    STOPPING_RECORDS,
    WINDOW_RECORDS,
    Fault,
    Mode,
    failures,
)
from ack_modes.worker import STOPPED
from moldau.client import Admin, Consumer, Producer, TopicPartition
from support.broker_process_cluster import BrokerProcessCluster
from support.topics import unique

PARTITIONS = 2
RECORDS = 300
"""The records of a run without kills and rebalances, during which more are produced."""
RECORD_INTERVAL_S = 0.02
"""Slow enough that every mode catches up."""
CALLS_AFTER_FAULT = 60
SHORT_SESSION_MS, LONG_SESSION_MS = 1_000, 30_000
POLL_S = 0.02
SETTINGS = {"group.min.session.timeout.ms": "100", "offsets.topic.num.partitions": "1"}
TESTS = Path(__file__).parents[1]


@dataclass(frozen=True)
class Result:
    mode: Mode
    fault: Fault
    faults: int
    deliveries: Deliveries

    @property
    def most_repeats(self) -> int:
        """The most records that were passed to the handler again after one kill."""
        return max(self.deliveries.repeats_after.values(), default=0)

    def violations(self) -> list[str]:
        """Returns what contradicts the mode's promise."""
        found, mode, fault = self.deliveries, self.mode, self.fault
        violations = []
        if found.lost > mode.losses.get(fault, 0) * self.faults:
            violations.append(f"{found.lost} records are lost")
        if fault is Fault.CONSUMER_KILLED and self.most_repeats > mode.repeats.get(fault, 0):
            violations.append(f"{self.most_repeats} records came again after one fault")
        if fault.is_of_handler:
            if found.completed(2):
                violations.append(f"{found.completed(2)} records were handled to the end twice")
            if mode.is_at_most_once and found.repeats:
                violations.append(f"{found.repeats} calls were repeated")
            if len(found.dead_letters) != len(set(found.dead_letters)):
                violations.append("a dead letter was written twice")
        elif found.repeats > mode.repeats.get(fault, 0) * self.faults:
            violations.append(f"{found.repeats} calls were repeated")
        return violations


class GroupRun:
    """The producer and the workers of one group that reads one topic in one mode."""

    def __init__(self, bootstrap: str, directory: Path, mode: Mode, fault: Fault) -> None:
        self.mode = mode
        self.topic = unique("modes")
        self._bootstrap = bootstrap
        self._fault = fault
        self._group, self._dead_letters = unique("group"), unique("dead")
        self._journal = directory / self.topic
        self._reader = JournalReader(self._journal)
        self._output = (directory / f"{self.topic}.out").open("w+")
        self._session_ms = LONG_SESSION_MS if fault is Fault.NODE_KILLED else SHORT_SESSION_MS
        self._started = 0
        self._running: list[asyncio.subprocess.Process] = []
        self._is_enough = asyncio.Event()
        self._producing: asyncio.Task[int] | None = None

    async def start(self) -> None:
        """Creates the topics and starts to produce."""
        async with Admin(self._bootstrap) as admin:
            await admin.create_topic(self.topic, PARTITIONS)
            await admin.create_topic(self._dead_letters)
        self._producing = asyncio.create_task(self._produce())

    async def _produce(self) -> int:
        count = 0
        async with Producer(self._bootstrap) as producer:
            while count < RECORDS or not self._is_enough.is_set():
                await producer.send(self.topic, str(count).encode(), partition=count % PARTITIONS)
                count += 1
                if count > RECORDS:
                    await asyncio.sleep(RECORD_INTERVAL_S)
        return count

    def stop_producing(self) -> None:
        """Stops after the first records."""
        self._is_enough.set()

    async def start_worker(self) -> asyncio.subprocess.Process:
        arguments = [self._bootstrap, self.topic, self._group, self._dead_letters, self.mode.name, self._fault.value]
        arguments += [str(self._journal), str(self._started), str(self._session_ms)]
        self._started += 1
        path = os.pathsep.join([str(TESTS), *filter(None, sys.path)])
        worker = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "ack_modes.worker", *arguments),
            env={**os.environ, "PYTHONPATH": path},
            stderr=self._output,
        )
        self._running.append(worker)
        return worker

    async def end_worker(self, worker: asyncio.subprocess.Process, signal_number: int) -> None:
        self._check_workers()
        worker.send_signal(signal_number)
        await self.wait_for_end(worker, -signal.SIGKILL if signal_number == signal.SIGKILL else 0)

    async def wait_for_end(self, worker: asyncio.subprocess.Process, status: int) -> None:
        code = await worker.wait()
        self._running.remove(worker)
        if code != status:
            self._fail(code)

    def _check_workers(self) -> None:
        for worker in self._running:
            if worker.returncode is not None:
                self._fail(worker.returncode)

    def _fail(self, code: int) -> None:
        self._output.seek(0)
        raise AssertionError(
            f"a worker in the mode {self.mode.name!r} ended with {code}:\n{self._output.read()[-4000:]}"
        )

    def close(self) -> None:
        for worker in self._running:
            if worker.returncode is None:
                worker.kill()
        if self._producing is not None:
            self._producing.cancel()
        self._reader.close()
        self._output.close()

    async def wait_for_calls(self, count: int) -> None:
        """Waits until the worker that was started last has got so many records more."""
        process = self._started - 1
        wanted = self._reader.read().calls_by_process[process] + count
        while self._reader.read().calls_by_process[process] < wanted:
            self._check_workers()
            await asyncio.sleep(POLL_S)

    async def finish(self) -> Deliveries:
        """Waits until the group has committed everything, ends the workers, and returns all deliveries."""
        assert self._producing is not None
        self.stop_producing()
        records = await self._producing
        partitions = [TopicPartition(self.topic, index) for index in range(PARTITIONS)]
        async with Consumer(self._bootstrap, group_id=self._group) as consumer:
            while sum(each.offset for each in (await consumer.committed(partitions)).values() if each) < records:
                self._check_workers()
                await asyncio.sleep(0.1)
        for worker in list(self._running):
            await self.end_worker(worker, signal.SIGTERM)
        found = self._reader.read()
        found.records, found.dead_letters = records, await self._read_dead_letters()
        return found

    async def _read_dead_letters(self) -> list[int]:
        partition = TopicPartition(self._dead_letters, 0)
        letters: list[int] = []
        async with Consumer(self._bootstrap, auto_offset_reset="earliest") as consumer:
            consumer.assign([partition])
            end = (await consumer.end_offsets([partition]))[partition]
            while len(letters) < end:
                letters += [int(each.value or b"") for each in await consumer.poll(1_000)]
        return letters


async def run_alone(run: GroupRun) -> int:
    await run.start_worker()
    return 0


async def kill_consumers(run: GroupRun, kills: int) -> int:
    """Kills the only consumer again and again, at any time, also while it commits or handles old records."""
    worker = await run.start_worker()
    for _ in range(kills):
        await run.wait_for_calls(random.randint(1, 60))
        await asyncio.sleep(random.uniform(0, 0.1))
        await run.end_worker(worker, signal.SIGKILL)
        worker = await run.start_worker()
    return kills


async def restart_stopped(run: GroupRun) -> int:
    """Starts the consumer again whenever its handler has stopped it."""
    for _ in STOPPING_RECORDS:
        worker = await run.start_worker()
        await run.wait_for_end(worker, STOPPED)
    await run.start_worker()
    return len(STOPPING_RECORDS)


async def rebalance(run: GroupRun, times: int) -> int:
    """Lets a second consumer join and leave again and again."""
    await run.start_worker()
    await run.wait_for_calls(1)
    for _ in range(times):
        second = await run.start_worker()
        await run.wait_for_calls(CALLS_AFTER_FAULT)
        await run.end_worker(second, signal.SIGTERM)
    return 2 * times


async def run_fault(bootstrap: str, fault: Fault, times: int, modes: Iterable[Mode] = MODES.values()) -> list[Result]:
    """Runs all modes at the same time under one fault of their handlers or consumers."""
    drivers: dict[Fault, Callable[[GroupRun], Awaitable[int]]] = {
        Fault.CONSUMER_KILLED: lambda run: kill_consumers(run, times),
        Fault.REBALANCE: lambda run: rebalance(run, times),
        Fault.STOPS: restart_stopped,
        **dict.fromkeys((Fault.NONE, Fault.FAILS, Fault.FAILS_TWICE), run_alone),
    }

    async def run_mode(run: GroupRun) -> Result:
        await run.start()
        if fault not in (Fault.CONSUMER_KILLED, Fault.REBALANCE):
            run.stop_producing()
        faults = await drivers[fault](run)
        deliveries = await run.finish()
        if fault.is_of_handler:
            faults = sum(failures(number, fault) > 0 for number in range(deliveries.records))
        return Result(run.mode, fault, faults, deliveries)

    with group_runs(bootstrap, modes, fault) as runs:
        return await asyncio.gather(*map(run_mode, runs))


async def run_node_kills(nodes: BrokerProcessCluster, kills: int, modes: Iterable[Mode]) -> list[Result]:
    """Kills the coordinator and then one node after another, while all modes run. So each mode loses its leaders."""
    with group_runs(nodes.bootstrap, modes, Fault.NODE_KILLED) as runs:
        for run in runs:
            await run.start()
            await run.start_worker()
        for run in runs:
            await run.wait_for_calls(CALLS_AFTER_FAULT)
        coordinator = await asyncio.to_thread(nodes.leader_of, "__consumer_offsets")
        for number in range(kills):
            victim = 1 + (coordinator - 1 + number) % len(nodes.nodes)
            nodes.kill(victim)
            await asyncio.gather(*(run.wait_for_calls(CALLS_AFTER_FAULT) for run in runs))
            await asyncio.to_thread(nodes.start, victim)
            for topic in (*(run.topic for run in runs), "__consumer_offsets"):
                await asyncio.to_thread(nodes.wait_in_sync, topic)
        found = await asyncio.gather(*(run.finish() for run in runs))
        return [Result(run.mode, Fault.NODE_KILLED, kills, each) for run, each in zip(runs, found, strict=True)]


@contextmanager
def group_runs(bootstrap: str, modes: Iterable[Mode], fault: Fault) -> Iterator[list[GroupRun]]:
    with tempfile.TemporaryDirectory() as directory, ExitStack() as ending:
        runs = [GroupRun(bootstrap, Path(directory), mode, fault) for mode in modes]
        for run in runs:
            ending.callback(run.close)
        yield runs


def result_row(result: Result) -> list[str]:
    found, faults = result.deliveries, result.faults
    is_kill = result.fault is Fault.CONSUMER_KILLED
    repeats = result.mode.repeats.get(result.fault, 0)
    return [
        result.fault.value,
        result.mode.name,
        str(faults),
        str(found.records),
        str(found.completed(0, 0)),
        str(found.completed(1, 1)),
        str(found.completed(2)),
        str(len(found.dead_letters)),
        str(found.lost),
        str(result.mode.losses.get(result.fault, 0) * faults),
        str(found.repeats),
        "retries" if result.fault.is_of_handler and not result.mode.is_at_most_once else str(repeats * faults),
        str(result.most_repeats) if is_kill else "",
        str(repeats) if is_kill else "",
    ]


TABLE_HEAD = ["fault", "mode", "faults", "records", "never", "once", "more", "dead", "lost", "limit", "again", "limit"]
TABLE_HEAD += ["per kill", "limit"]
LEGEND = f"""
never, once, more  how many records were handled to the end so often
dead               records in the dead-letter topic
lost               records that were neither handled to the end nor dead, and how many the mode may lose
again              calls of the handler for records that it had got before, and how many the mode may repeat
per kill           the most records that the handler got again after one kill

The limits after a kill: in the mode auto, what is handled between two commits ({COMMIT_INTERVAL_MS} ms); in batch, one
batch ({BATCH_RECORDS} records); in manual, the window ({WINDOW_RECORDS} records) and what it lets pass between two
commits; at most once, nothing again, and the record or batch in the handler is lost. A handler that stops the process
gets the failed record, batch or window again. When a member joins or leaves, all partitions are revoked: in the mode
manual, records that are not acknowledged come again. A handler that fails is called again {RETRIES} times; at most
once, never. Then its record, or its batch, goes to the dead-letter topic."""


def format_table(results: Iterable[Result]) -> str:
    rows = [TABLE_HEAD, *map(result_row, results)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(TABLE_HEAD))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column < 2 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )
