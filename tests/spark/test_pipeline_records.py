"""Records from bytes to rows and back, through `moldau.testing.pipeline`, which runs the code of a stream without a
broker."""

import io
import json
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import fastavro
import pytest
from pyspark.sql import SparkSession

from moldau.pipelines import Pipeline as PythonPipeline
from moldau.pipelines.definition import (
    BadRecordPolicy,
    Format,
    PipelineDefinition,
    PipelineError,
    Sink,
    SinkKind,
    Source,
    View,
    Watermark,
)
from moldau.testing.pipeline import DeadLetter, Record, run_pipeline

pytestmark = pytest.mark.spark

SCHEMA = "id STRING, n INT, price DOUBLE, at TIMESTAMP, inner STRUCT<a: INT, b: STRING>, many ARRAY<INT>"


def pipeline(
    source: Source, *sinks: Sink, sql: str | None = None, on_bad: BadRecordPolicy = BadRecordPolicy.DROP
) -> PipelineDefinition:
    views = () if sql is None else (View("result", sql),)
    shown = views[0].name if views else source.name
    sinks = sinks or (Sink("rows", SinkKind.CONSOLE),)
    return PipelineDefinition(
        "p", (source,), views, tuple(replace(each, view=each.view or shown) for each in sinks), on_bad=on_bad
    )


def orders(**changes: Any) -> Source:
    return replace(Source("orders", ("orders",), schema=SCHEMA), **changes)


def reasons(letters: list[DeadLetter]) -> list[tuple[bytes | None, str, str]]:
    return [(each.value, each.reason, each.detail) for each in letters]


# JSON


def test_json_fields_become_columns_and_missing_ones_are_null(spark: SparkSession) -> None:
    given = [
        {"id": "a", "n": 1, "price": 2, "at": "2024-05-01T10:00:00Z", "inner": {"a": 1}, "many": [1, 2], "extra": 9},
        b'{"id": 5, "n": null}\n',
    ]
    result = run_pipeline(pipeline(orders()), {"orders": given}, spark=spark)
    first, second = result.rows["rows"]
    assert first == {
        "id": "a",
        "n": 1,
        "price": 2.0,
        "at": datetime(2024, 5, 1, 10, tzinfo=UTC),
        "inner": {"a": 1, "b": None},
        "many": [1, 2],
    }
    assert second == {"id": "5", "n": None, "price": None, "at": None, "inner": None, "many": None}
    assert result.dead_letters == []


def test_invalid_json_and_schema_mismatches_are_bad_records_with_reasons(spark: SparkSession) -> None:
    cases = {
        b"": ("malformed", "the value is not a JSON object"),
        b"  ": ("malformed", "the value is not a JSON object"),
        b"null": ("malformed", "the value is not a JSON object"),
        b"[]": ("malformed", "the value is not a JSON object"),
        b"7": ("malformed", "the value is not a JSON object"),
        b'{"n": 1': ("malformed", "the value is not a JSON object"),
        b'{"n": 1} and more': ("malformed", "the value is not a JSON object"),
        b'{"n": 1}{"n": 2}': ("malformed", "the value is not a JSON object"),
        b'{"n": 7}}': ("malformed", "the value is not a JSON object"),
        b'{"n": 7}]}': ("malformed", "the value is not a JSON object"),
        b'{"n": 7}]': ("malformed", "the value is not a JSON object"),
        b'{"n": 1},{"n": 2}': ("malformed", "the value is not a JSON object"),
        b'{"n": 1},"x":{"n": 2}': ("malformed", "the value is not a JSON object"),
        b'{"n": 1}],"x":[{"n": 2}': ("malformed", "the value is not a JSON object"),
        b'{"n": 1},{"n": 2}],"x":[{"n": 3}': ("malformed", "the value is not a JSON object"),
        b"{'n': 1}": ("malformed", "the value is not a JSON object"),
        b'{"id": "\xff"}': ("malformed", "the value is not UTF-8, as JSON must be"),
        b'{"n": "1"}': ("schema_mismatch", "n is INT, not 1"),
        b'{"n": 1.5, "price": true}': ("schema_mismatch", "n is INT, not 1.5; price is DOUBLE, not true"),
        b'{"n": 99999999999}': ("schema_mismatch", "n is INT, not 99999999999"),
        b'{"at": "soon"}': ("schema_mismatch", "at is TIMESTAMP, not soon"),
        b'{"inner": {"a": "x"}}': ("schema_mismatch", "a field inside inner, many does not fit the schema"),
    }
    result = run_pipeline(pipeline(orders()), {"orders": list(cases)}, spark=spark)
    assert result.rows["rows"] == []
    assert reasons(result.dead_letters) == [(value, *why) for value, why in cases.items()]


