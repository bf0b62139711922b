"""What the outbox costs: `python -m bench.outbox [--quick] [--only NAME] [--out FILE]` writes bench/OUTBOX.md."""

from __future__ import annotations

import argparse
import platform
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil  # type: ignore[import-untyped]
import psycopg
from confluent_kafka import Consumer, TopicPartition
from rich.console import Console
from tests.support.postgres import HOW_TO_GET_ONE, PostgresServer, find_servers

from bench.brokers import FSYNC, Moldau
from bench.load import LoadFailed
from bench.outbox_writers import PLAIN_TABLE, WriterJob, write
from bench.quiet import BackgroundLoad
from bench.report import (
    OTHERS,
    Cell,
    Figures,
    Metric,
    Row,
    Table,
    count,
    decimals,
    percentile,
    render_disturbed,
    render_summary,
    render_table,
)
from bench.run import commit_line, machine_line

METHOD = Path(__file__).with_name("METHOD_OUTBOX.md")
RESULTS = Path(__file__).with_name("OUTBOX.md")
NAMES = ("transactions", "latency", "throughput")

AIM_TRANSACTIONS = 0.9
AIM_P50_MS = 30.0
AIM_EVENTS_PER_S = 10_000.0
WRITERS = 16
EVENTS_PER_TRANSACTION = 10
PACED_EVENTS_PER_S = 12_000
DEADLINE_S = 120.0

RATE = Metric("transactions/s", count, higher_is_better=True)
EVENTS = Metric("events/s", count, higher_is_better=True)
P50 = Metric("p50 ms", decimals(1))
P99 = Metric("p99 ms", decimals(1), compared=False)
BACKLOG = Metric("rows left at the end", count, compared=False)
CPU = Metric("relay CPU, cores", decimals(3), compared=False)
SERVER_CPU = Metric("Postgres CPU, cores", decimals(3), compared=False)


@dataclass(frozen=True)
class OutboxPlan:
    seconds: float
    runs: int
    events: int
    """Events whose latency is measured."""
    backlog: int
    """Rows that the relay sends at full speed."""


FULL_PLAN = OutboxPlan(15.0, 6, 300, 300_000)
QUICK_PLAN = OutboxPlan(3.0, 2, 40, 30_000)


