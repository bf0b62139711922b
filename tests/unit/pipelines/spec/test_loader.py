"""Loading of pipeline files, and errors for invalid ones."""

import textwrap
from pathlib import Path

import pytest

from moldau.pipelines.definition import BadRecordPolicy, Format, PipelineError, SinkKind, Watermark
from moldau.pipelines.spec import loader
from moldau.pipelines.spec.loader import load

WHOLE = """
name: revenue
bootstrap: ${SERVERS:-127.0.0.1:9092}
sources:
  orders:
    topic: orders
    format: json
    schema: product STRING, quantity INT, at TIMESTAMP
    key: bytes
    starting: 2024-05-01T00:00:00Z
    watermark: {column: at, delay: 10 s}
    expectations: {positive: "quantity > 0"}
    options: {failOnDataLoss: false, kafka: {fetch.max.bytes: 1000}}
transform:
  large: SELECT * FROM orders WHERE quantity > 10
  revenue: |
    SELECT product, COUNT(*) AS n FROM large GROUP BY product
sinks:
  out: {topic: revenue, key: product, mode: update}
  table: {delta: tables/revenue, mode: upsert, key: [product], order_by: n}
  archive: {parquet: s3a://lake/orders, from: orders, partition_by: [product]}
  screen: {console: true}
dead_letters: orders.dead
trigger: 1 second
rate_limit: 100_000
checkpoint: here
kafka:
  security.protocol: SASL_SSL
  sasl: {mechanism: PLAIN}
spark: {spark.sql.shuffle.partitions: 2}
"""


def written(folder: Path, text: str, name: str = "revenue.yaml") -> Path:
    path = folder / name
    path.write_text(textwrap.dedent(text))
    return path


def failure(path: Path, **settings: object) -> str:
    with pytest.raises(PipelineError) as raised:
        load(path, **settings)  # type: ignore[arg-type]
    return str(raised.value)


def test_a_yaml_file_is_parsed_completely(tmp_path: Path) -> None:
    pipeline = load(written(tmp_path, WHOLE))
    (orders,) = pipeline.sources
    assert (pipeline.name, pipeline.bootstrap) == ("revenue", "127.0.0.1:9092")
    assert (orders.topics, orders.format, orders.key_format) == (("orders",), Format.JSON, Format.BYTES)
    assert orders.starting == "2024-05-01T00:00:00Z"
    assert orders.watermark == Watermark("at", "10 seconds")
    assert orders.expectations == {"positive": "quantity > 0"}
    assert orders.options == {"failOnDataLoss": "false", "kafka.fetch.max.bytes": "1000"}
    assert [view.name for view in pipeline.views] == ["large", "revenue"]
    assert [sink.kind for sink in pipeline.sinks] == [
        SinkKind.TOPIC,
        SinkKind.DELTA,
        SinkKind.PARQUET,
        SinkKind.CONSOLE,
    ]
    assert [sink.view for sink in pipeline.sinks] == ["revenue", "revenue", "orders", "revenue"]
    assert (pipeline.on_bad, pipeline.dead_letter_topic) == (BadRecordPolicy.DEAD_LETTER, "orders.dead")
    assert (pipeline.trigger, pipeline.rate_limit) == ("1 second", 100_000)
    assert pipeline.kafka == {"security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN"}
    assert pipeline.spark == {"spark.sql.shuffle.partitions": "2"}


def test_the_example_with_all_settings_is_valid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PASSWORD", "x")
    text = loader.__doc__ or ""
    example = text[text.index("    name:") : text.index("Relative paths")]
    assert len(load(written(tmp_path, example)).sinks) == 5


DATABASE = """
sources: {orders: {topic: orders}}
sinks:
  table: {mode: upsert, key: id, delete_when: _deleted, postgres: shop.orders, url: "postgresql://app:${SESAME}@db/s"}
"""