def test_a_tombstone_is_not_bad_and_is_marked(spark: SparkSession) -> None:
    source = orders(expectations={"positive": "n > 0"})
    one = pipeline(source, sql="SELECT _key AS id, _deleted AS gone, n FROM orders")
    result = run_pipeline(one, {"orders": [("a", {"n": 1}), ("a", None)]}, spark=spark)
    assert result.rows["rows"] == [{"id": "a", "gone": False, "n": 1}, {"id": "a", "gone": True, "n": None}]
    assert result.dead_letters == []


def test_a_schema_is_inferred_from_the_records_that_are_json(spark: SparkSession) -> None:
    given = [{"a": 1, "b": None}, b"garbage", {"a": 2, "c": {"d": True}}]
    result = run_pipeline(pipeline(orders(schema=None)), {"orders": given}, spark=spark)
    assert result.rows["rows"] == [{"a": 1, "b": None, "c": None}, {"a": 2, "b": None, "c": {"d": True}}]
    assert [each.value for each in result.dead_letters] == [b"garbage"]


def test_a_topic_without_usable_records_needs_a_schema(spark: SparkSession) -> None:
    with pytest.raises(PipelineError, match="no records yet to infer one from: set schema: name TYPE"):
        run_pipeline(pipeline(orders(schema=None)), {"orders": []}, spark=spark)
    with pytest.raises(PipelineError, match="none of the first 1 records is a JSON object"):
        run_pipeline(pipeline(orders(schema=None)), {"orders": [b"7"]}, spark=spark)


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ("id STRIN", r"not name TYPE, name TYPE.*: Unsupported data type \"STRIN\"\.$"),
        ("INT", "is one type: write name TYPE"),
        ("id STRING, _offset INT", "has a column '_offset'"),
    ],
)
def test_an_invalid_schema_is_reported(spark: SparkSession, schema: str, said: str) -> None:
    with pytest.raises(PipelineError, match=said):
        run_pipeline(pipeline(orders(schema=schema)), {"orders": [{}]}, spark=spark)


# Other formats


def test_texts_and_bytes_are_one_column(spark: SparkSession) -> None:
    text = Source("t", ("t",), format=Format.STRING)
    result = run_pipeline(pipeline(text), {"t": ["grüße", b"\xff", None]}, spark=spark)
    assert result.rows["rows"] == [{"value": "grüße"}, {"value": None}]
    assert reasons(result.dead_letters) == [(b"\xff", "malformed", "the value is not UTF-8")]
    binary = Source("b", ("b",), format=Format.BYTES)
    assert run_pipeline(pipeline(binary), {"b": [b"\xff"]}, spark=spark).rows["rows"] == [{"value": b"\xff"}]


