"""Pipelines in Python files."""

import textwrap
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from moldau.pipelines.definition import PipelineError, SinkKind, Watermark
from moldau.pipelines.spec.loader import load

FILE = """
from moldau.pipelines import Pipeline

pipeline = Pipeline("revenue", bootstrap="b:9092", dead_letters="dead", kafka={"security.protocol": "SSL"})


@pipeline.source(topic="orders", schema="product STRING, n INT", watermark={"column": "at", "delay": "1 minute"})
def orders(records):
    return records.where("n > 0")


pipeline.source("customers", topics=["a", "b"], format="string")


@pipeline.view
def joined(orders, customers):
    return orders.join(customers, "id")


pipeline.sql("counted", "SELECT count(*) AS n FROM joined")


@pipeline.sink(topic="revenue", key="product", mode="update")
def out(counted):
    return counted


pipeline.sink("archive", parquet="archive", view="orders")
pipeline.sink("screen", console=True)
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "revenue.py"
    path.write_text(textwrap.dedent(text))
    return path


def failure(path: Path) -> str:
    with pytest.raises(PipelineError) as raised:
        load(path)
    return str(raised.value)


def test_a_python_file_declares_sources_views_and_sinks(tmp_path: Path) -> None:
    pipeline = load(written(tmp_path, FILE))
    orders, customers = pipeline.sources
    assert (pipeline.name, pipeline.bootstrap, pipeline.dead_letter_topic) == ("revenue", "b:9092", "dead")
    assert (orders.name, orders.topics, orders.watermark) == ("orders", ("orders",), Watermark("at", "1 minute"))
    assert orders.transform is not None
    assert (customers.topics, customers.transform) == (("a", "b"), None)
    assert [view.name for view in pipeline.views] == ["joined", "counted", "_rows_of_out"]
    out, archive, screen = pipeline.sinks
    assert (out.view, out.key, out.mode) == ("_rows_of_out", ("product",), "update")
    assert (archive.kind, archive.view, archive.target) == (SinkKind.PARQUET, "orders", str(tmp_path / "archive"))
    assert screen.view == "counted"


def test_modules_beside_the_file_can_be_imported(tmp_path: Path) -> None:
    (tmp_path / "names_of_this_pipeline.py").write_text("TOPIC = 'orders'\n")
    text = FILE.replace('topic="orders"', "topic=names_of_this_pipeline.TOPIC")
    path = written(tmp_path, "import names_of_this_pipeline\n" + text)
    assert load(path).sources[0].topics == ("orders",)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            ('topic="orders", schema', 'topic="orders", shema'),
            ":7: sources.orders has no option 'shema'; did you mean schema?",
        ),
        (
            ("def joined(orders,", "def joined(order,"),
            "joined has the parameter 'order', but no earlier source or view has this name",
        ),
        (
            ('bootstrap="b:9092"', 'botstrap="b:9092"'),
            ":4: a pipeline has no option 'botstrap'; did you mean bootstrap?",
        ),
        (("@pipeline.view\n", "@pipeline.vew\n"), ":15: the file raised AttributeError"),
        (("def joined(", "def joined(("), ":16: not valid Python"),
        (("@pipeline.view\n", "import sys; sys.exit(0)\n"), ":15: the file called sys.exit(0)"),
        (
            ("@pipeline.view\n", "from pyspark.sql import functions as F; F.udf('int')(len)('x')\n"),
            ":15: this needs a Spark session, which is not started when the file is loaded: give types as objects",
        ),
        (('mode="update"', 'mode="upsert"'), "a topic sink has no mode 'upsert'"),
    ],
)
def test_an_error_has_the_line(tmp_path: Path, change: tuple[str, str], said: str) -> None:
    assert change[0] in FILE
    message = failure(written(tmp_path, FILE.replace(*change, 1)))
    assert message.startswith(str(tmp_path / "revenue.py"))
    assert said in message


def test_a_file_must_define_exactly_one_pipeline(tmp_path: Path) -> None:
    assert "this has none" in failure(written(tmp_path, "x = 1\n"))
    two = "from moldau.pipelines import Pipeline\na = Pipeline('a')\nb = Pipeline('b')\n"
    assert "this has 2 (a, b)" in failure(written(tmp_path, two))
