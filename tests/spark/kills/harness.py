"""Kills a driver, its workers and its broker with SIGKILL while rows are produced, restarts them, and collects the
output.

Rows are produced and processes killed at progress events of the queries, never at times; the seed sets their number.
"""

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.feather
from confluent_kafka import KafkaError, Message, Producer
from deltalake import DeltaTable

from kills.driver_process import EVENT_TIMEOUT_S, Driver
from kills.evidence import READ_COMMITTED, copy_of, messages, number_of, offset_log, rows_of, unfinished
from kills.history import Copy, Numbers, OffsetLog, Place, Replays
from kills.queries import DELTA, PARQUET, QUERIES, Job
from support.broker_process import BrokerProcess
from support.checked_producer import PARTITIONS, RECONNECT
from support.topics import QUIET, Topics

DRIVER, WORKER, BROKER = TARGETS = ("driver", "worker", "broker")
ROWS_AT_START = 1500
ROWS_PER_EVENT = 150
ROWS_PER_BATCH = 600
EVENTS_BETWEEN = (1, 6)
STARTS_PER_KILL = 2


@dataclass
class Produced:
    """Numbered rows and their acknowledgements. The producer survives a crash of the broker."""

    producer: Producer
    topic: str
    count: int = 0
    acknowledged: dict[Place, int] = field(default_factory=dict)

    def add(self, rows: int) -> None:
        for number in range(self.count, self.count + rows):
            self.producer.produce(self.topic, b"%d" % number, partition=number % PARTITIONS, on_delivery=self._report)
        self.count += rows
        self.producer.poll(0)

    def _report(self, error: KafkaError | None, message: Message) -> None:
        assert error is None, f"the producer gave up: {error}"
        partition, offset, value = message.partition(), message.offset(), message.value()
        assert partition is not None
        assert offset is not None
        assert value is not None
        self.acknowledged[partition, offset] = int(value)

    def flush(self) -> None:
        assert self.producer.flush(EVENT_TIMEOUT_S) == 0, "not every row was acknowledged"


@dataclass(frozen=True)
class KillsOutcome:
    """The input of the checks, and statistics."""

    produced: int
    acknowledged: Numbers
    input: Numbers
    copies: list[Copy]
    """All rows in the topic, also those of aborted transactions."""
    committed: list[tuple[Place, int]]
    """The rows that readers with read_committed see in the topic."""
    tables: Mapping[str, list[tuple[Place, int]]]
    logs: Mapping[str, OffsetLog]
    replays: Mapping[str, Replays]
    strikes: list[str]
    """Killed processes in order, and the event before each."""
    ended: list[str]
    """Messages of drivers that ended by themselves; they were restarted."""


class Kills:
    """One broker, one driver at a time, and one producer."""

    def __init__(self, directory: Path, seed: int) -> None:
        self.directory = directory
        self.chance = random.Random(seed)
        self.broker = BrokerProcess(directory / "broker")
        self.broker.start()
        topics = Topics(self.broker.bootstrap)
        self.read = topics.create(partitions=PARTITIONS)
        self.write = topics.create(partitions=PARTITIONS)
        settings = {"enable.idempotence": True, "linger.ms": 1, **RECONNECT, **QUIET}
        self.produced = Produced(Producer({"bootstrap.servers": self.broker.bootstrap, **settings}), self.read)
        self.strikes: list[str] = []
        self.ended: list[str] = []
        self._replays: dict[str, dict[int, int | None]] = {query: {} for query in QUERIES}
        self._run = -1
        self.driver = self._start_driver()

    def _job(self) -> Job:
        return Job(self.broker.bootstrap, self.read, self.write, str(self.directory), self._run, ROWS_PER_BATCH)

    def _start_driver(self) -> Driver:
        self._run += 1
        job = self._job()
        for query in QUERIES:
            self._replays[query][self._run] = unfinished(job.checkpoint(query))
        return Driver("kills.queries", job)

    def play(self, kills: int) -> KillsOutcome:
        self.produced.add(ROWS_AT_START)
        for number in range(kills):
            self._strike(TARGETS[number % len(TARGETS)], kills)
        self.produced.flush()
        while not self.driver.finish():
            self._driver_ended(kills)
        return self._outcome()

    def _strike(self, target: str, kills: int) -> None:
        """Kills a process after this many micro-batches of any query."""
        last = {}
        for _ in range(self.chance.randint(*EVENTS_BETWEEN)):
            last = self._next_event(kills)
        while target == WORKER and not self.driver.kill_worker(self.chance):
            last = self._next_event(kills)
        self.strikes.append(f"{target} in run {self._run} after {json.dumps(last)}")
        if target == DRIVER:
            self.driver.kill()
            self.driver = self._start_driver()
        elif target == BROKER:
            self.broker.kill()
            self.broker.start()

    def _next_event(self, kills: int) -> dict[str, Any]:
        """Waits for the next micro-batch of any query, and produces more rows."""
        while (event := self.driver.next_event()) is None:
            self._driver_ended(kills)
        self.produced.add(ROWS_PER_EVENT)
        return event

    def _driver_ended(self, kills: int) -> None:
        self.driver.wait_until_gone()
        self.ended.append(self.driver.said())
        endings = "\n".join(self.ended)
        assert self._run < STARTS_PER_KILL * kills, f"the driver does not stay up:\n{endings}"
        self.driver = self._start_driver()

    def _outcome(self) -> KillsOutcome:
        job = self._job()
        bootstrap = self.broker.bootstrap
        read = {place: number_of(message) for place, message in messages(bootstrap, self.read).items()}
        return KillsOutcome(
            self.produced.count,
            self.produced.acknowledged,
            read,
            [copy_of(message) for message in messages(bootstrap, self.write).values()],
            [
                (copy.place, copy.number)
                for copy in map(copy_of, messages(bootstrap, self.write, READ_COMMITTED).values())
            ],
            {
                PARQUET: rows_of(pyarrow.feather.read_table(str(job.parquet_rows))),
                DELTA: rows_of(DeltaTable(str(job.table(DELTA))).to_pyarrow_table()),
            },
            {query: offset_log(job.checkpoint(query), self.read) for query in QUERIES},
            {query: Replays(found) for query, found in self._replays.items()},
            self.strikes,
            self.ended,
        )

    def close(self) -> None:
        self.driver.end()
        if self.broker.process is not None:
            self.broker.kill()