AVRO: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "name", "type": ["null", "string"]},
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
        {"name": "other", "type": "Kind"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "id2", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "tags", "type": {"type": "map", "values": "int"}},
        {"name": "items", "type": {"type": "array", "items": {"type": "record", "name": "Item", "fields": [
            {"name": "n", "type": ["int", "long"]}]}}},
    ],
}  # fmt: skip
ORDER = {
    "id": 1,
    "name": None,
    "kind": "A",
    "other": "B",
    "at": datetime(2024, 5, 1, 10, 0, 0, 123456, tzinfo=UTC),
    "day": date(2024, 5, 1),
    "price": Decimal("12.50"),
    "id2": "11111111-2222-3333-4444-555555555555",
    "tags": {"a": 1},
    "items": [{"n": 5_000_000_000}],
}


def avro(**changes: Any) -> Source:
    return replace(Source("orders", ("orders",), format=Format.AVRO, schema=json.dumps(AVRO)), **changes)


def test_avro_records_become_columns_of_their_types(spark: SparkSession) -> None:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(AVRO), ORDER)
    value = stream.getvalue()
    result = run_pipeline(pipeline(avro()), {"orders": [ORDER, value, value[:-1], value + b"x", None]}, spark=spark)
    assert result.rows["rows"][:2] == [ORDER, ORDER]
    assert result.rows["rows"][2]["id"] is None
    bad = reasons(result.dead_letters)
    assert [(value, reason) for value, reason, _ in bad] == [(value[:-1], "malformed"), (value + b"x", "malformed")]
    assert bad[1][2] == "the value does not match its Avro schema: 1 bytes follow the record"


def test_the_schema_registry_prefix_is_skipped_if_configured(spark: SparkSession) -> None:
    source = avro(options={"avro.wire": "confluent"})
    result = run_pipeline(pipeline(source), {"orders": [ORDER, b"\x01abc"]}, spark=spark)
    assert [row["id"] for row in result.rows["rows"]] == [1]
    assert "does not start with a zero byte" in result.dead_letters[0].detail


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ('{"type": "record"}', "is not valid"),
        ('"string"', "is not a record"),
        ('{"type": "record", "name": "R", "fields": [{"name": "x", "type": ["int", "string"]}]}', "a union of 2 types"),
        ('{"type": "record", "name": "R", "fields": [{"name": "x", "type": ["null", "R"]}]}', "is recursive at 'R'"),
    ],
)
def test_an_unsupported_avro_schema_is_reported(spark: SparkSession, schema: str, said: str) -> None:
    with pytest.raises(PipelineError, match=said):
        run_pipeline(pipeline(avro(schema=schema)), {"orders": []}, spark=spark)


# Metadata, expectations, bad records


def test_metadata_columns_are_available_in_sql_and_not_written(spark: SparkSession) -> None:
    time = datetime(2024, 5, 1, tzinfo=UTC)
    record = Record({"id": "a"}, key="k", timestamp=time, headers=[("h", b"1")], topic="other", partition=3)
    sql = "SELECT *, _key AS k, _topic AS t, _partition AS p, _offset AS o, _timestamp AS ts, _headers AS h FROM orders"
    one = pipeline(orders(schema="id STRING"), Sink("out", SinkKind.TOPIC, "out"), sql=sql)
    result = run_pipeline(one, {"orders": [record]}, spark=spark)
    headers = [{"key": "h", "value": b"1"}]
    assert result.rows["out"] == [{"id": "a", "k": "k", "t": "other", "p": 3, "o": 0, "ts": time, "h": headers}]


def test_a_violated_expectation_makes_a_record_bad_with_its_name(spark: SparkSession) -> None:
    source = orders(expectations={"positive": "n > 0", "named": "id IS NOT NULL"})
    given = [{"id": "a", "n": 1}, {"id": "b", "n": 0}, {"n": None}]
    result = run_pipeline(pipeline(source), {"orders": given}, spark=spark)
    assert [row["id"] for row in result.rows["rows"]] == ["a"]
    assert [(each.reason, each.detail) for each in result.dead_letters] == [
        ("expectation", "positive: n > 0"),
        ("expectation", "positive: n > 0; named: id IS NOT NULL"),
    ]


