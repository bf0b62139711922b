"""An outbox under load: writers in threads, relays in processes, and the check of what consumers got."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any, Self

import psycopg
from confluent_kafka import Consumer, IsolationLevel, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

from support.broker_process import clean_environment

TOPICS = ("orders", "payments")
KEYS = 12
DEADLINE_S = 120.0
KILLS_FOR_EVERY_CASE = 20
"""From this number of kills on, some must have hit a batch between its record in Postgres and its end."""

TABLES = """
CREATE TABLE account (key integer PRIMARY KEY, version integer NOT NULL DEFAULT 0);
INSERT INTO account (key) SELECT generate_series(0, %s);
CREATE TABLE ledger (event text PRIMARY KEY, topic text NOT NULL, key integer NOT NULL, version integer NOT NULL);
"""


def moldau(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs a `moldau` command to its end."""
    return subprocess.run(
        [sys.executable, "-m", "moldau", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE_S,
        env=clean_environment(),
    )


def install(url: str, *arguments: str) -> None:
    done = moldau("outbox", "install", url, *arguments)
    assert done.returncode == 0, done.stderr


class RelayProcess:
    """A `moldau outbox relay` process. The output of all its runs is in `log_path`."""

    def __init__(self, url: str, bootstrap: str, log_path: Path, *arguments: str) -> None:
        self.log_path = log_path
        self._command = [sys.executable, "-m", "moldau", "outbox", "relay", url, "-b", bootstrap, *arguments]
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> Self:
        with self.log_path.open("ab") as log:
            self.process = subprocess.Popen(
                self._command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=clean_environment()
            )
        return self

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        return self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> int:
        assert self.process is not None
        process, self.process = self.process, None
        process.send_signal(number)
        return process.wait(DEADLINE_S)

    def output(self) -> str:
        return self.log_path.read_text()

    def wait_for_output(self, text: str, count: int = 1) -> None:
        wait_until(lambda: self.output().count(text) >= count, lambda: f"no {text!r} in: {self.output()}")

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        if self.process is not None:
            self.kill()


def wait_until(is_done: Any, explain: Any = lambda: "", deadline_s: float = DEADLINE_S) -> None:
    deadline = time.monotonic() + deadline_s
    while not is_done():
        assert time.monotonic() < deadline, explain()
        time.sleep(0.01)


class Writers:
    """Threads whose transactions change accounts and produce the change, with rollbacks, savepoints, pauses and commits
    in two phases.

    Each account has a version, and each event the version that its transaction has set. The table `ledger` gets a row
    for each event in the same transaction, so it has exactly the committed events.
    """

    def __init__(self, url: str, count: int = 16, seed: int = 1, pause_s: float = 0.02) -> None:
        self._url = url
        self._pause_s = pause_s
        self._stopped = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(number, random.Random(seed * 1000 + number)), daemon=True)
            for number in range(count)
        ]
        self.failures: list[BaseException] = []
        self.rollbacks = 0
        self.prepared = 0
        self.reconnects = 0

    def __enter__(self) -> Self:
        with psycopg.connect(self._url, autocommit=True) as connection:
            connection.execute(TABLES.replace("%s", str(KEYS - 1)).encode())
        for each in self._threads:
            each.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        self._stopped.set()
        for each in self._threads:
            each.join(DEADLINE_S)
            assert not each.is_alive(), "a writer did not end"
        if self.failures:
            raise self.failures[0]

    def _run(self, number: int, chance: random.Random) -> None:
        try:
            while True:
                try:
                    with psycopg.connect(self._url, connect_timeout=5) as connection:
                        self._finish_prepared(connection, number, chance)
                        while not self._stopped.is_set():
                            self._transact(connection, number, chance)
                            time.sleep(chance.uniform(0, self._pause_s))
                    return
                except psycopg.OperationalError:
                    # The server was killed. The ledger tells whether the last transaction was committed.
                    self.reconnects += 1
                    time.sleep(0.05)
        except BaseException as error:
            self.failures.append(error)

    def _transact(self, connection: psycopg.Connection[Any], number: int, chance: random.Random) -> None:
        if chance.random() < 0.05:
            # The transaction has an early id, and produces when many later ones have committed.
            connection.execute("SELECT pg_current_xact_id()")
            time.sleep(chance.uniform(0.1, 1.0))
        for key in sorted(chance.sample(range(KEYS), chance.randint(1, 3))):
            if chance.random() < 0.3:
                connection.execute("SAVEPOINT step")
                self._produce(connection, key, chance)
                if chance.random() < 0.5:
                    connection.execute("ROLLBACK TO SAVEPOINT step")
                else:
                    connection.execute("RELEASE SAVEPOINT step")
            else:
                self._produce(connection, key, chance)
        if chance.random() < 0.02:
            time.sleep(chance.uniform(0.05, 0.3))
        if chance.random() < 0.1:
            # The transaction outlives its session. It has an id, but no session of pg_stat_activity has it.
            connection.execute(f"PREPARE TRANSACTION '{_prepared_id(number)}'".encode())
            self.prepared += 1
            time.sleep(chance.uniform(0, 0.1))
            self._finish_prepared(connection, number, chance)
        elif chance.random() < 0.25:
            connection.rollback()
            self.rollbacks += 1
        else:
            connection.commit()

    def _finish_prepared(self, connection: psycopg.Connection[Any], number: int, chance: random.Random) -> None:
        """Commits or rolls back the prepared transaction of the writer, which may be one from before a kill."""
        connection.rollback()
        found = connection.execute("SELECT FROM pg_prepared_xacts WHERE gid = %s", (_prepared_id(number),)).fetchone()
        connection.rollback()
        if found is not None:
            connection.autocommit = True
            command = "ROLLBACK" if chance.random() < 0.25 else "COMMIT"
            connection.execute(f"{command} PREPARED '{_prepared_id(number)}'".encode())
            connection.autocommit = False

    def _produce(self, connection: psycopg.Connection[Any], key: int, chance: random.Random) -> None:
        changed = connection.execute(
            "UPDATE account SET version = version + 1 WHERE key = %s RETURNING version", (key,)
        ).fetchone()
        assert changed is not None
        event = f"{chance.getrandbits(64):016x}"
        topic = TOPICS[key % len(TOPICS)]
        connection.execute("INSERT INTO ledger VALUES (%s, %s, %s, %s)", (event, topic, key, changed[0]))
        value = json.dumps({"event": event, "key": key, "version": changed[0], "fill": "x" * chance.randint(0, 300)})
        connection.execute("SELECT moldau.produce(%s, %s, %s)", (topic, str(key), value))


