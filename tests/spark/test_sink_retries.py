"""Tasks that fail and are retried: no row is lost, and only without transactions those of the failed task may be
duplicated in a topic.

Runs in a separate process, because the shared session fails at the first task failure.
"""

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from deltalake import DeltaTable

from moldau.testing import Broker
from support.log_reader import all_records, committed_records
from support.log_writer import LogWriter

pytestmark = pytest.mark.spark

SCRIPT = """
import sys
import moldau.spark
from moldau.spark.sink.delta import DeltaSink
from pyspark import TaskContext

bootstrap, topic, once, path = sys.argv[1:]
spark = moldau.spark.session(master="local[2,3]", settings={"spark.ui.enabled": "false"}, quiet=True)
spark.dataSource.register(DeltaSink)

def fails_once(batches):
    yield from batches
    if TaskContext.get().partitionId() == 1 and TaskContext.get().attemptNumber() == 0:
        raise RuntimeError("the first attempt of this task fails after its last row")

rows = spark.range(0, 2000, 1, 2).mapInArrow(fails_once, "id BIGINT")
write = rows.selectExpr("CAST(id AS STRING) AS value").write.format("moldau").mode("append")
write.options(**{"kafka.bootstrap.servers": bootstrap, "topic": topic}).save()
write.options(topic=once, delivery="exactly-once").save()
rows.write.format("moldau_delta").mode("append").save(path)
spark.stop()
"""


def test_a_retried_task_loses_no_row(broker: Broker, written: LogWriter, tmp_path: Path) -> None:
    topic, once, path = written.create(partitions=2), written.create(partitions=2), tmp_path / "table"
    run = subprocess.run(
        [sys.executable, "-c", SCRIPT, broker.bootstrap, topic, once, str(path)],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert run.returncode == 0, run.stderr
    assert "the first attempt of this task fails" in run.stderr
    counts = Counter(int(each.value or b"") for each in all_records(broker.bootstrap, topic))
    assert set(counts) == set(range(2000))
    assert {counts[number] for number in range(1000)} == {1}
    committed = [int(each.value or b"") for each in committed_records(broker.bootstrap, once)]
    assert sorted(committed) == list(range(2000))
    assert sorted(DeltaTable(path).to_pyarrow_table()["id"].to_pylist()) == list(range(2000))