def test_a_dead_letter_is_the_original_record_with_error_headers(spark: SparkSession) -> None:
    record = Record(
        b"bad",
        key=b"\xff",
        timestamp=datetime(2024, 5, 1, tzinfo=UTC),
        headers=[("mine", b"1"), ("moldau.error.reason", b"old"), ("moldau.redriven", b"1")],
        partition=2,
    )
    result = run_pipeline(pipeline(orders()), {"orders": [{"id": "a"}, record]}, spark=spark)
    (letter,) = result.dead_letters
    assert (letter.source, letter.key, letter.value) == ("orders", b"\xff", b"bad")
    time = letter.headers["moldau.error.time"]
    assert time is not None
    assert time.isdigit()
    assert letter.headers == {
        "mine": b"1",
        "moldau.redriven": b"1",
        "moldau.error.reason": b"malformed",
        "moldau.error.detail": b"the value is not a JSON object",
        "moldau.error.topic": b"orders",
        "moldau.error.partition": b"2",
        "moldau.error.offset": b"1",
        "moldau.error.timestamp": b"1714521600000",
        "moldau.error.pipeline": b"p",
        "moldau.error.source": b"orders",
        "moldau.error.time": time,
    }


def test_a_bad_record_fails_the_run_with_its_offset_and_reason(spark: SparkSession) -> None:
    one = pipeline(orders(), sql="SELECT count(*) AS n FROM orders", on_bad=BadRecordPolicy.FAIL)
    with pytest.raises(PipelineError) as raised:
        run_pipeline(one, {"orders": [{"id": "a"}, b'{"n": "x"}']}, spark=spark)
    assert str(raised.value) == (
        "the sink rows: the record at orders-0 offset 1 is bad (schema_mismatch): n is INT, not x. "
        "The source orders fails on bad records: set on_bad: drop, or dead_letters: <topic>"
    )


# Transformation


def test_views_see_earlier_views_and_functions_get_their_parameters(spark: SparkSession) -> None:
    python = PythonPipeline("p")

    @python.source(topic="orders", schema="id STRING, n INT")
    def orders(records: Any) -> Any:
        return records.where("n > 0")

    python.sql("doubled", "SELECT id, n * 2 AS n FROM orders")

    @python.view
    def joined(doubled: Any, orders: Any) -> Any:
        return doubled.join(orders.withColumnRenamed("n", "before").select("id", "before"), "id")

    python.sink("rows", console=True)
    result = run_pipeline(python, {"orders": [{"id": "a", "n": 1}, {"id": "b", "n": -1}]}, spark=spark)
    assert result.rows["rows"] == [{"id": "a", "n": 2, "before": 1}]


def test_functions_of_a_file_run_on_workers_which_do_not_have_the_file(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "shouting.py"
    path.write_text(
        """
from pyspark.sql.functions import udf
from moldau.pipelines import Pipeline

MARK = "!"
pipeline = Pipeline("shouting")
pipeline.source("words", topic="words", format="string")

def loud(word):
    return word.upper() + MARK

@pipeline.sink(console=True)
def rows(words):
    return words.select(udf(lambda word: loud(word))("value").alias("word"))
"""
    )
    assert run_pipeline(path, {"words": ["hey"]}, spark=spark).rows["rows"] == [{"word": "HEY!"}]


def test_temporary_views_are_removed_and_earlier_ones_restored(spark: SparkSession) -> None:
    spark.range(3).createOrReplaceTempView("orders")
    try:
        run_pipeline(pipeline(orders(), sql="SELECT id FROM orders"), {"orders": [{}]}, spark=spark)
        assert spark.table("orders").columns == ["id"]
        assert spark.table("orders").count() == 3
        assert not spark.catalog.tableExists("result")
    finally:
        spark.catalog.dropTempView("orders")


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        (
            "SELECT idd FROM orders",
            r"the view result: .*`idd` cannot be resolved.*`id`.*\(line 1, column 8 of the SQL\)",
        ),
        ("SELEC id FROM orders", "the view result: .*SELEC"),
        ("SELECT id FROM ordes", "the view result: .*`ordes` cannot be found"),
        ("SELECT id, n AS id FROM orders", "the view result has two columns called 'id': rename one"),
    ],
)
def test_invalid_sql_is_reported_with_its_view(spark: SparkSession, sql: str, said: str) -> None:
    with pytest.raises(PipelineError, match=said):
        run_pipeline(pipeline(orders(), sql=sql), {"orders": []}, spark=spark)


