"""The load generator, in its own process so that its CPU time is not the harness's. It takes a job as JSON on its
command line, connects and warms up, prints `ready`, starts at a line on its standard input, and prints the outcome."""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import time
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from bench import group_load, http_load, raw
from bench.transaction_load import CLIENTS, LibrdkafkaLoad, Load

QUEUE_BYTES_MIN = 8 << 20
RAMP_UP_S = 0.3
LATENCY_RAMP_UP = 300
TRANSACTIONS_RAMP_UP = 50
TRANSACTIONS_RAMP_UP_S = 1.0
HTTP_RAMP_UP_S = 0.5
HTTP_SECONDS_MAX = 3600.0
STALL_S = 60.0


@dataclass(frozen=True)
class Job:
    """What a client process does; `kind` names the function."""

    kind: str
    bootstrap: str
    topic: str
    partitions: int = 1
    value_bytes: int = 100
    batch_bytes: int = 16384
    seconds: float = 1.0
    records: int = 0
    connections: int = 1
    in_flight: int = 5
    client: str = "librdkafka"
    """The library of transactional producers."""
    isolation_level: str = "read_committed"
    """For consumers. The default is librdkafka's."""
    api: str = ""
    """The HTTP API, see `http_load.py`; `bootstrap` is its address then."""
    rate_per_s: float = 0.0
    """The most HTTP requests per second; 0 for no limit."""

    def as_json(self) -> str:
        return json.dumps(asdict(self))


@dataclass(frozen=True)
class Outcome:
    records: int
    elapsed_s: float
    client_cpu_s: float
    latencies_ms: list[float] = field(default_factory=list)


def _wait_for_start() -> float:
    print("ready", flush=True)
    if not sys.stdin.readline():
        raise SystemExit("the harness has exited")
    return time.perf_counter()


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


class _DeliveryErrors:
    """Keeps the first failed delivery: a run with one is no result."""

    def __init__(self) -> None:
        self.first: str | None = None

    def __call__(self, error: Any, message: Any) -> None:
        if error is not None and self.first is None:
            self.first = str(error)

    def check(self) -> None:
        if self.first is not None:
            raise RuntimeError(f"a record was not delivered: {self.first}")


def produce(job: Job) -> Outcome:
    """Produces with librdkafka as fast as possible: chunks of records to one partition after the other, with a full
    queue."""
    from confluent_kafka import Producer

    refusals = _DeliveryErrors()
    producer = Producer(
        {
            "bootstrap.servers": job.bootstrap,
            "acks": "all",
            "batch.size": job.batch_bytes,
            "batch.num.messages": 1_000_000,
            "message.max.bytes": 2 << 20,
            "linger.ms": 5,
            "queue.buffering.max.messages": 2_000_000,
            "queue.buffering.max.kbytes": 1 << 20,
            "delivery.report.only.error": True,
            "socket.nagle.disable": True,
        }
    )
    chunk = max(100, 65536 // job.value_bytes)
    queued_max = max(QUEUE_BYTES_MIN, 4 * job.batch_bytes * job.partitions) // job.value_bytes
    messages = [{"value": b"v" * job.value_bytes}] * chunk

    def send_until(deadline: float) -> int:
        sent = 0
        partition = 0
        while time.perf_counter() < deadline:
            if len(producer) + chunk > queued_max:
                producer.poll(0.001)
                continue
            queued = producer.produce_batch(job.topic, messages, partition=partition, on_delivery=refusals)
            if queued != chunk:
                raise RuntimeError(f"librdkafka took {queued} records of {chunk}")
            sent += chunk
            partition = (partition + 1) % job.partitions
        if producer.flush(STALL_S) > 0:
            raise RuntimeError("not every record was acknowledged")
        refusals.check()
        return sent

    producer.list_topics(job.topic, timeout=30)
    send_until(time.perf_counter() + RAMP_UP_S)
    began = _wait_for_start()
    cpu = _cpu_s()
    sent = send_until(began + job.seconds)
    return Outcome(sent, time.perf_counter() - began, _cpu_s() - cpu)


def consume(job: Job) -> Outcome:
    """Reads every partition from its start with librdkafka."""
    from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": job.bootstrap,
            "group.id": "bench",
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "isolation.level": job.isolation_level,
            "queued.min.messages": 10_000_000,
            "queued.max.messages.kbytes": 1 << 20,
            "socket.nagle.disable": True,
            "log_level": 3,
        }
    )
    consumer.list_topics(job.topic, timeout=30)
    everything = [TopicPartition(job.topic, number, OFFSET_BEGINNING) for number in range(job.partitions)]
    began = _wait_for_start()
    cpu = _cpu_s()
    consumer.assign(everything)
    seen = 0
    last = began
    while seen < job.records:
        messages = consumer.consume(10_000, timeout=0.05)
        for message in messages:
            if (error := message.error()) is not None:
                raise KafkaException(error)
        seen += len(messages)
        now = time.perf_counter()
        if messages:
            last = now
        elif now - last > STALL_S:
            raise TimeoutError(f"the consumer stopped after {seen} records of {job.records}")
    elapsed = time.perf_counter() - began
    used = _cpu_s() - cpu
    consumer.close()
    return Outcome(seen, elapsed, used)


