"""A stateful pipeline whose process is killed with SIGKILL repeatedly: its table has every record once, no sum in its
topic includes a lost or a duplicated record, and no sum is in the topic twice. MOLDAU_SPARK_KILLS sets how often (4).

Every other kill hits Python only: its Java still writes, and the next run, which starts at once, waits for it.
"""

import json
import os
import random
import subprocess
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any

import psutil
import pytest
from deltalake import DeltaTable

from moldau.pipelines.templates.generator import GeneratedRecord
from moldau.testing import Broker
from support.log_reader import committed_records
from support.pipeline_runs import create_topics, send_all

pytestmark = [pytest.mark.spark, pytest.mark.slow]

KILLS = int(os.environ.get("MOLDAU_SPARK_KILLS", "4"))
SEED = int(os.environ.get("MOLDAU_SEED", "1"))
KEYS = 7
ROWS_AT_START = 600
ROWS_PER_BATCH = 200
BATCHES_BETWEEN = (1, 5)
WITHIN_S = 240.0
PIPELINE = f"""
name: sums
sources:
  numbers: {{topic: numbers, schema: "name STRING, number LONG"}}
transform: SELECT name, COUNT(*) AS count, SUM(number) AS sum FROM numbers GROUP BY name
sinks:
  out: {{topic: sums, key: name, mode: update}}
  table: {{delta: sums, mode: upsert, key: name}}
rate_limit: {ROWS_PER_BATCH}
spark: {{spark.driver.memory: 1g, spark.sql.shuffle.partitions: 2}}
"""


class Numbers:
    """Numbered records, those of a name in one partition, so that a count of summed records identifies them."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._count = 0

    def add(self, count: int) -> None:
        numbers = range(self._count, self._count + count)
        made = [
            GeneratedRecord(_name(n).encode(), json.dumps({"name": _name(n), "number": n}).encode()) for n in numbers
        ]
        send_all(self._bootstrap, "numbers", made)
        self._count += count

    def sums(self) -> dict[str, list[int]]:
        """Returns by name the sum of the first record, of the first two, …"""
        of_name: dict[str, list[int]] = defaultdict(list)
        for number in range(self._count):
            of_name[_name(number)].append(number)
        return {name: list(accumulate(numbers)) for name, numbers in of_name.items()}


def _name(number: int) -> str:
    return f"name-{number % KEYS}"


def test_a_pipeline_that_is_killed_counts_every_record_once(tmp_path: Path, only_moldau: None) -> None:
    chance = random.Random(SEED)
    (tmp_path / "sums.yaml").write_text(PIPELINE)
    left: list[psutil.Process] = []
    with Broker(settings={"auto.create.topics.enable": "false"}) as broker:
        create_topics(broker.bootstrap, {"numbers": 2, "sums": 2})
        numbers = Numbers(broker.bootstrap)
        numbers.add(ROWS_AT_START)
        try:
            for kill in range(KILLS):
                with started(tmp_path, broker.bootstrap) as run:
                    for _ in range(chance.randint(*BATCHES_BETWEEN)):
                        next_batch(run, tmp_path)
                        numbers.add(ROWS_PER_BATCH)
                    javas = [each for each in psutil.Process(run.pid).children() if each.name() == "java"]
                    left += javas
                    run.kill()
                    for java in javas if kill % 2 else []:
                        java.kill()
            with started(tmp_path, broker.bootstrap, "--available-now") as run:
                said = run.communicate(timeout=WITHIN_S)[0]
                assert run.returncode == 0, said + errors(tmp_path)
            committed = [json.loads(each.value or b"") for each in committed_records(broker.bootstrap, "sums")]
            check(numbers.sums(), table_rows(tmp_path), committed)
        finally:
            for java in psutil.wait_procs(left, timeout=10)[1]:
                java.kill()
    print(f"{sum(map(len, numbers.sums().values()))} rows, {KILLS} kills")


def check(sums: dict[str, list[int]], table: list[dict[str, Any]], topic: list[dict[str, Any]]) -> None:
    last = {name: {"name": name, "count": len(each), "sum": each[-1]} for name, each in sums.items()}
    assert sorted(table, key=lambda row: row["name"]) == [last[name] for name in sorted(last)]
    assert {row["name"]: row for row in topic} == last
    wrong = [row for row in topic if sums[row["name"]][row["count"] - 1] != row["sum"]]
    assert not wrong
    # Every micro-batch writes the names that it has changed, so their counts grow.
    counts = Counter((row["name"], row["count"]) for row in topic)
    assert set(counts.values()) == {1}, f"written more than once: {counts.most_common(5)}"


def table_rows(directory: Path) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = DeltaTable(str(directory / "sums")).to_pyarrow_table().to_pylist()
    return rows


def started(directory: Path, bootstrap: str, *more: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "moldau", "pipeline", "run", "sums.yaml", "--json", "-b", bootstrap]
    with (directory / "errors").open("a") as errors:
        return subprocess.Popen(
            [*command, "--master", "local[2]", *more],
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )


def next_batch(run: "subprocess.Popen[str]", directory: Path) -> None:
    """Waits until some query has finished a batch with rows."""
    too_late = threading.Timer(WITHIN_S, run.kill)
    too_late.start()
    try:
        for line in batches(run):
            if json.loads(line)["rows"]:
                return
    finally:
        too_late.cancel()
    raise AssertionError(f"the run ended by itself, or made no progress: {errors(directory)}")


def batches(run: "subprocess.Popen[str]") -> Iterator[str]:
    assert run.stdout is not None
    while line := run.stdout.readline():
        yield line


def errors(directory: Path) -> str:
    return (directory / "errors").read_text()[-3000:]
