"""Pipelines from topics to a real Postgres server: rows, tombstones, replay, checks, and a process that is killed.

MOLDAU_SPARK_KILLS sets how often the process is killed (4).
"""

import builtins
import json
import random
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest
from pyspark.sql import SparkSession
from test_pipeline_run_kills import KILLS, ROWS_AT_START, ROWS_PER_BATCH, SEED, WITHIN_S, Numbers, next_batch, started
from test_pipeline_run_kills import errors as errors_of

from moldau.pipelines import PipelineError, load
from moldau.pipelines.planner.checks import check
from moldau.pipelines.planner.query_planner import CheckpointLocation, plan
from moldau.pipelines.planner.replay import describe_replay
from moldau.pipelines.runtime.state_directory import CheckpointGeneration, Generations
from moldau.spark.sink import postgres as sink
from moldau.testing import Broker
from moldau.testing.pipeline import run_pipeline
from support.log_writer import LogWriter, ProducedRecord
from support.pipeline_runs import create_topics
from support.postgres import PostgresServer

pytestmark = pytest.mark.spark

PASSWORD = "sesame-opens"
"""The server does not ask for it. It must be in no file that a run writes."""


FIRST_GENERATION = Generations(1, (CheckpointGeneration(1, "2024-05-01T00:00:00Z", "earliest"),))


@pytest.fixture
def schema(postgres: PostgresServer, request: pytest.FixtureRequest) -> Iterator[str]:
    """A schema of this test, which is dropped at its end."""
    name = f"test_{abs(hash(request.node.name))}"
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute(f"create schema {name}")
        yield name
        connection.execute(f"drop schema {name} cascade")


def url_of(postgres: PostgresServer) -> str:
    return postgres.url.replace("moldau@", f"moldau:{PASSWORD}@")


def select(postgres: PostgresServer, statement: str) -> list[tuple[Any, ...]]:
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        return connection.execute(statement).fetchall()


def file_of(folder: Path, bootstrap: str, text: str) -> Path:
    path = folder / "test.yaml"
    path.write_text(f"name: test\nbootstrap: {bootstrap}\n{textwrap.dedent(text)}")
    return path


def run(spark: SparkSession, file: Path, *, generation: int = 1) -> None:
    place = CheckpointLocation(str(file.parent / "checkpoints"), generation)
    queries = [each.start(True) for each in plan(spark, load(file), place, "earliest")]
    for query in queries:
        query.awaitTermination()


CUSTOMERS = """
sources:
  customers: {{topic: {topic}, schema: "name STRING, city STRING"}}
transform: SELECT _key AS customer, name, city, _deleted FROM customers
sinks:
  table: {{postgres: {schema}.customers, url: "{url}", mode: upsert, key: customer, delete_when: _deleted}}
  log: {{postgres: {schema}.log, url: "{url}"}}
"""


def customer(key: str, name: str | None) -> ProducedRecord:
    value = None if name is None else json.dumps({"name": name, "city": "Prague"}).encode()
    return ProducedRecord(value, key=key.encode())


def test_a_topic_becomes_a_table_and_a_log(
    spark: SparkSession, broker: Broker, written: LogWriter, postgres: PostgresServer, schema: str, tmp_path: Path
) -> None:
    topic = written.create("customers")
    written.send(topic, [customer("a", "Ada"), customer("b", "Bob"), customer("a", "Ada L."), customer("c", None)])
    text = CUSTOMERS.format(topic=topic, schema=schema, url=url_of(postgres))
    text = text.replace("customer, name, city, _deleted FROM", "customer, name, city, _deleted, _offset FROM")
    path = file_of(tmp_path, broker.bootstrap, text)
    run(spark, path)
    table = f"select * from {schema}.customers order by customer"
    assert select(postgres, table) == [("a", "Ada L.", "Prague"), ("b", "Bob", "Prague")]
    written.send(topic, [customer("b", None), customer("d", "Dan")])
    run(spark, path)
    run(spark, path)
    assert select(postgres, table) == [("a", "Ada L.", "Prague"), ("d", "Dan", "Prague")]
    assert select(postgres, f"select count(*), count(name) from {schema}.log") == [(6, 4)]
    keys = "select attname from pg_attribute where attrelid = '{}'::regclass and attnum > 0 order by attnum"
    assert select(postgres, keys.format(f"{schema}.log")) == [("customer",), ("name",), ("city",)]

    # A replay has its own batches: rows are appended again, and upserted rows are replaced.
    run(spark, path, generation=2)
    assert select(postgres, table) == [("a", "Ada L.", "Prague"), ("d", "Dan", "Prague")]
    assert select(postgres, f"select count(*) from {schema}.log") == [(12,)]
    assert select(postgres, f"select count(*) from {schema}.moldau_batches") == [(4,)]
    told = "\n".join(describe_replay(load(path), "earliest", FIRST_GENERATION))
    assert f"table (postgres {schema}.customers): rows with the same key are replaced" in told
    assert f"log (postgres {schema}.log): everything since then is written again" in told


def test_aggregated_rows_are_upserted(
    spark: SparkSession, broker: Broker, written: LogWriter, postgres: PostgresServer, schema: str, tmp_path: Path
) -> None:
    topic = written.create("orders")
    path = file_of(
        tmp_path,
        broker.bootstrap,
        f"""
        sources: {{orders: {{topic: {topic}, schema: "product STRING, n INT"}}}}
        transform: SELECT product, SUM(n) AS total, collect_list(n) AS each FROM orders GROUP BY product
        sinks: {{table: {{postgres: {schema}.totals, url: "{url_of(postgres)}", mode: upsert, key: product}}}}
        """,
    )
    for count in (1, 2):
        written.send(topic, [b'{"product": "tea", "n": %d}' % count, b'{"product": "milk", "n": 7}'])
        run(spark, path)
    assert select(postgres, f"select * from {schema}.totals order by product") == [
        ("milk", 14, [7, 7]),
        ("tea", 3, [1, 2]),
    ]