def test_a_postgres_sink_has_a_url_that_is_never_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SESAME", "hunter2")
    pipeline = load(written(tmp_path, DATABASE))
    (sink,) = pipeline.sinks
    assert (sink.kind, sink.target, sink.mode, sink.key) == (SinkKind.POSTGRES, "shop.orders", "upsert", ("id",))
    assert sink.url == "postgresql://app:hunter2@db/s"
    assert sink.label == "postgres shop.orders"
    assert "hunter2" not in repr(pipeline)
    program = """
    import os
    from moldau.pipelines import Pipeline

    pipeline = Pipeline("shop")
    url = f"postgresql://app:{os.environ['SESAME']}@db/s"

    @pipeline.source(topic="orders", schema="id INT")
    def orders(records):
        return records

    @pipeline.sink(postgres="shop.orders", url=url, mode="upsert", key="id")
    def table(orders):
        return orders
    """
    (sink_of_program,) = load(written(tmp_path, program, "shop.py")).sinks
    assert (sink_of_program.url, sink_of_program.target) == (sink.url, sink.target)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("url: ", "ulr: "), ":4: sinks.table has no option 'ulr'; did you mean url?"),
        ((', url: "postgresql://app:${SESAME}@db/s"', ""), ":4: the sink table needs the database: url: postgresql"),
        (("mode: upsert", "mode: update"), "a postgres sink has no mode 'update'; there are append, upsert"),
        ((", key: id", ""), "an upsert needs the columns that identify a row"),
        (("mode: upsert, ", ""), "delete_when is for mode: upsert"),
        (
            ("key: id", "key: id, options: {sslmode: require}"),
            "a postgres sink has no option 'sslmode'; options of the",
        ),
        (("key: id", "key: id, partition_by: id"), "partition_by is for Parquet and Delta"),
        (("postgres: shop.orders", "delta: orders"), "url is for Postgres"),
    ],
)
def test_an_invalid_postgres_sink_is_reported_without_its_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: tuple[str, str], said: str
) -> None:
    monkeypatch.setenv("SESAME", "hunter2")
    assert change[0] in DATABASE
    message = failure(written(tmp_path, DATABASE.replace(*change, 1)))
    assert said in message
    assert "hunter2" not in message


def test_relative_paths_are_resolved_and_urls_are_unchanged(tmp_path: Path) -> None:
    pipeline = load(written(tmp_path, WHOLE))
    assert pipeline.checkpoint == str(tmp_path / "here")
    assert pipeline.sinks[1].target == str(tmp_path / "tables/revenue")
    assert pipeline.sinks[2].target == "s3a://lake/orders"


def test_a_single_select_is_the_default_view_of_sinks(tmp_path: Path) -> None:
    text = """
    sources: {orders: {topic: orders}}
    transform: SELECT 1 AS one FROM orders
    sinks: {screen: {console: true}}
    """
    pipeline = load(written(tmp_path, text, "single.yml"))
    assert pipeline.name == "single"
    assert pipeline.sinks[0].view == "transform"


def test_without_a_transformation_sinks_write_the_only_source(tmp_path: Path) -> None:
    path = written(tmp_path, "sources: {orders: {topic: orders}}\nsinks: {screen: {console: true}}")
    assert load(path).sinks[0].view == "orders"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            ("    topic: orders\n", "    tpoic: orders\n"),
            ":6: sources.orders has no option 'tpoic'; did you mean topic?",
        ),
        (("{topic: revenue, key", "{tpoic: revenue, key"), "sinks.out has no option 'tpoic'; did you mean topic?"),
        (("    topic: orders\n", ""), "sources.orders needs topic or topics or pattern"),
        (
            ("  screen: {console: true}", "  more: {parquet: tables/../tables/revenue/, from: orders}"),
            "the sinks table and more write to one directory",
        ),
        (
            ("  screen: {console: true}", "  more: {delta: s3a://lake/x/../orders/, from: orders}"),
            "the sinks archive and more write to one directory",
        ),
        (
            ("    topic: orders\n", "    pattern: orders.*\n"),
            "orders.dead is read by the source orders ('orders.*' matches it): bad records would cycle forever",
        ),
        (("topic: revenue, key", "topic: orders, key"), ":19: orders is read by the source orders, which feeds"),
        (("    format: json", "    formt: json"), ":7: sources.orders has no option 'formt'; did you mean format?"),
        (("    format: json", "    format: jsn"), ":7: sources.orders.format must be one of bytes, string, json, avro"),
        (("dead_letters:", "dead_leters:"), ":23: a pipeline has no option 'dead_leters'; did you mean dead_letters?"),
        (("delay: 10 s", "delay: ten"), "'ten' is not a duration such as 500ms, 10 seconds or 1 hour"),
        (("starting: 2024-05-01T00:00:00Z", "starting: soon"), "'soon' is neither earliest nor latest nor a time"),
        (("mode: update", "mode: upserted"), ":19: a topic sink has no mode 'upserted'"),
        (("mode: upsert, key: [product]", "mode: upsert"), ":20: an upsert needs the columns that identify a row"),
        (("from: orders", "from: order"), ":21: there is no source or view 'order'; did you mean orders?"),
        (("rate_limit: 100_000", "rate_limit: 0"), "rate_limit must be an integer, 1 or more, not '0'"),
        (("name: revenue", "name: re venue"), ":2: 're venue' cannot name a pipeline"),
        (("  orders:\n", "  my-orders:\n"), "'my-orders' cannot be a name in SQL"),
        (("    topic: orders\n", "    topic: orders\n    topic: more\n"), "sources.orders.topic is duplicated"),
        (("topic: revenue, key", "topic: revenue, parquet: x, key"), "has both topic and parquet"),
        (("${SERVERS:-127.0.0.1:9092}", "${SERVERS_OF_NOBODY}"), "SERVERS_OF_NOBODY is not set"),
        (("dead_letters: orders.dead", "dead_letters: orders"), "bad records would cycle forever"),
        (("dead_letters: orders.dead", "on_bad: dead_letter"), "needs the topic: dead_letters: <topic>"),
        (("  large: SELECT", "  orders: SELECT"), "two are named 'orders'"),
    ],
)
def test_an_error_has_the_line_and_a_suggestion(tmp_path: Path, change: tuple[str, str], said: str) -> None:
    assert change[0] in WHOLE
    path = written(tmp_path, WHOLE.replace(*change, 1))
    message = failure(path)
    assert message.startswith(f"{path}:")
    assert said in message


