"""Kafka's Java clients and tools in one JVM for a whole test run, driven through its standard input and output.

The Java side is in `java/`. It executes commands and reports consumer events; here both are Python values.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from apache_kafka import ApacheKafka, KafkaFailed, KafkaUnavailable

SOURCES = Path(__file__).parent / "java"
MAIN = "moldau.interop.Clients"
WAIT_S = 30.0
POLL_INTERVAL_S = 0.05
JVM = ("java", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.awt.headless=true")
LOG_LEVEL = "-Dorg.slf4j.simpleLogger.defaultLogLevel=error"

Event = dict[str, Any]
Offsets = dict[str, tuple[int, str]]


class JavaError(Exception):
    """An exception of a Java client, with its name and message."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(f"{name}: {message}")
        self.name = name


def compile_sources(into: Path) -> Path:
    if shutil.which("javac") is None:
        raise KafkaUnavailable("javac is not installed: Java's compiler is needed besides its runtime")
    into.mkdir(parents=True)
    sources = [str(source) for source in sorted(SOURCES.glob("*.java"))]
    command = ["javac", "-nowarn", "-d", str(into), "-cp", ApacheKafka.classpath(), *sources]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise KafkaFailed(f"javac failed:\n{done.stdout}{done.stderr}")
    return into


