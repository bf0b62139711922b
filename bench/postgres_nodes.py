"""A node that keeps everything in Postgres beside one with files, with librdkafka as client."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil  # type: ignore[import-untyped]
from tests.support.postgres import PostgresServer

from bench.brokers import FSYNC, Durability, Moldau
from bench.load import Run, run, topic
from bench.plan import Bench, Case
from bench.report import OTHERS, Cell, Figures, Metric, Row, Table, count, decimals, percentile

SIDES = ("Postgres", "files")
CASES = (Case(100, 16 << 10, 1), Case(1024, 16 << 10, 16), Case(1024, 1 << 20, 1))

RATE = Metric("records/s", count, higher_is_better=True)
MEGABYTES = Metric("MB/s", count, higher_is_better=True)
CPU = Metric("CPU-s/GB of node and server", decimals(2))
P50 = Metric("p50 ms", decimals(2))
P99 = Metric("p99 ms", decimals(2))


class FileNode(Moldau):
    name = "files"


class PostgresNode(Moldau):
    """A node whose CPU time contains that of its Postgres server."""

    name = "Postgres"

    def __init__(self, data_dir: Path, durability: Durability, server: PostgresServer) -> None:
        super().__init__(data_dir, durability)
        at = self._command.index("--data-dir")
        self._command[at : at + 2] = ["--store", server.url]
        self._server = server

    def _processes(self) -> list[psutil.Process]:
        server = psutil.Process(self._server.pid)
        return [*super()._processes(), server, *server.children(recursive=True)]


@contextmanager
def _nodes(bench: Bench, server: PostgresServer) -> Iterator[list[Moldau]]:
    with TemporaryDirectory(prefix="moldau-bench-", dir=bench.directory) as directory, ExitStack() as stack:
        nodes = [PostgresNode(Path(directory, "postgres"), FSYNC, server), FileNode(Path(directory, "files"), FSYNC)]
        for node in nodes:
            stack.enter_context(node)
        yield nodes


def measure(bench: Bench, server: PostgresServer) -> list[Table]:
    with _nodes(bench, server) as nodes:
        for node in nodes:
            _produce_once(CASES[0], bench.plan.produce_s, node)
        return [_produce(bench, nodes), _consume(bench, nodes), _acknowledgement(bench, nodes)]


def _produce(bench: Bench, nodes: Sequence[Moldau]) -> Table:
    rows = []
    for case in CASES:
        taken = bench.interleaved(nodes, partial(_produce_once, case, bench.plan.produce_s))
        rows.append(_row(case, taken))
        bench.print_row("produce", rows[-1])
    return Table("Nodes: produce with acks=all, librdkafka", tuple(rows), sides=SIDES)


def _produce_once(case: Case, seconds: float, node: Moldau) -> Run:
    with topic(node, case.partitions) as name:
        return run(node, case.job("produce", node, name, seconds))


def _consume(bench: Bench, nodes: Sequence[Moldau]) -> Table:
    rows = []
    for case in CASES:
        with ExitStack() as stack:
            filled = {}
            for node in nodes:
                name = stack.enter_context(topic(node, case.partitions))
                wanted = bench.plan.consume_bytes[case.value_bytes] // case.value_bytes
                filled[node.name] = name, run(node, case.job("raw_fill", node, name, records=wanted)).outcome.records
            taken = bench.interleaved(nodes, partial(_consume_once, case, filled))
        rows.append(_row(case, taken))
        bench.print_row("consume", rows[-1])
    return Table("Nodes: consume, librdkafka", tuple(rows), sides=SIDES)


def _consume_once(case: Case, filled: Mapping[str, tuple[str, int]], node: Moldau) -> Run:
    name, records = filled[node.name]
    return run(node, case.job("consume", node, name, records=records))


def _acknowledgement(bench: Bench, nodes: Sequence[Moldau]) -> Table:
    case = CASES[0]
    taken = bench.interleaved(nodes, partial(_latency_once, case, bench.plan.acknowledgements))
    cells = (
        Cell(P50, _figures(taken, lambda one: percentile(one.outcome.latencies_ms, 0.5))),
        Cell(P99, _figures(taken, lambda one: percentile(one.outcome.latencies_ms, 0.99))),
        Cell(OTHERS, _figures(taken, lambda one: one.other_cores)),
    )
    row = Row("100 B, one record at a time", cells)
    bench.print_row("acknowledgement", row)
    return Table("Nodes: acknowledgement with acks=all, librdkafka", (row,), sides=SIDES)


def _latency_once(case: Case, records: int, node: Moldau) -> Run:
    with topic(node, 1) as name:
        return run(node, case.job("latency", node, name, records=records))


def _row(case: Case, taken: Mapping[str, list[Run]]) -> Row:
    return Row(
        case.name,
        (
            Cell(RATE, _figures(taken, lambda one: one.records_per_s)),
            Cell(MEGABYTES, _figures(taken, lambda one: one.bytes / 1e6 / one.outcome.elapsed_s)),
            Cell(CPU, _figures(taken, lambda one: one.cpu_s_per_gb)),
            Cell(OTHERS, _figures(taken, lambda one: one.other_cores)),
        ),
    )


def _figures(taken: Mapping[str, list[Run]], value: Callable[[Run], float]) -> Figures:
    ours, theirs = (tuple(value(one) for one in taken[side]) for side in SIDES)
    return Figures(ours, theirs)
