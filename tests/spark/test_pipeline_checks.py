"""Checks of a pipeline without starting it."""

import re
import textwrap
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from moldau.pipelines import load
from moldau.pipelines.planner.checks import check
from moldau.pipelines.planner.query_planner import CheckpointLocation
from moldau.pipelines.planner.topic_checks import Finding
from moldau.testing import Broker
from support.log_writer import LogWriter

pytestmark = pytest.mark.spark

GOOD = """
name: test
bootstrap: {bootstrap}
sources:
  orders:
    topic: {orders}
    schema: product STRING, n INT, at TIMESTAMP
    watermark: {{column: at, delay: 1 minute}}
    expectations: {{positive: n > 0}}
  things: {{topic: {things}, schema: a STRING}}
transform:
  total: SELECT window.start AS minute, product, SUM(n) AS n FROM orders GROUP BY window(at, '1 minute'), product
  joined: SELECT o.product, t.a FROM orders o JOIN things t ON o.product = t.a
sinks:
  out: {{topic: {out}, from: total, key: product, mode: update}}
  table: {{delta: table, mode: upsert, from: total, key: [minute, product]}}
  files: {{parquet: files, from: total}}
  screen: {{console: true}}
on_bad: drop
"""


@pytest.fixture(scope="module")
def good(broker: Broker) -> str:
    written = LogWriter(broker.bootstrap)
    things = written.create("things")
    written.send(things, [b'{"a": "x"}'])
    return GOOD.format(
        bootstrap=broker.bootstrap, orders=written.create("orders"), out=written.create("out"), things=things
    )


def findings(spark: SparkSession, folder: Path, text: str, place: CheckpointLocation | None = None) -> list[Finding]:
    path = folder / "test.yaml"
    path.write_text(textwrap.dedent(text))
    return check(spark, load(path), place)


def test_a_pipeline_that_would_run_has_no_findings_and_leaves_nothing_behind(
    spark: SparkSession, good: str, tmp_path: Path
) -> None:
    place = CheckpointLocation(str(tmp_path / "checkpoints"), 1)
    assert findings(spark, tmp_path, good.replace(", schema: a STRING", ""), place) == []
    assert [each.name for each in tmp_path.iterdir()] == ["test.yaml"]
    assert spark.streams.active == []


@pytest.mark.parametrize(
    ("before", "after", "where", "said", "fix"),
    [
        ("topic: out-", "topic: outt-", "sinks.out.topic", "there is no topic outt-", "moldau topic create outt-"),
        ("topic: orders-", "topic: order-", "sources.orders.topic", "; did you mean orders-", "moldau topic create"),
        ("n > 0", "m > 0", "sources.orders.expectations.positive", "`m` cannot be resolved", ""),
        ("n > 0", "n + 1", "sources.orders.expectations.positive", "'n + 1' is INT", "write what must be true"),
        ("product STRING, n", "product STRIN, n", "sources.orders.schema", "not name TYPE, name TYPE", ""),
        ("column: at", "column: n", "sources.orders", "it must be TIMESTAMP", ""),
        ("SUM(n) AS n", "SUM(m) AS n", "transform.total", "the view total: ", ""),
        ("mode: update", "mode: append, format: string", "sinks.out", "one column called `value`", ""),
        ("key: product, mode", "key: prodct, mode", "sinks.out", "names the column 'prodct'", ""),
        (
            "    watermark: {column: at, delay: 1 minute}\n",
            "",
            "sinks.files.mode",
            "append. This output mode is not supported for streaming aggregations without watermark",
            "mode: update or complete, or a watermark on its source",
        ),
        ("console: true}", "console: true, from: orders, mode: complete}", None, "", ""),
        (
            "{topic: things-",
            "{options: {startingOffset: 1}, topic: things-",
            "sources.things.options",
            "startingOffsets",
            "",
        ),
        ("mode: update}", "mode: update, options: {kafka.ack: all}}", "sinks.out.options", "ack", ""),
        ("parquet: files", "parquet: test.yaml/files", "sinks.files.parquet", "test.yaml is a file", "choose another"),
    ],
)
def test_problems_are_found_with_their_path_and_a_fix(
    spark: SparkSession, good: str, tmp_path: Path, before: str, after: str, where: str | None, said: str, fix: str
) -> None:
    assert before in good
    found = [each for each in findings(spark, tmp_path, good.replace(before, after, 1)) if each.severity == "error"]
    if where is None:
        assert found == []
        return
    assert [each.where for each in found] == [where]
    assert said in found[0].message
    assert fix in found[0].fix


def test_an_unreachable_cluster_is_named_and_the_rest_is_checked(
    spark: SparkSession, good: str, broker: Broker, tmp_path: Path
) -> None:
    text = good.replace(broker.bootstrap, "127.0.0.1:1").replace("SUM(n) AS n", "SUM(m) AS n")
    text += "kafka: {request.timeout.ms: 300}\n"
    found = findings(spark, tmp_path, text)
    assert [each.where for each in found] == ["bootstrap", "transform.total"]
    assert "no response from the cluster at 127.0.0.1:1" in found[0].message
    assert "moldau serve" in found[0].fix


def test_a_table_with_other_columns_is_found(spark: SparkSession, good: str, tmp_path: Path) -> None:
    import pyarrow as pa
    from deltalake import write_deltalake

    write_deltalake(str(tmp_path / "table"), pa.table({"minute": ["text"], "product": ["a"], "n": [1]}))
    (found,) = findings(spark, tmp_path, good)
    assert found.where == "sinks.table.delta"
    assert "minute" in found.message


def test_the_checkpoint_of_another_pipeline_is_found(spark: SparkSession, good: str, tmp_path: Path) -> None:
    place = CheckpointLocation(str(tmp_path / "checkpoints"), 1)
    checkpoint = Path(place.of("out"))
    checkpoint.mkdir(parents=True)
    (checkpoint / "pipeline.json").write_text(
        '{"pipeline": "other", "query": "out", "sources": {}, "sink": "", "id": "1"}'
    )
    (found,) = findings(spark, tmp_path, good, place)
    assert found.where == "checkpoint"
    assert "belongs to the query out of the pipeline other" in found.message


def test_an_upsert_without_order_is_a_warning(spark: SparkSession, good: str, tmp_path: Path) -> None:
    text = good.replace("from: total, key: [minute, product]", "from: joined, key: [product]")
    (found,) = findings(spark, tmp_path, text)
    assert (found.severity, found.where) == ("warning", "sinks.table")
    assert "order_by" in found.fix


def test_records_that_do_not_match_the_schema_are_a_warning(
    spark: SparkSession, good: str, written: LogWriter, tmp_path: Path
) -> None:
    topic = written.create("mixed")
    written.send(topic, [b'{"a": "x"}', b"none", b'{"a": 1', b'{"a": "y"}'])
    text = re.sub(r"topic: things-\d+", f"topic: {topic}", good)
    (found,) = findings(spark, tmp_path, text)
    assert (found.severity, found.where) == ("warning", "sources.things")
    assert found.message == (
        f"2 of the first 4 records are bad: {topic}-0 offset 1 (malformed): the value is not a JSON object"
    )
    assert "dropped" in found.fix
    (found,) = findings(spark, tmp_path, re.sub(r"topic: things-\d+", "pattern: nothing-.*", good))
    assert "no topic matches" in found.message
