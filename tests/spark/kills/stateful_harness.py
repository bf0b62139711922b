"""Kills the driver of a stateful query, its Python workers, executors and brokers with SIGKILL while rows are produced,
restarts them, and collects the output.

A process is killed after a number of micro-batches, at a moment of the next one that the seed sets.
"""

import json
import random
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from kills.clusters import EXECUTOR, Brokers, Master
from kills.driver_process import Driver
from kills.evidence import READ_COMMITTED, copy_of, messages, number_of, offset_log, sum_of, unfinished
from kills.harness import ROWS_AT_START, ROWS_PER_BATCH, ROWS_PER_EVENT, Produced
from kills.history import Copy, Numbers, OffsetLog, Place, Replays, Sum
from kills.stateful_query import StatefulJob
from support.checked_producer import PARTITIONS, RECONNECT
from support.topics import QUIET

DRIVER, WORKER = "driver", "worker"
KEYS = 2 * PARTITIONS
EVENTS_BETWEEN = (1, 4)
EVENTS_WITHOUT_BROKER = 2
STARTS_PER_KILL = 3


@dataclass(frozen=True)
class StatefulOutcome:
    """The input of the checks, and statistics."""

    produced: int
    acknowledged: Numbers
    input: Numbers
    copies: list[Copy]
    """All rows in the topic, also those of aborted transactions."""
    committed: list[tuple[Place, int]]
    """The rows that readers with read_committed see in the topic."""
    sums: list[tuple[Place, Sum]]
    """The state that these rows were written with."""
    log: OffsetLog
    replays: Replays
    strikes: list[str]
    """Killed processes in order, and the event before each."""
    ended: list[str]
    """Messages of drivers that ended by themselves; they were restarted."""
    seconds: float


class StatefulKills:
    """One driver at a time, and one producer."""

    def __init__(self, directory: Path, seed: int, brokers: Brokers, master: Master) -> None:
        self.directory = directory
        self.seed = seed
        self.chance = random.Random(seed)
        self.brokers = brokers
        self.master = master
        self.targets = (DRIVER, WORKER, *master.targets, *brokers.targets)
        self.read, self.write = brokers.create_topic(PARTITIONS), brokers.create_topic(PARTITIONS)
        settings = {"enable.idempotence": True, "linger.ms": 1, **RECONNECT, **QUIET}
        self.produced = Produced(Producer({"bootstrap.servers": brokers.bootstrap, **settings}), self.read)
        self.strikes: list[str] = []
        self.ended: list[str] = []
        self._replays: dict[int, int | None] = {}
        self._durations_ms: deque[int] = deque(maxlen=3)
        self._run = -1
        self.driver = self._start_driver()

    def _job(self) -> StatefulJob:
        return StatefulJob(
            self.brokers.bootstrap,
            self.read,
            self.write,
            str(self.directory),
            self._run,
            ROWS_PER_BATCH,
            KEYS,
            self.master.url,
            self.master.settings,
            self.master.slow_s,
        )

    def _start_driver(self) -> Driver:
        self._run += 1
        job = self._job()
        self._replays[self._run] = unfinished(job.checkpoint)
        # The previous driver may have committed all rows without an event. Then there would never be one again.
        self.produced.add(ROWS_PER_EVENT)
        return Driver("kills.stateful_query", job, self.master.processes)

    def play(self, kills: int) -> StatefulOutcome:
        began = time.monotonic()
        self.produced.add(ROWS_AT_START)
        for number in range(kills):
            self._strike(self.targets[number % len(self.targets)], kills)
        self.produced.flush()
        while not self.driver.finish():
            self._driver_ended(kills)
        return self._outcome(time.monotonic() - began)

    def _strike(self, target: str, kills: int) -> None:
        """Kills a process during the micro-batch after this many."""
        last = {}
        for _ in range(self.chance.randint(*EVENTS_BETWEEN)):
            last = self._next_event(kills)
        # Not a wait for anything: kills must hit every phase of a batch, and an event comes at its end. The batch after
        # a start is slow, and the rows of a later one would all be written by then.
        time.sleep(self.chance.uniform(0, min(self._durations_ms) / 1000))
        run, victim = self._run, ""
        if target == DRIVER:
            self.driver.kill()
            self.driver = self._start_driver()
        elif target in (WORKER, EXECUTOR):
            while not (self.driver.kill_workers() if target == WORKER else self.driver.kill_executor(self.chance)):
                last = self._next_event(kills)
        else:
            victim = self.brokers.kill(target, self.chance, self.write, self._transaction_group())
        self.strikes.append(" ".join(filter(None, [target, victim, f"in run {run} after {json.dumps(last)}"])))
        if target in self.brokers.targets:
            for _ in range(EVENTS_WITHOUT_BROKER if self.brokers.serves_without_victim else 0):
                self._next_event(kills)
            self.brokers.recover((self.read, self.write))

    def _transaction_group(self) -> str:
        """Returns the group of the query's transactions (decision 29)."""
        query_id = json.loads((self._job().checkpoint / "metadata").read_text())["id"]
        return f"{query_id}.{self.write}"

    def _next_event(self, kills: int) -> dict[str, Any]:
        """Waits for the next micro-batch, and produces more rows."""
        while (event := self.driver.next_event()) is None:
            self._driver_ended(kills)
        self.produced.add(ROWS_PER_EVENT)
        self._durations_ms.append(event["ms"])
        return event

    def _driver_ended(self, kills: int) -> None:
        self.driver.wait_until_gone()
        self.ended.append(self.driver.said())
        endings = "\n".join(self.ended)
        assert self._run < STARTS_PER_KILL * kills, f"the driver does not stay up:\n{endings}"
        self.driver = self._start_driver()

    def _outcome(self, seconds: float) -> StatefulOutcome:
        job, bootstrap = self._job(), self.brokers.bootstrap
        read = {place: number_of(message) for place, message in messages(bootstrap, self.read).items()}
        committed = list(messages(bootstrap, self.write, READ_COMMITTED).values())
        copies = [copy_of(message) for message in committed]
        return StatefulOutcome(
            self.produced.count,
            self.produced.acknowledged,
            read,
            [copy_of(message) for message in messages(bootstrap, self.write).values()],
            [(copy.place, copy.number) for copy in copies],
            [(copy.place, sum_of(message)) for copy, message in zip(copies, committed, strict=True)],
            offset_log(job.checkpoint, self.read),
            Replays(self._replays),
            self.strikes,
            self.ended,
            seconds,
        )

    def close(self) -> None:
        self.driver.end()