class Stand:
    """A node, a Postgres server with an outbox, and a relay that can be started."""

    def __init__(self, node: Moldau, server: PostgresServer) -> None:
        self.node = node
        self.server = server
        self._relay: subprocess.Popen[bytes] | None = None

    @contextmanager
    def relay(self) -> Iterator[psutil.Process]:
        command = (sys.executable, "-m", "moldau", "outbox", "relay", self.server.url, "-b", self.node.bootstrap)
        with (self.node.data_dir / "relay.log").open("ab") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        try:
            before = self.requested("SELECT epoch FROM moldau.outbox_state")
            self.wait(lambda: self.requested("SELECT epoch FROM moldau.outbox_state") >= max(1, before), "the relay")
            yield psutil.Process(process.pid)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(DEADLINE_S)

    def requested(self, query: str) -> int:
        with psycopg.connect(self.server.url) as connection:
            row = connection.execute(query.encode()).fetchone()
        assert row is not None
        return int(row[0])

    def backlog(self) -> int:
        return self.requested("SELECT count(*) FROM moldau.outbox")

    def wait(self, is_done: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not is_done():
            if time.monotonic() > deadline:
                raise LoadFailed(f"{what} took longer than {DEADLINE_S:.0f} s")
            time.sleep(0.02)

    def server_cpu_s(self) -> float:
        total = 0.0
        for each in [psutil.Process(self.server.pid), *psutil.Process(self.server.pid).children()]:
            try:
                used = each.cpu_times()
            except psutil.NoSuchProcess:
                continue
            total += used.user + used.system + used.children_user + used.children_system
        return total


@contextmanager
def stand(directory: Path | None) -> Iterator[Stand]:
    servers = find_servers()
    if not servers:
        raise LoadFailed(HOW_TO_GET_ONE)
    with ExitStack() as stack:
        data = stack.enter_context(TemporaryDirectory(prefix="moldau-bench-", dir=directory))
        server = stack.enter_context(PostgresServer(servers[max(servers, key=int)]))
        node = Moldau(Path(data, "moldau"), FSYNC)
        node.start()
        stack.callback(node.stop)
        subprocess.run([sys.executable, "-m", "moldau", "outbox", "install", server.url], check=True)
        with psycopg.connect(server.url) as connection:
            connection.execute(PLAIN_TABLE.encode())
        yield Stand(node, server)


def transactions(bench: Stand, plan: OutboxPlan) -> Table:
    job = WriterJob(bench.server.url, "produce", plan.seconds, WRITERS)
    for statement in ("produce", "plain"):
        write(replace(job, statement=statement, seconds=min(2.0, plan.seconds)))
    taken: dict[str, list[float]] = {"produce": [], "plain": []}
    others = []
    for number in range(plan.runs):
        for statement in ("produce", "plain") if number % 2 == 0 else ("plain", "produce"):
            load, server_s = BackgroundLoad(bench.node), bench.server_cpu_s()
            written = write(replace(job, statement=statement))
            # The time in which the processes of the writers start is part of neither.
            others.append(load.cores(written.cpu_s + bench.server_cpu_s() - server_s))
            taken[statement].append(written.transactions / plan.seconds)
    with psycopg.connect(bench.server.url) as connection:
        connection.execute("TRUNCATE moldau.outbox, plain, purchase")
    cells = (
        Cell(RATE, Figures(tuple(taken["produce"]), tuple(taken["plain"])), AIM_TRANSACTIONS),
        Cell(OTHERS, Figures(tuple(others))),
    )
    note = f"{WRITERS} connections; each transaction inserts a row and one event of 200 bytes. No relay is running."
    return Table("User transactions", (Row("one event", cells),), note, ("moldau.produce", "plain insert"))


def latency(bench: Stand, plan: OutboxPlan) -> Table:
    chance = random.Random(1)
    consumer = Consumer(
        {
            "bootstrap.servers": bench.node.bootstrap,
            "group.id": "bench",
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
        }
    )
    taken = []
    with bench.relay() as relay, psycopg.connect(bench.server.url, prepare_threshold=1) as connection:

        def send() -> float:
            began = time.perf_counter()
            connection.execute("SELECT moldau.produce('idle', 'key', 'value')")
            connection.commit()
            while (message := consumer.poll(DEADLINE_S)) is not None and message.error() is not None:
                pass
            if message is None:
                raise LoadFailed("an event did not arrive")
            return (time.perf_counter() - began) * 1000

        consumer.assign([TopicPartition("idle", 0, 0)])
        for _ in range(5):
            send()
        load, relay_s, server_s, began_s = BackgroundLoad(bench.node), cpu_s(relay), bench.server_cpu_s(), time.time()
        for _ in range(plan.events):
            time.sleep(chance.uniform(0.1, 0.4))
            taken.append(send())
        relay_cpu, server_cpu = cpu_s(relay) - relay_s, bench.server_cpu_s() - server_s
        other, seconds = load.cores(relay_cpu + server_cpu), time.time() - began_s
    consumer.close()
    cells = (
        Cell(P50, Figures((percentile(taken, 0.5),), (AIM_P50_MS,)), 1.0),
        Cell(P99, Figures((percentile(taken, 0.99),))),
        Cell(CPU, Figures((relay_cpu / seconds,))),
        Cell(SERVER_CPU, Figures((server_cpu / seconds,))),
        Cell(OTHERS, Figures((other,))),
    )
    note = (
        "From the call of moldau.produce until a consumer with read_committed has the record; the commit of the "
        "user's transaction is included. One event every 0.1 to 0.4 s."
    )
    return Table("End to end, idle", (Row("one event", cells),), note, ("outbox", "aim"))


def throughput(bench: Stand, plan: OutboxPlan) -> Table:
    interval_s = WRITERS * EVENTS_PER_TRANSACTION / PACED_EVENTS_PER_S
    job = WriterJob(bench.server.url, "produce", 2 * plan.seconds, WRITERS, EVENTS_PER_TRANSACTION, interval_s)
    with bench.relay() as relay:
        write(replace(job, seconds=2.0))
        bench.wait(lambda: bench.backlog() == 0, "the warm-up")
        load, relay_s, server_s = BackgroundLoad(bench.node), cpu_s(relay), bench.server_cpu_s()
        written = write(job)
        left = bench.backlog()
        relay_cpu, server_cpu = cpu_s(relay) - relay_s, bench.server_cpu_s() - server_s
        paced = (
            (written.transactions * EVENTS_PER_TRANSACTION - left) / job.seconds,
            left,
            relay_cpu / job.seconds,
            server_cpu / job.seconds,
            load.cores(written.cpu_s + relay_cpu + server_cpu),
        )
        bench.wait(lambda: bench.backlog() == 0, "the rest")
    with psycopg.connect(bench.server.url) as connection:
        connection.execute(
            "SELECT count(moldau.produce('orders', (number %% 1000)::text, repeat('x', 200))) "
            "FROM generate_series(1, %s) AS number",
            (plan.backlog,),
        )
    with bench.relay() as relay:
        bench.wait(lambda: bench.backlog() < plan.backlog, "the start")
        load, relay_s, server_s = BackgroundLoad(bench.node), cpu_s(relay), bench.server_cpu_s()
        began, first = time.monotonic(), bench.backlog()
        bench.wait(lambda: bench.backlog() == 0, "the backlog")
        seconds = time.monotonic() - began
        relay_cpu, server_cpu = cpu_s(relay) - relay_s, bench.server_cpu_s() - server_s
        drained = (first / seconds, 0, relay_cpu / seconds, server_cpu / seconds, load.cores(relay_cpu + server_cpu))
    rows = []
    cases = {
        f"{WRITERS} writers, {EVENTS_PER_TRANSACTION} events per transaction, paced": paced,
        "a backlog, without writers": drained,
    }
    for case, (rate, rest, relay_cores, server_cores, other) in cases.items():
        cells = (
            Cell(EVENTS, Figures((rate,), (AIM_EVENTS_PER_S,)), 1.0),
            Cell(BACKLOG, Figures((rest,))),
            Cell(CPU, Figures((relay_cores,))),
            Cell(SERVER_CPU, Figures((server_cores,))),
            Cell(OTHERS, Figures((other,))),
        )
        rows.append(Row(case, cells))
    note = f"Events of 200 bytes with 1,000 keys. Paced: the writers offer {PACED_EVENTS_PER_S:,} events per second."
    return Table("Sustained", tuple(rows), note, ("outbox", "aim"))


def cpu_s(process: psutil.Process) -> float:
    used = process.cpu_times()
    return float(used.user + used.system)


def page(tables: Sequence[Table], facts: str, command: str) -> str:
    parts = [
        "# Outbox",
        f"Written by `{command}`.",
        facts,
        render_disturbed(tables),
        render_summary(tables),
        METHOD.read_text(),
        "## Figures",
        *(render_table(table, with_kafka=True) for table in tables),
    ]
    return "\n\n".join(part.strip() for part in parts if part) + "\n"


def _facts(server: PostgresServer, took_s: float) -> str:
    name = subprocess.run([server.binaries / "postgres", "--version"], capture_output=True, text=True, check=True)
    lines = (
        f"machine: {machine_line()}",
        f"Moldau {version('moldau')} at commit {commit_line()}, Python {platform.python_version()}",
        f"{name.stdout.strip()}, defaults, fsync on; psycopg {version('psycopg')}",
        f"{time.strftime('%Y-%m-%d', time.gmtime())}, {took_s / 60:.0f} min in all",
    )
    return "\n".join(f"- {line}" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.outbox", description="Measures what the outbox costs.")
    parser.add_argument("--quick", action="store_true", help="short runs")
    parser.add_argument("--only", choices=NAMES, action="append", help="leave out the other parts")
    parser.add_argument("--out", type=Path, help="default: bench/OUTBOX.md for a whole run, else shown")
    parser.add_argument("--dir", type=Path, help="where the node keeps its data meanwhile")
    options = parser.parse_args()
    console = Console(stderr=True)
    plan = QUICK_PLAN if options.quick else FULL_PLAN
    began = time.monotonic()
    parts = {"transactions": transactions, "latency": latency, "throughput": throughput}
    with console.status("measuring"), stand(options.dir) as bench:
        tables = [part(bench, plan) for name, part in parts.items() if name in (options.only or NAMES)]
        facts = _facts(bench.server, time.monotonic() - began)
    words = ["--quick"] if options.quick else []
    words += [f"--only {name}" for name in options.only or ()]
    text = page(tables, facts, " ".join(["python -m bench.outbox", *words]))
    out = options.out or (None if options.quick or options.only else RESULTS)
    if out is None:
        print(text)
    else:
        out.write_text(text)
        console.print(f"written: {out}")


if __name__ == "__main__":
    main()