def test_a_function_that_fails_or_returns_no_frame_is_named(spark: SparkSession) -> None:
    def broken(orders: Any) -> Any:
        raise KeyError("oh")

    one = replace(pipeline(orders()), views=(View("v", transform=broken),))
    one = replace(one, sinks=(Sink("rows", SinkKind.CONSOLE, view="v"),))
    with pytest.raises(PipelineError, match="the view v: its function raised KeyError: 'oh'"):
        run_pipeline(one, {"orders": []}, spark=spark)
    with pytest.raises(PipelineError, match="must return a DataFrame, not NoneType"):
        run_pipeline(replace(one, views=(View("v", transform=lambda orders: None),)), {"orders": []}, spark=spark)


def test_a_watermark_needs_a_timestamp(spark: SparkSession) -> None:
    for column, said in (("when", "which is not a column"), ("n", "which is INT: it must be TIMESTAMP")):
        source = orders(watermark=Watermark(column, "1 minute"))
        with pytest.raises(PipelineError, match=said):
            run_pipeline(pipeline(source), {"orders": []}, spark=spark)


# Encoding


def test_rows_become_records_with_a_key(spark: SparkSession) -> None:
    source = orders(schema="id STRING, n INT, raw BINARY")
    sinks = (
        Sink("json", SinkKind.TOPIC, "t", key=("id",)),
        Sink("two", SinkKind.TOPIC, "t", key=("id", "n")),
        Sink("number", SinkKind.TOPIC, "t", key=("n",)),
        Sink("gone", SinkKind.TOPIC, "t", key=("_key",), delete_when="_deleted"),
    )
    given = [("k", {"id": "a", "n": 1}), ("gone", None)]
    records = run_pipeline(pipeline(source, *sinks), {"orders": given}, spark=spark).records
    whole, empty = b'{"id":"a","n":1,"raw":null}', b'{"id":null,"n":null,"raw":null}'
    assert records["json"] == [(b"a", whole), (None, empty)]
    assert records["two"] == [(b'{"id":"a","n":1}', whole), (b'{"id":null,"n":null}', empty)]
    assert records["number"] == [(b"1", whole), (None, empty)]
    assert records["gone"] == [(b"k", whole), (b"gone", None)]


def test_text_bytes_and_avro_are_written_and_read_back(spark: SparkSession) -> None:
    schema = json.dumps(AVRO)
    sinks = (
        Sink("text", SinkKind.TOPIC, "t", view="names", format=Format.STRING, key=("id",)),
        Sink("avro", SinkKind.TOPIC, "t", view="orders", format=Format.AVRO, schema=schema),
        Sink(
            "wired",
            SinkKind.TOPIC,
            "t",
            view="orders",
            format=Format.AVRO,
            schema=schema,
            options={"avro.wire": "confluent", "avro.schema.id": "258"},
        ),
    )
    views = (View("names", "SELECT id, concat('order ', id) AS name FROM orders"),)
    one = PipelineDefinition("p", (avro(),), views, sinks, on_bad=BadRecordPolicy.DROP)
    records = run_pipeline(one, {"orders": [ORDER]}, spark=spark).records
    assert records["text"] == [(b"1", b"order 1")]
    value = records["avro"][0][1]
    assert value is not None
    read = fastavro.schemaless_reader(io.BytesIO(value), fastavro.parse_schema(AVRO))
    assert {**read, "id2": str(read["id2"])} == ORDER
    assert records["wired"] == [(None, b"\x00\x00\x00\x01\x02" + value)]