class JavaClients:
    """The JVM. Other output than results and events goes to `work_dir/java.log`."""

    def __init__(self, work_dir: Path) -> None:
        classes = compile_sources(work_dir / "classes")
        self.log_path = work_dir / "java.log"
        classpath = f"{classes}:{ApacheKafka.classpath()}"
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [*JVM, LOG_LEVEL, "-cp", classpath, MAIN],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                bufsize=1,
            )
        self._changed = threading.Condition()
        self._responses: dict[int, Event] = {}
        self._consumers: dict[str, JavaConsumer] = {}
        self._last_id = 0
        self._ended = False
        threading.Thread(target=self._read_file, daemon=True).start()

    def stop(self) -> None:
        """Closes the JVM's input, which ends it."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def execute(self, command: str, *, timeout_s: float = 60, **parameters: Any) -> Any:
        """Executes a command; raises Java exceptions as JavaError."""
        return self._wait_response(self._send(command, parameters), f"no answer to {command} {parameters}", timeout_s)

    def _send(self, command: str, parameters: dict[str, Any]) -> int:
        with self._changed:
            self._last_id += 1
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps({"id": self._last_id, "do": command, **parameters}) + "\n")
            self._process.stdin.flush()
            return self._last_id

    def _wait_response(self, number: int, describe: str, timeout_s: float) -> Any:
        self.wait_until(lambda: number in self._responses, describe, timeout_s)
        response = self._responses.pop(number)
        if "error" in response:
            raise JavaError(response["error"], response["message"])
        return response["result"]

    def wait_until(
        self, condition: Callable[[], bool], describe: str | Callable[[], str], timeout_s: float = WAIT_S
    ) -> None:
        """Waits until an event from Java makes the condition true."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._ended or condition(), timeout_s) or not condition():
                reason = "the JVM has ended" if self._ended else "timed out"
                raise AssertionError(f"{reason}: {describe if isinstance(describe, str) else describe()}")

    def _read_file(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            events_of = json.loads(line)
            with self._changed:
                if "id" in events_of:
                    self._responses[events_of["id"]] = events_of
                else:
                    self._consumers[events_of["consumer"]].on_event(events_of)
                self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def tool(self, main_class: str, arguments: Sequence[str], stdin: str | None = None, timeout_s: float = 120) -> str:
        """Returns the output of a command-line tool; raises KafkaFailed if its exit code is not 0."""
        done = self.execute("tool", main=main_class, arguments=list(arguments), stdin=stdin or "", timeout_s=timeout_s)
        if done["code"] != 0:
            raise KafkaFailed(f"{main_class} exited with {done['code']}:\n{done['out']}{done['err']}")
        printed: str = done["out"]
        return printed

    def produce(self, bootstrap: str, topic: str, records: Iterable[Event], **settings: object) -> list[Event]:
        """Returns the position of each record; a record is a dict of key, value, headers, partition and timestamp."""
        found: list[Event] = self.execute(
            "produce", topic=topic, records=list(records), settings={"bootstrap.servers": bootstrap, **dotted(settings)}
        )
        return found

    def transactions(
        self, bootstrap: str, transactional_id: str, transactions: Iterable[Event], **settings: object
    ) -> list[list[int]]:
        """Runs transactions with a new producer and returns the offsets of each one's records.

        A transaction is a dict of `commit`, `records` (as for `produce`, with a topic), and optionally `offsets` and
        their `group`.
        """
        base = {"bootstrap.servers": bootstrap, "transactional.id": transactional_id}
        found: list[list[int]] = self.execute(
            "transactions", transactions=list(transactions), settings={**base, **dotted(settings)}, timeout_s=120
        )
        return found

    def admin(self, bootstrap: str, method: str, **parameters: Any) -> Any:
        return self.execute("admin", bootstrap=bootstrap, method=method, **parameters)

    def consumer(
        self,
        bootstrap: str,
        name: str,
        *topics: str,
        pattern: str | None = None,
        partitions: Sequence[str] | None = None,
        **settings: object,
    ) -> JavaConsumer:
        """Starts a consumer that polls, with the classic protocol by default."""
        with self._changed:
            assert name not in self._consumers or self._consumers[name].is_closed, f"{name} is still open"
            consumer = self._consumers[name] = JavaConsumer(self, name)
        base = {
            "bootstrap.servers": bootstrap,
            "group.protocol": "classic",
            "auto.offset.reset": "earliest",
            "heartbeat.interval.ms": "200",
            "reconnect.backoff.max.ms": "200",
        }
        where: dict[str, Any] = {"topics": list(topics)}
        if pattern is not None:
            where = {"pattern": pattern}
        if partitions is not None:
            where = {"partitions": list(partitions)}
        self.execute("open", consumer=name, settings={**base, **dotted(settings)}, **where)
        return consumer

    def transactional_producer(self, bootstrap: str, transactional_id: str, **settings: object) -> JavaProducer:
        base = {"bootstrap.servers": bootstrap, "transactional.id": transactional_id}
        self.execute("openProducer", producer=transactional_id, settings={**base, **dotted(settings)})
        return JavaProducer(self, transactional_id)

    def close_consumers(self) -> None:
        """Closes all consumers in parallel, because each takes a while."""
        names = [name for name, consumer in self._consumers.items() if not consumer.is_closed]
        for name in names:
            self._send("go", {"consumer": name})
        for name, number in [(name, self._send("close", {"consumer": name})) for name in names]:
            self._wait_response(number, f"{name} did not close", 60)
        self._consumers.clear()


class JavaProducer:
    """One Java producer with a transactional id."""

    def __init__(self, java: JavaClients, transactional_id: str) -> None:
        self._java = java
        self._id = transactional_id

    def begin(self) -> None:
        self._java.execute("begin", producer=self._id)

    def send(self, topic: str, records: Iterable[Event]) -> list[int]:
        """Returns the offset of each record."""
        found: list[int] = self._java.execute("send", producer=self._id, topic=topic, records=list(records))
        return found

    def send_offsets(self, group: str, offsets: Offsets) -> None:
        self._java.execute("sendOffsets", producer=self._id, group=group, offsets=offsets)

    def end(self, *, commit: bool) -> None:
        self._java.execute("commitTransaction" if commit else "abortTransaction", producer=self._id)

    def close(self) -> None:
        self._java.execute("closeProducer", producer=self._id)


class JavaConsumer:
    """One Java consumer, with its events and commands."""

    def __init__(self, java: JavaClients, name: str) -> None:
        self.java = java
        self.name = name
        self.events: list[Event] = []
        self.owned: set[str] = set()
        """Partitions that it owns according to its callbacks."""
        self.generation = -1
        self.is_closed = False

    def on_event(self, event: Event) -> None:
        self.events.append(event)
        match event["event"]:
            case "assigned":
                self.owned |= set(event["partitions"])
                self.generation = event["generation"]
            case "revoked" | "lost":
                self.owned -= set(event["partitions"])
            case "closed":
                self.is_closed = True

    def events_of(self, event: str, since: int = 0) -> list[Event]:
        return [each for each in self.events[since:] if each["event"] == event]

    @property
    def values(self) -> list[str]:
        return [each["value"] for each in self.events_of("record")]

    @property
    def member(self) -> dict[str, Any]:
        found: dict[str, Any] = self.java.execute("member", consumer=self.name)
        return found

    def wait_for(self, event: str, since: int = 0, timeout_s: float = WAIT_S) -> Event:
        """Returns the first such event, waiting for it if needed."""
        self.java.wait_until(
            lambda: bool(self.events_of(event, since)),
            lambda: f"{self.name} reported no {event!r}: {self.events[since:][-10:]}",
            timeout_s,
        )
        return self.events_of(event, since)[0]

    def wait_for_records(self, count: int) -> list[str]:
        self.java.wait_until(
            lambda: len(self.events_of("record")) >= count,
            lambda: f"{self.name} has {len(self.events_of('record'))} of {count} records: {self.events[-5:]}",
        )
        return self.values

    def wait_for_error(self) -> str:
        """Returns the name of the exception that ended the consumer."""
        name: str = self.wait_for("error")["error"]
        return name

    def commit(self, offsets: Offsets | None = None) -> None:
        """Commits these offsets, or the consumer's positions."""
        what: dict[str, Any] = {} if offsets is None else {"offsets": offsets}
        self.java.execute("commit", consumer=self.name, **what)

    def committed(self, *partitions: str) -> dict[str, list[Any] | None]:
        found: dict[str, list[Any] | None] = self.java.execute("committed", consumer=self.name, partitions=partitions)
        return found

    def position(self, partition: str) -> int:
        found: int = self.java.execute("position", consumer=self.name, partition=partition)
        return found

    def seek(self, partition: str, offset: int) -> None:
        self.java.execute("seek", consumer=self.name, partition=partition, offset=offset)

    def beginning(self, *partitions: str) -> dict[str, int]:
        found: dict[str, int] = self.java.execute("beginning", consumer=self.name, partitions=partitions)
        return found

    def end(self, *partitions: str) -> dict[str, int]:
        found: dict[str, int] = self.java.execute("end", consumer=self.name, partitions=partitions)
        return found

    def times(self, times: dict[str, int]) -> dict[str, list[int] | None]:
        found: dict[str, list[int] | None] = self.java.execute("times", consumer=self.name, times=times)
        return found

    def preferred_replica(self, partition: str) -> int:
        """Returns the preferred read replica; -1 if it reads from the leader."""
        found: int = self.java.execute("preferredReplica", consumer=self.name, partition=partition)
        return found

    def rebalance(self) -> None:
        self.java.execute("rebalance", consumer=self.name)

    def stall(self) -> None:
        """Stops polling until `go`; heartbeats continue."""
        self.java.execute("stall", consumer=self.name)

    def go(self) -> None:
        self.java.execute("go", consumer=self.name)

    def close(self, *, stay: bool = False) -> None:
        """Closes it; with `stay` without leaving the group, as if its process had died."""
        self.java.execute("close", consumer=self.name, stay=stay)
        self.wait_for("closed")


def dotted(settings: dict[str, object]) -> dict[str, str]:
    """Returns settings with Java's names: `max_poll_records=1` is max.poll.records=1."""
    return {
        name.replace("_", "."): str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in settings.items()
    }


def partitions_of(topic: str, count: int) -> set[str]:
    return {f"{topic}:{number}" for number in range(count)}


def wait_until_shared(consumers: Sequence[JavaConsumer], partitions: set[str], timeout_s: float = WAIT_S) -> None:
    """Waits until these consumers own these partitions in one generation, each exactly once."""

    def is_shared() -> bool:
        owned = [partition for consumer in consumers for partition in consumer.owned]
        is_one_generation = len({consumer.generation for consumer in consumers}) == 1
        return is_one_generation and sorted(owned) == sorted(partitions) and all(c.owned for c in consumers)

    consumers[0].java.wait_until(
        is_shared,
        lambda: f"not shared: { {c.name: (c.generation, sorted(c.owned), c.events[-3:]) for c in consumers} }",
        timeout_s,
    )


def poll_until(
    condition: Callable[[], bool], what: str, timeout_s: float = WAIT_S, interval_s: float = POLL_INTERVAL_S
) -> None:
    """Polls a condition that no event reports."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not so in {timeout_s} s: {what}"
        time.sleep(interval_s)