def test_the_check_finds_what_would_fail(
    spark: SparkSession,
    broker: Broker,
    written: LogWriter,
    postgres: PostgresServer,
    schema: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sink, "CHECK_RETRY_S", 0.2)
    text = CUSTOMERS.format(topic=written.create("customers"), schema=schema, url=url_of(postgres))
    text = text.replace("city, _deleted FROM", "city, _deleted, _offset FROM")

    def errors(text: str) -> list[tuple[str, str]]:
        return [(each.where, each.message) for each in check(spark, load(file_of(tmp_path, broker.bootstrap, text)))]

    assert errors(text) == []
    assert select(postgres, f"select count(*) from pg_class where relnamespace = '{schema}'::regnamespace") == [(0,)]
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute(f"create table {schema}.customers (customer text primary key, name int, city text)")
    ((where, message),) = errors(text)
    assert where == "sinks.table.postgres"
    assert "'name' is STRING here and integer in the table" in message
    assert f'create table "{schema}"."customers" (' in message
    found = errors(text.replace(f":{postgres.port}/", ":1/"))
    assert [where for where, _ in found] == ["sinks.table.postgres", "sinks.log.postgres"]
    assert all("127.0.0.1:1" in message and PASSWORD not in message for _, message in found)
    ((where, message),) = errors(text.replace("key: customer", "key: custmer"))
    assert (where, "did you mean customer" in message) == ("sinks.table", True)


def test_a_missing_psycopg_is_named(
    spark: SparkSession, written: LogWriter, broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = CUSTOMERS.format(topic=written.create("customers"), schema="s", url="postgresql://localhost/db")
    (query, _) = plan(
        spark, load(file_of(tmp_path, broker.bootstrap, text)), CheckpointLocation(str(tmp_path / "checkpoints"), 1)
    )
    real = builtins.__import__

    def without_psycopg(name: str, *more: Any, **named: Any) -> Any:
        if name == "moldau.spark.sink.postgres":
            raise ModuleNotFoundError("No module named 'psycopg'", name="psycopg")
        return real(name, *more, **named)

    monkeypatch.setattr(builtins, "__import__", without_psycopg)
    with pytest.raises(PipelineError, match=r"psycopg is not installed: pip install 'moldau\[postgres\]'"):
        query.start(True)


def test_a_test_of_a_pipeline_needs_no_database(spark: SparkSession, tmp_path: Path) -> None:
    text = CUSTOMERS.format(topic="customers", schema="shop", url="postgresql://no.such.host/db")
    text = text.replace("city, _deleted FROM", "city, _deleted, _offset FROM")
    rows = [("a", {"name": "Ada"}), ("b", {"name": "Bob"}), ("a", None)]
    result = run_pipeline(file_of(tmp_path, "127.0.0.1:1", text), {"customers": rows}, spark=spark)
    assert result.rows["table"] == [{"customer": "b", "name": "Bob", "city": None}]
    assert [row["customer"] for row in result.rows["log"]] == ["a", "b", "a"]


KILLED = f"""
name: sums
sources:
  numbers: {{topic: numbers, schema: "name STRING, number LONG"}}
transform: SELECT name, COUNT(*) AS count, SUM(number) AS sum FROM numbers GROUP BY name
sinks:
  table: {{postgres: SCHEMA.sums, url: "${{DATABASE_URL}}", mode: upsert, key: name}}
  log: {{postgres: SCHEMA.numbers, url: "${{DATABASE_URL}}", from: numbers}}
rate_limit: {ROWS_PER_BATCH}
spark: {{spark.driver.memory: 1g, spark.sql.shuffle.partitions: 2}}
"""


@pytest.mark.slow
def test_a_pipeline_that_is_killed_writes_every_row_once(
    postgres: PostgresServer, schema: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, only_moldau: None
) -> None:
    monkeypatch.setenv("DATABASE_URL", url_of(postgres))
    chance, left = random.Random(SEED), []
    (tmp_path / "sums.yaml").write_text(KILLED.replace("SCHEMA", schema))
    with Broker(settings={"auto.create.topics.enable": "false"}) as broker:
        create_topics(broker.bootstrap, {"numbers": 2})
        numbers = Numbers(broker.bootstrap)
        numbers.add(ROWS_AT_START)
        try:
            for kill in range(KILLS):
                with started(tmp_path, broker.bootstrap) as process:
                    for _ in range(chance.randint(1, 5)):
                        next_batch(process, tmp_path)
                        numbers.add(ROWS_PER_BATCH)
                    javas = [each for each in psutil.Process(process.pid).children() if each.name() == "java"]
                    left += javas
                    process.kill()
                    for java in javas if kill % 2 else []:
                        java.kill()
            with started(tmp_path, broker.bootstrap, "--available-now") as process:
                said = process.communicate(timeout=WITHIN_S)[0]
                assert process.returncode == 0, said + errors_of(tmp_path)
        finally:
            for java in psutil.wait_procs(left, timeout=10)[1]:
                java.kill()
    sums = numbers.sums()
    total = sum(map(len, sums.values()))
    assert select(postgres, f"select count(*), count(distinct number) from {schema}.numbers") == [(total, total)]
    assert select(postgres, f"select * from {schema}.sums order by name") == [
        (name, len(each), each[-1]) for name, each in sorted(sums.items())
    ]
    leaks = [path for path in tmp_path.rglob("*") if path.is_file() and PASSWORD.encode() in path.read_bytes()]
    assert leaks == []
    print(f"{total} rows, {KILLS} kills")
