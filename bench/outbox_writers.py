"""Writers of the outbox benchmark: each process has several threads, and each thread one connection to Postgres."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from multiprocessing import get_context
from multiprocessing.queues import SimpleQueue
from multiprocessing.synchronize import Barrier
from typing import NamedTuple

import psycopg

CONNECT_TIMEOUT_S = 60.0
VALUE = "x" * 200
PLAIN_TABLE = """
CREATE TABLE IF NOT EXISTS plain (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, topic text NOT NULL, partition integer, key bytea,
    value bytea, headers jsonb, created_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE TABLE IF NOT EXISTS purchase (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, note text NOT NULL);
"""
PURCHASE = b"INSERT INTO purchase (note) VALUES (%s)"
STATEMENTS = {
    "produce": b"SELECT moldau.produce('orders', %s, %s)",
    "plain": b"INSERT INTO plain (topic, key, value) VALUES ('orders', convert_to(%s, 'UTF8'), convert_to(%s, 'UTF8'))",
}


@dataclass(frozen=True)
class WriterJob:
    url: str
    statement: str
    """A key of STATEMENTS."""
    seconds: float
    connections: int
    events: int = 1
    """Events in a transaction."""
    interval_s: float = 0.0
    """From the start of one transaction of a connection to the start of the next; 0: without a pause."""


class Written(NamedTuple):
    transactions: int
    cpu_s: float


def write(job: WriterJob, processes: int = 4) -> Written:
    """Runs the writers in other processes. Their time begins when all are connected."""
    context = get_context("spawn")
    barrier, results = context.Barrier(processes), context.SimpleQueue()
    share = job.connections // processes
    started = [context.Process(target=_write_in_process, args=(job, share, barrier, results)) for _ in range(processes)]
    for each in started:
        each.start()
    done = [results.get() for _ in started]
    for each in started:
        each.join()
    return Written(sum(each.transactions for each in done), sum(each.cpu_s for each in done))


def _write_in_process(job: WriterJob, connections: int, barrier: Barrier, results: SimpleQueue[Written]) -> None:
    counts = [0] * connections
    ready = threading.Barrier(connections + 1)
    begin = threading.Barrier(connections + 1)
    threads = [threading.Thread(target=_run, args=(job, ready, begin, counts, number)) for number in range(connections)]
    for each in threads:
        each.start()
    ready.wait(CONNECT_TIMEOUT_S)
    barrier.wait(CONNECT_TIMEOUT_S)
    began_s = time.process_time()
    begin.wait()
    for each in threads:
        each.join()
    results.put(Written(sum(counts), time.process_time() - began_s))


def _run(job: WriterJob, ready: threading.Barrier, begin: threading.Barrier, counts: list[int], number: int) -> None:
    statement = STATEMENTS[job.statement]
    with psycopg.connect(job.url, prepare_threshold=1) as connection:
        ready.wait(CONNECT_TIMEOUT_S)
        begin.wait(CONNECT_TIMEOUT_S)
        end = time.monotonic() + job.seconds
        time.sleep(job.interval_s * number / len(counts))
        while (now := time.monotonic()) < end:
            for event in range(job.events):
                if event == 0:
                    connection.execute(PURCHASE, ("a purchase",))
                connection.execute(statement, (str((counts[number] + event) % 1000), VALUE))
            connection.commit()
            counts[number] += 1
            if job.interval_s:
                time.sleep(max(0.0, now + job.interval_s - time.monotonic()))