def _prepared_id(number: int) -> str:
    return f"writer {number}"


def read_ledger(url: str) -> dict[str, tuple[str, int, int]]:
    """Returns topic, key and version of each committed event."""
    with psycopg.connect(url) as connection:
        rows = connection.execute("SELECT event, topic, key, version FROM ledger").fetchall()
    return {event: (topic, key, version) for event, topic, key, version in rows}


def has_open_transaction(bootstrap: str, partitions: list[TopicPartition]) -> bool:
    """Whether the last stable offset of a partition is before its end."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    stable, ends = (
        [
            each.result(DEADLINE_S).offset
            for each in admin.list_offsets(
                dict.fromkeys(partitions, OffsetSpec.latest()), isolation_level=level
            ).values()
        ]
        for level in (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED)
    )
    return stable != ends


def read_topics(bootstrap: str, topics: tuple[str, ...] = TOPICS) -> list[dict[str, Any]]:
    """Returns the values of all committed records, in the order of each partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": f"check-{os.getpid()}-{time.monotonic_ns()}",
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    try:
        found = consumer.list_topics(timeout=DEADLINE_S).topics
        partitions = [TopicPartition(each, number, 0) for each in topics for number in found[each].partitions]
        # A coordinator writes the markers of a transaction a little later than it responds.
        wait_until(lambda: not has_open_transaction(bootstrap, partitions), lambda: "a transaction stays open")
        consumer.assign(partitions)
        values, ended = [], 0
        deadline = time.monotonic() + DEADLINE_S
        while ended < len(partitions):
            assert time.monotonic() < deadline, "the topics could not be read"
            message = consumer.poll(1.0)
            if message is None:
                continue
            error = message.error()
            if error is None:
                values.append(json.loads(message.value()))
            elif error.code() == KafkaError._PARTITION_EOF:
                ended += 1
            else:
                raise AssertionError(error)
        return values
    finally:
        consumer.close()


def check_events(values: list[dict[str, Any]], ledger: dict[str, tuple[str, int, int]]) -> None:
    """Asserts that the records are the committed events, each once, and in the order of each key."""
    counts = Counter(each["event"] for each in values)
    doubled = [event for event, count in counts.items() if count > 1]
    assert not doubled, f"{len(doubled)} events were sent twice"
    assert not ledger.keys() - counts.keys(), f"{len(ledger.keys() - counts.keys())} events were lost"
    assert not counts.keys() - ledger.keys(), f"{len(counts.keys() - ledger.keys())} events were rolled back but sent"
    versions: dict[int, int] = {}
    for each in values:
        assert each["version"] == versions.get(each["key"], 0) + 1, f"{each} after {versions.get(each['key'])}"
        versions[each["key"]] = each["version"]


def backlog(url: str) -> int:
    with psycopg.connect(url) as connection:
        row = connection.execute("SELECT count(*) FROM moldau.outbox").fetchone()
    assert row is not None
    return int(row[0])


def wait_until_sent(url: str, relay: RelayProcess) -> None:
    wait_until(lambda: backlog(url) == 0, lambda: f"{backlog(url)} rows are left: {relay.output()[-3000:]}")


def batch_state(url: str) -> tuple[int, int]:
    """Returns the number of the last recorded batch, and how many rows of it Postgres has."""
    with psycopg.connect(url) as connection:
        row = connection.execute("SELECT batch, cardinality(ids) FROM moldau.outbox_state").fetchone()
    assert row is not None
    return row[0], row[1]


def kill_relays(url: str, bootstrap: str, log_path: Path, kills: int, seed: int) -> None:
    """Kills the relay again and again under load, and asserts that every committed event is sent exactly once."""
    chance = random.Random(seed)
    install(url)
    relay = RelayProcess(url, bootstrap, log_path)
    interrupted = 0
    with Writers(url, seed=seed) as writers, relay:
        for number in range(kills):
            target = batch_state(url)[0] + chance.randint(1, 20)
            wait_until(lambda: batch_state(url)[0] >= target, relay.output)  # noqa: B023
            time.sleep(chance.uniform(0, 0.03))
            relay.kill()
            interrupted += batch_state(url)[1] > 0
            if number % 5 == 4:
                # Kill the next one while it starts, perhaps during recovery.
                relay.start()
                time.sleep(chance.uniform(0.3, 1.5))
                relay.kill()
            relay.start()
        writers.stop()
        wait_until_sent(url, relay)
    ledger = read_ledger(url)
    check_events(read_topics(bootstrap), ledger)
    assert ledger
    assert writers.rollbacks
    assert writers.prepared
    print(f"\n{kills} kills, {interrupted} of them with a batch under way, {len(ledger)} events")
    if kills >= KILLS_FOR_EVERY_CASE:
        assert interrupted
