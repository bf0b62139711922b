"""A standalone cluster whose executors lack Moldau: its code is shipped with the application."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from deltalake import DeltaTable

from moldau.pipelines.templates import template
from moldau.testing import Broker
from spark.standalone import StandaloneCluster, moldau, python_without_moldau
from support.log_writer import LogWriter, ProducedRecord

pytestmark = pytest.mark.spark

SETTINGS = {
    "spark.executor.memory": "512m",
    "spark.driver.memory": "512m",
    # The machine may be slow because of other tests.
    "spark.moldau.masterTimeout": "120s",
    "spark.moldau.executorTimeout": "120s",
}
GIVEN = [part for name, value in SETTINGS.items() for part in ("--conf", f"{name}={value}")]

PROGRAM = """
import json, sys
import moldau.spark

bootstrap, topic, target, directory = sys.argv[1:]
spark = moldau.spark.session("on a cluster")
kafka = {"kafka.bootstrap.servers": bootstrap}

def imported(_):
    import moldau, os, sys
    moldau.__path__
    yield os.getcwd(), moldau.__file__, [path for path in sys.path if path.endswith("src")]

places = spark.sparkContext.parallelize(range(4), 4).mapPartitions(imported).collect()

rows = spark.read.format("moldau").options(**kafka, subscribe=topic).load()
read = sorted(int(row.value) for row in rows.collect())

stream = spark.readStream.format("moldau").options(**kafka, subscribe=topic, startingOffsets="earliest").load()
query = (
    stream.select("key", "value").writeStream.format("moldau").options(**kafka, topic=target)
    .option("checkpointLocation", directory + "/checkpoint").trigger(availableNow=True).start()
)
query.awaitTermination()
written = spark.read.format("moldau").options(**kafka, subscribe=target).load().count()
print(json.dumps({"places": places, "read": read, "written": written, "master": spark.sparkContext.master}))
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    with StandaloneCluster(tmp_path_factory.mktemp("cluster"), workers=2) as running:
        yield running


@pytest.fixture(scope="module")
def executor_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(python_without_moldau(tmp_path_factory.mktemp("python") / "environment"))


def test_batches_and_streams_run_on_executors_without_our_source_tree(
    cluster: StandaloneCluster, executor_python: str, broker: Broker, written: LogWriter, tmp_path: Path
) -> None:
    topic, target = written.create("numbers", partitions=2), written.create("copies", partitions=2)
    written.send(topic, [ProducedRecord(str(number).encode(), partition=number % 2) for number in range(100)])
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)

    done = moldau(
        *["spark", "submit", "--master", cluster.url, *GIVEN, str(program)],
        *[broker.bootstrap, topic, target, str(tmp_path)],
        environ={"PYSPARK_PYTHON": executor_python},
    )
    assert done.returncode == 0, done.stderr + cluster.logs()
    message = json.loads(done.stdout)
    assert message["master"] == cluster.url
    assert message["read"] == list(range(100))
    assert message["written"] == 100
    for directory, file, source_trees in message["places"]:
        assert "/work-" in directory
        assert file.endswith("moldau.zip/moldau/__init__.py")
        assert source_trees == []


def test_a_shipped_pipeline_runs_on_the_cluster_unchanged(
    cluster: StandaloneCluster, executor_python: str, broker: Broker, written: LogWriter, tmp_path: Path
) -> None:
    for name in ("orders", "revenue", "orders.dead"):
        written.create_named(name)
    products = ["tea", "coffee", "tea", "milk"]
    orders = [
        {"order_id": f"o-{number}", "product": product, "quantity": number, "price": 0.5, "at": "2026-01-31T12:00:30Z"}
        for number, product in enumerate(products, start=1)
    ]
    written.send("orders", [json.dumps(order).encode() for order in orders])
    file = tmp_path / "orders-revenue.yaml"
    file.write_text(template("orders-revenue").replace("tables/", f"{tmp_path}/tables/"))

    done = moldau(
        *["pipeline", "run", str(file), "--available-now", "--master", cluster.url, *GIVEN],
        *["--state", str(tmp_path / "state")],
        environ={"PYSPARK_PYTHON": executor_python, "MOLDAU_BOOTSTRAP": broker.bootstrap},
    )
    assert done.returncode == 0, done.stdout + done.stderr + cluster.logs()
    rows = DeltaTable(tmp_path / "tables" / "revenue").to_pyarrow_table().to_pylist()
    revenue = {row["product"]: (row["orders"], row["revenue"]) for row in rows}
    assert revenue == {"tea": (2, 2.0), "coffee": (1, 1.0), "milk": (1, 2.0)}


def test_a_python_missing_on_executors_is_named(cluster: StandaloneCluster, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("import moldau.spark\nmoldau.spark.session()\n")
    missing = str(tmp_path / "no-python")
    done = moldau(
        *["spark", "submit", "--master", cluster.url, *GIVEN, str(program)], environ={"PYSPARK_PYTHON": missing}
    )
    assert done.returncode == 1
    assert f"Executors have no program {missing}." in done.stderr.replace("\n", " ")


def test_missing_executors_are_reported_after_a_bounded_time(cluster: StandaloneCluster, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("import moldau.spark\nmoldau.spark.session()\n")
    too_much = ["--conf", "spark.executor.memory=100g", "--conf", "spark.moldau.executorTimeout=5s"]
    done = moldau(
        *["spark", "submit", "--master", cluster.url, *GIVEN, *too_much, str(program)],
        environ={"PYSPARK_PYTHON": sys.executable},
    )
    assert done.returncode == 1
    assert f"The master {cluster.url} provided no executor within 5 s" in done.stderr.replace("\n", " ")