@pytest.mark.parametrize(
    ("sink", "said"),
    [
        (Sink("s", SinkKind.TOPIC, "t", key=("idd",)), "names the column 'idd', .*did you mean id?"),
        (Sink("s", SinkKind.TOPIC, "t", format=Format.STRING), "which is one column called `value`"),
        (Sink("s", SinkKind.PARQUET, "t", partition_by=("day",)), "names the column 'day'"),
        (
            Sink("s", SinkKind.TOPIC, "t", format=Format.AVRO, schema=json.dumps(AVRO)),
            "has the Avro field 'name', which the view does not have",
        ),
    ],
)
def test_columns_that_do_not_match_a_sink_are_reported(spark: SparkSession, sink: Sink, said: str) -> None:
    with pytest.raises(PipelineError, match=said):
        run_pipeline(pipeline(orders(), sink), {"orders": [{"id": "a"}]}, spark=spark)


def test_an_upsert_returns_the_resulting_table(spark: SparkSession) -> None:
    sink = Sink("table", SinkKind.DELTA, "t", mode="upsert", key=("_key",), delete_when="_deleted")
    given = [("a", {"n": 1}), ("b", {"n": 2}), ("a", {"n": 3}), ("b", None)]
    result = run_pipeline(pipeline(orders(schema="n INT"), sink), {"orders": given}, spark=spark)
    assert result.rows["table"] == [{"n": 3, "_key": "a"}]


# Errors of a test's author


def test_rows_for_an_unknown_source_or_of_an_invalid_type_are_reported(spark: SparkSession) -> None:
    with pytest.raises(PipelineError, match="'order', which is not a source of p; did you mean orders"):
        run_pipeline(pipeline(orders()), {"order": []}, spark=spark)
    with pytest.raises(PipelineError, match="a row of orders is int: records in json are given as mappings, texts"):
        run_pipeline(pipeline(orders()), {"orders": [5]}, spark=spark)
    with pytest.raises(PipelineError, match="must be a list, not dict"):
        run_pipeline(pipeline(orders()), {"orders": {}}, spark=spark)  # type: ignore[dict-item]


# At scale


def test_a_value_is_parsed_once_and_bad_records_are_separated(spark: SparkSession) -> None:
    from pyspark.sql import functions as F

    from moldau.pipelines.planner.transformation import decode_and_check
    from moldau.pipelines.records.bad_records import dead_letter_records, good_records
    from moldau.pipelines.records.decoder import raw_schema, value_schema

    source = orders(schema="id BIGINT, n INT", expectations={"positive": "n > 0"})
    values = """CASE WHEN id % 100 = 0 THEN '{"id": "bad"}' WHEN id % 1000 = 1 THEN concat('{"id": ', id, ', "n": 0}')
        ELSE concat('{"id": ', id, ', "n": 1}') END"""
    raw = spark.range(100_000).selectExpr(f"CAST({values} AS BINARY) AS value", "id AS offset")
    missing = [field for field in raw_schema().fields if field.name not in raw.columns]
    raw = raw.select("*", *[F.lit(None).cast(field.dataType).alias(field.name) for field in missing])
    records = decode_and_check(raw, source, value_schema(source))
    kept = good_records(records, source, BadRecordPolicy.DROP)
    assert str(kept.select("id", "n").where("n < 9")._jdf.queryExecution().optimizedPlan()).count("from_json") == 1
    assert kept.agg(F.count("*"), F.min("n")).first() == (98_900, 1)
    letters = dead_letter_records(records, "p", source)
    reason = F.expr("CAST(filter(headers, h -> h.key = 'moldau.error.reason')[0].value AS STRING)")
    found = {row[0]: row[1] for row in letters.groupBy(reason).count().collect()}
    assert found == {"schema_mismatch": 1_000, "expectation": 100}