def latency(job: Job) -> Outcome:
    """Sends one record at a time with librdkafka, each after the acknowledgement of the previous one."""
    from confluent_kafka import Producer

    refusals = _DeliveryErrors()
    producer = Producer(
        {"bootstrap.servers": job.bootstrap, "acks": "all", "linger.ms": 0, "socket.nagle.disable": True}
    )
    value = b"v" * job.value_bytes

    def send(count: int) -> list[float]:
        taken = []
        for _ in range(count):
            began = time.perf_counter()
            producer.produce(job.topic, value, partition=0, on_delivery=refusals)
            while len(producer):
                producer.poll(1)
            taken.append((time.perf_counter() - began) * 1000)
        refusals.check()
        return taken

    send(LATENCY_RAMP_UP)
    began = _wait_for_start()
    cpu = _cpu_s()
    taken = send(job.records)
    return Outcome(job.records, time.perf_counter() - began, _cpu_s() - cpu, taken)


def raw_produce(job: Job) -> Outcome:
    def send(seconds: float) -> tuple[int, float]:
        return raw.produce(
            job.bootstrap,
            job.topic,
            job.partitions,
            job.value_bytes,
            job.batch_bytes,
            job.connections,
            job.in_flight,
            seconds,
        )

    send(RAMP_UP_S)
    _wait_for_start()
    cpu = _cpu_s()
    records, elapsed = send(job.seconds)
    return Outcome(records, elapsed, _cpu_s() - cpu)