CHAIN = """
sources: {{a: {{topic: a, format: string}}, b: {{pattern: "b.*", format: string}}}}
sinks:
  first: {{topic: b1, from: a, format: string}}
  second: {{topic: {target}, from: b, format: string{options}}}
"""


def test_a_sink_may_feed_another_source_but_not_in_a_cycle(tmp_path: Path) -> None:
    assert len(load(written(tmp_path, CHAIN.format(target="c", options=""))).sinks) == 2
    circle = written(tmp_path, CHAIN.format(target="a", options=""))
    assert "b1 is read by the source b ('b.*' matches it), which feeds this sink" in failure(circle)
    # A topic with this name in another cluster is a different one.
    elsewhere = ", options: {kafka.bootstrap.servers: far.away:9092}"
    assert len(load(written(tmp_path, CHAIN.format(target="a", options=elsewhere))).sinks) == 2


def test_directories_are_normalised(tmp_path: Path) -> None:
    text = WHOLE.replace("tables/revenue", "other/../tables//revenue/").replace(
        "checkpoint: here", "checkpoint: ./here/"
    )
    pipeline = load(written(tmp_path, text))
    assert pipeline.sinks[1].target == str(tmp_path / "tables/revenue")
    assert pipeline.checkpoint == str(tmp_path / "here")


def test_invalid_yaml_is_reported_with_its_line(tmp_path: Path) -> None:
    assert ":2: this is not YAML" in failure(written(tmp_path, "name: x\nsources: [a, {"))
    assert "the file is empty" in failure(written(tmp_path, "# nothing\n"))
    assert "must be a mapping of settings" in failure(written(tmp_path, "- a\n- b\n"))


def test_a_missing_file_and_one_of_another_kind_are_named(tmp_path: Path) -> None:
    assert "No such file" in failure(tmp_path / "none.yaml")
    assert "a .yaml or a .py file" in failure(written(tmp_path, "x", "pipeline.toml"))


def test_environment_variables_are_substituted_and_secrets_never_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SERVERS", "kafka:9092")
    monkeypatch.setenv("SECRET", "hunter2")
    text = WHOLE.replace("{mechanism: PLAIN}", "{mechanism: PLAIN, password: '${SECRET}'}")
    pipeline = load(written(tmp_path, text))
    assert pipeline.bootstrap == "kafka:9092"
    assert pipeline.kafka["sasl.password"] == "hunter2"
    assert "hunter2" not in repr(pipeline)
    message = failure(written(tmp_path, text.replace("'${SECRET}'", "['${SECRET}']")))
    assert "kafka.sasl.password" in message
    assert "hunter2" not in message


def test_an_avro_schema_is_read_from_its_file(tmp_path: Path) -> None:
    (tmp_path / "order.avsc").write_text('{"type": "record", "name": "Order", "fields": []}')
    text = """
    sources: {orders: {topic: orders, format: avro, schema_file: order.avsc}}
    sinks: {screen: {console: true}}
    """
    assert '"Order"' in (load(written(tmp_path, text)).sources[0].schema or "")
    assert "cannot read the file" in failure(written(tmp_path, text.replace("order.avsc", "none.avsc")))
    assert "it needs schema_file" in failure(written(tmp_path, text.replace(", schema_file: order.avsc", "")))


def test_overrides_replace_settings_of_the_file(tmp_path: Path) -> None:
    path = written(tmp_path, WHOLE)
    changed = load(path, overrides={"bootstrap": "b:1", "rate_limit": "5", "kafka.sasl.mechanism": "X", "spark.a": "b"})
    assert (changed.bootstrap, changed.rate_limit) == ("b:1", 5)
    assert changed.kafka["sasl.mechanism"] == "X"
    assert changed.spark == {"spark.sql.shuffle.partitions": "2", "spark.a": "b"}
    assert changed.checkpoint == str(tmp_path / "here")
    assert changed.file == path
    assert "has no option 'bootstap'; did you mean bootstrap?" in failure(path, overrides={"bootstap": "b:1"})
