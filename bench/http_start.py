"""Start and memory of a node without and with `--http-port`, and after the first request to the HTTP API."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.brokers import PAGE_CACHE, Moldau, let_idle
from bench.http_servers import HttpNode, get_status
from bench.load import LoadFailed
from bench.plan import Bench
from bench.quiet import BackgroundLoad
from bench.report import OTHERS, Cell, Figures, Metric, Row, Table, decimals, megabytes

PROJECT = Path(__file__).resolve().parents[1]
AIM_START = 1.1
AIM_MEMORY = 1.05
SECONDS = Metric("s", decimals(3))
MEMORY = Metric("resident memory", megabytes)
API_PATH = "/admin/v1/topics"

BASELINE, WITHOUT, WITH = "baseline", "without `--http-port`", "with `--http-port`, no request"
LOADED = "after the first request to the HTTP API"
SIDES = ("this checkout", BASELINE)


@dataclass(frozen=True)
class Start:
    start_s: float
    idle_bytes: int
    other_cores: float
    first_request_s: float = 0.0
    second_request_s: float = 0.0
    loaded_bytes: int = 0


def start_and_memory(bench: Bench, starts: int, baseline: Path | None) -> list[Table]:
    sides = [WITHOUT, WITH] if baseline is None else [BASELINE, WITHOUT, WITH]
    taken: dict[str, list[Start]] = {side: [] for side in sides}
    for number in range(starts):
        for side in sides if number % 2 == 0 else reversed(sides):
            taken[side].append(_once(bench, side, PROJECT if side != BASELINE or baseline is None else baseline))
    before = tuple(taken.get(BASELINE, ()))
    rows, memory = [], []
    for side in (WITHOUT, WITH):
        aims = (AIM_START, AIM_MEMORY) if side == WITHOUT else (None, None)
        cells = (
            Cell(SECONDS, _figures(taken[side], before, "start_s"), aims[0]),
            Cell(OTHERS, _figures(taken[side], before, "other_cores")),
        )
        rows.append(Row(side, cells))
        memory.append(Row(side, (Cell(MEMORY, _figures(taken[side], before, "idle_bytes"), aims[1]),)))
    loaded = tuple(float(one.loaded_bytes) for one in taken[WITH])
    memory.append(Row(LOADED, (Cell(MEMORY, Figures(loaded, tuple(float(one.idle_bytes) for one in before))),)))
    requests = (
        Row("first, which loads the API", (Cell(SECONDS, _figures(taken[WITH], (), "first_request_s")),)),
        Row("second", (Cell(SECONDS, _figures(taken[WITH], (), "second_request_s")),)),
    )
    for row in (*rows, *memory, *requests):
        bench.print_row("start", row)
    note = "An empty data directory, from starting the process to the first acknowledged record of a Kafka producer."
    idle = f"{bench.plan.idle_s:g} s after the start, and again after the first requests."
    return [
        Table("Start", tuple(rows), note, SIDES),
        Table("Memory", tuple(memory), idle, SIDES),
        Table(f"The first `GET {API_PATH}`", requests, "Each on its own connection.", SIDES),
    ]


def _figures(ours: list[Start], theirs: tuple[Start, ...], name: str) -> Figures:
    return Figures(tuple(getattr(one, name) for one in ours), tuple(getattr(one, name) for one in theirs))


def _once(bench: Bench, side: str, checkout: Path) -> Start:
    # `env` replaces itself by the node, so the process id is the node's.
    command = ("env", f"PYTHONPATH={checkout / 'src'}", sys.executable, "-m", "moldau")
    with TemporaryDirectory(prefix="moldau-bench-", dir=bench.directory) as directory:
        node = (HttpNode if side == WITH else Moldau)(Path(directory), PAGE_CACHE, command)
        try:
            return _measure(bench, node)
        finally:
            node.stop()


def _measure(bench: Bench, node: Moldau) -> Start:
    node.prepare()
    let_idle()
    began = time.monotonic()
    node.launch()
    others = BackgroundLoad(node, broker_cpu_s=0.0)
    node.wait_for_acknowledgement()
    start_s, other_cores = time.monotonic() - began, others.cores()
    time.sleep(bench.plan.idle_s)
    idle_bytes = node.resident_bytes()
    if not isinstance(node, HttpNode):
        return Start(start_s, idle_bytes, other_cores)
    first_s, second_s = (_request_s(node.http_address) for _ in range(2))
    time.sleep(bench.plan.idle_s)
    return Start(start_s, idle_bytes, other_cores, first_s, second_s, node.resident_bytes())


def _request_s(address: str) -> float:
    began = time.monotonic()
    status = get_status(address, API_PATH)
    if status != 200:
        raise LoadFailed(f"GET {API_PATH} has status {status}")
    return time.monotonic() - began