def raw_fill(job: Job) -> Outcome:
    """Writes at least `records` records to the topic, in whole batches, evenly over the partitions."""
    count = raw.records_per_batch(job.value_bytes, job.batch_bytes)
    rounds = -(-job.records // (count * job.partitions))
    _wait_for_start()
    records, elapsed = raw.produce(
        job.bootstrap,
        job.topic,
        job.partitions,
        job.value_bytes,
        job.batch_bytes,
        job.connections,
        job.in_flight,
        batches=rounds * job.partitions,
    )
    return Outcome(records, elapsed, 0.0)


def raw_consume(job: Job) -> Outcome:
    """Reads the whole topic repeatedly for `seconds`."""
    isolation_level = raw.READ_COMMITTED if job.isolation_level == "read_committed" else raw.READ_UNCOMMITTED
    raw.consume(job.bootstrap, job.topic, job.partitions, job.records, isolation_level)
    _wait_for_start()
    cpu = _cpu_s()
    records, elapsed = 0, 0.0
    while elapsed < job.seconds:
        more, seconds = raw.consume(job.bootstrap, job.topic, job.partitions, job.records, isolation_level)
        records += more
        elapsed += seconds
    return Outcome(records, elapsed, _cpu_s() - cpu)


def raw_latency(job: Job) -> Outcome:
    raw.latencies(job.bootstrap, job.topic, job.value_bytes, LATENCY_RAMP_UP)
    began = _wait_for_start()
    cpu = _cpu_s()
    taken = raw.latencies(job.bootstrap, job.topic, job.value_bytes, job.records)
    elapsed = time.perf_counter() - began
    return Outcome(job.records, elapsed, _cpu_s() - cpu, [seconds * 1000 for seconds in taken])


def rebalance(job: Job) -> Outcome:
    """Runs a group of `connections` members, which one more member joins and leaves repeatedly."""
    asyncio.run(group_load.rebalances(job.bootstrap, job.connections, 4))
    began = _wait_for_start()
    cpu = _cpu_s()
    taken = asyncio.run(group_load.rebalances(job.bootstrap, job.connections, job.records))
    elapsed = time.perf_counter() - began
    return Outcome(job.records, elapsed, _cpu_s() - cpu, [seconds * 1000 for seconds in taken])


def commit(job: Job) -> Outcome:
    """Commits with `in_flight` groups, each as soon as the previous commit is complete."""

    def send(seconds: float) -> tuple[int, float]:
        return asyncio.run(group_load.commits(job.bootstrap, job.topic, job.in_flight, job.connections, seconds))

    send(RAMP_UP_S)
    _wait_for_start()
    cpu = _cpu_s()
    done, elapsed = send(job.seconds)
    return Outcome(done, elapsed, _cpu_s() - cpu)


def commit_latency(job: Job) -> Outcome:
    asyncio.run(group_load.commit_latencies(job.bootstrap, job.topic, LATENCY_RAMP_UP))
    began = _wait_for_start()
    cpu = _cpu_s()
    taken = asyncio.run(group_load.commit_latencies(job.bootstrap, job.topic, job.records))
    elapsed = time.perf_counter() - began
    return Outcome(job.records, elapsed, _cpu_s() - cpu, [seconds * 1000 for seconds in taken])


def _transactional_load(job: Job) -> Load:
    return Load(job.bootstrap, job.topic, job.partitions, job.value_bytes, job.connections, job.records)


def transactions(job: Job) -> Outcome:
    """Commits transactions of `records` records with `connections` producers, each one after the other."""
    load = CLIENTS[job.client](_transactional_load(job))
    load.commit_for(TRANSACTIONS_RAMP_UP_S)
    _wait_for_start()
    cpu = _cpu_s()
    committed = load.commit_for(job.seconds)
    latencies_ms = [seconds * 1000 for seconds in committed.durations]
    return Outcome(len(latencies_ms), committed.elapsed, _cpu_s() - cpu, latencies_ms)


def transaction_fill(job: Job) -> Outcome:
    """Writes `in_flight` records in transactions of `records` records. Every tenth transaction is aborted. The
    outcome counts committed records."""
    load = LibrdkafkaLoad(_transactional_load(job))
    began = _wait_for_start()
    committed = load.fill(job.in_flight)
    return Outcome(committed, time.perf_counter() - began, 0.0)


def transaction_end_to_end(job: Job) -> Outcome:
    """Commits one record at a time, each after a read_committed consumer got the previous one."""
    load = CLIENTS[job.client](replace(_transactional_load(job), records=1))
    load.end_to_end(TRANSACTIONS_RAMP_UP)
    began = _wait_for_start()
    cpu = _cpu_s()
    taken = load.end_to_end(job.records)
    return Outcome(job.records, time.perf_counter() - began, _cpu_s() - cpu, [seconds * 1000 for seconds in taken])


def http(job: Job) -> Outcome:
    """Sends HTTP requests for `seconds`, each with `records` records. The outcome counts requests."""
    return asyncio.run(_http(job, until_stopped=False))


def http_until_stopped(job: Job) -> Outcome:
    """Sends HTTP requests until standard input has another line or ends."""
    return asyncio.run(_http(job, until_stopped=True))


async def _http(job: Job, until_stopped: bool) -> Outcome:
    requests = http_load.requests_of(job.api, job.bootstrap, job.topic, job.records, job.value_bytes)
    async with http_load.Connections(job.bootstrap, requests, job.connections, job.rate_per_s) as connections:
        await connections.run(HTTP_RAMP_UP_S)
        began = _wait_for_start()
        cpu = _cpu_s()
        if until_stopped:
            asyncio.get_running_loop().add_reader(sys.stdin, connections.stop)
        taken = await connections.run(HTTP_SECONDS_MAX if until_stopped else job.seconds)
        elapsed = time.perf_counter() - began
        used = _cpu_s() - cpu
    return Outcome(len(taken), elapsed, used, [seconds * 1000 for seconds in taken])


KINDS = {
    kind.__name__: kind
    for kind in (
        produce,
        consume,
        latency,
        raw_produce,
        raw_fill,
        raw_consume,
        raw_latency,
        rebalance,
        commit,
        commit_latency,
        transactions,
        transaction_fill,
        transaction_end_to_end,
        http,
        http_until_stopped,
    )
}


def main() -> None:
    job = Job(**json.loads(sys.argv[1]))
    print(json.dumps(asdict(KINDS[job.kind](job))), flush=True)


if __name__ == "__main__":
    main()
