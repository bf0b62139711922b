"""The Spark examples of the documentation and of examples/ run as printed; only addresses are replaced."""

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from docs.pages import DEFAULT_BOOTSTRAP, PROJECT, blocks, run, run_shell
from moldau.testing import Broker

pytestmark = pytest.mark.spark

EXAMPLES = PROJECT / "examples"
ORDER = '{"product": "tea", "quantity": 2, "price": 2.5}'


@pytest.fixture
def bootstrap() -> Iterator[str]:
    """A broker that creates topics on first use, unlike the one of the other Spark tests."""
    with Broker() as broker:
        yield broker.bootstrap


def test_the_example_of_the_data_source(bootstrap: str, tmp_path: Path) -> None:
    run_shell("echo one | moldau produce orders", tmp_path, bootstrap)
    example = blocks("docs/spark.md", "python")[0].replace(DEFAULT_BOOTSTRAP, bootstrap)
    run([sys.executable, "-c", example], tmp_path, bootstrap)
    read = "moldau consume loud-orders --from-beginning --count 1"
    assert "ONE" in run_shell(read, tmp_path, bootstrap)


def test_the_example_of_the_readme(bootstrap: str, tmp_path: Path) -> None:
    run_shell("echo hello | moldau produce greetings", tmp_path, bootstrap)
    (example,) = (block for block in blocks("README.md", "python") if "moldau.spark.session()" in block)
    output = run([sys.executable, "-c", example.replace(DEFAULT_BOOTSTRAP, bootstrap)], tmp_path, bootstrap)
    assert "|   hello|" in output


def test_the_example_of_spark_submit(bootstrap: str, tmp_path: Path) -> None:
    (tmp_path / "count.py").write_text(
        "import moldau.spark\n\nprint(moldau.spark.session().range(5).count(), 'rows')\n"
    )
    assert "5 rows" in run_shell(blocks("docs/spark_cluster.md", "sh")[0], tmp_path, bootstrap)


def test_the_example_of_a_pipeline(bootstrap: str, tmp_path: Path) -> None:
    run_shell("moldau topic create orders; moldau topic create revenue", tmp_path, bootstrap)
    script = blocks("docs/pipelines.md", "sh")[0].replace("run revenue.yaml ", "run revenue.yaml --available-now ")
    assert "revenue" in run_shell(script, tmp_path, bootstrap)


def test_the_batch_example(bootstrap: str, tmp_path: Path) -> None:
    run_shell("echo to be or not to be | moldau produce lines", tmp_path, bootstrap)
    output = run([sys.executable, str(EXAMPLES / "spark_batch.py"), bootstrap], tmp_path, bootstrap)
    assert "| to|    2|" in output


def test_the_pipeline_example(bootstrap: str, tmp_path: Path) -> None:
    (tmp_path / "revenue.yaml").write_text((EXAMPLES / "revenue.yaml").read_text())
    for topic in ("orders", "revenue", "orders.dead"):
        run_shell(f"moldau topic create {topic}", tmp_path, bootstrap)
    run_shell(f"echo '{ORDER}' | moldau produce orders", tmp_path, bootstrap)
    run_shell(
        "moldau pipeline check revenue.yaml && moldau pipeline run revenue.yaml --available-now", tmp_path, bootstrap
    )
    assert "5.0" in run_shell("moldau consume revenue --from-beginning --count 1", tmp_path, bootstrap)


@pytest.mark.slow
def test_the_example_of_the_audit(bootstrap: str, tmp_path: Path) -> None:
    run_shell("seq 20 | moldau produce orders", tmp_path, bootstrap)
    output = run_shell(blocks("docs/cluster_pipelines.md", "sh")[0], tmp_path, bootstrap)
    assert "orders: 1 replica of 1 partition is equal" in output


@pytest.mark.slow
def test_the_example_of_the_lag_history(bootstrap: str, tmp_path: Path) -> None:
    now_ms = round(time.time() * 1000)
    sample = {"kind": "partition", "time_ms": now_ms, "topic": "orders", "partition": 0, "produce_rate": 2.5}
    run_shell(f"echo '{json.dumps(sample)}' | moldau produce moldau.metrics", tmp_path, bootstrap)
    script = blocks("docs/cluster_pipelines.md", "sh")[1].replace(
        "lag-history.yaml &", "lag-history.yaml --available-now"
    )
    run_shell(script, tmp_path, bootstrap)
    assert "orders  (max 2.5)" in (tmp_path / "lag_history.svg").read_text()
