"""The examples and tables of docs/pipelines.md match the code."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

from moldau.pipelines.definition import PipelineDefinition, Sink, Source
from moldau.pipelines.spec.loader import load

PAGE = (Path(__file__).parents[3] / "docs" / "pipelines.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE, flags=re.M | re.S)


def test_the_yaml_file_is_a_pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MOLDAU_BOOTSTRAP", raising=False)
    text = blocks("yaml")[0]
    (tmp_path / "revenue.yaml").write_text(text)
    pipeline = load(tmp_path / "revenue.yaml")
    assert (pipeline.name, pipeline.bootstrap) == ("revenue", "127.0.0.1:9092")
    assert [sink.name for sink in pipeline.sinks] == ["revenue", "table"]


def test_the_sink_of_postgres_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DB_PASSWORD", "sesame")
    (tmp_path / "customers.yaml").write_text("sources: {customers: {topic: customers}}\n" + blocks("yaml")[1])
    (sink,) = load(tmp_path / "customers.yaml").sinks
    assert (sink.target, sink.mode, sink.key) == ("shop.customers", "upsert", ("customer",))
    assert sink.url == "postgresql://app:sesame@db.example.com/shop?sslmode=require"


def test_the_python_file_is_a_pipeline(tmp_path: Path) -> None:
    (tmp_path / "revenue.py").write_text(blocks("python")[0])
    pipeline = load(tmp_path / "revenue.py")
    assert (pipeline.name, pipeline.dead_letter_topic) == ("revenue", "orders.dead")


@pytest.mark.parametrize("kind", [PipelineDefinition, Source, Sink])
def test_the_tables_name_everything_that_can_be_set(kind: type[PipelineDefinition | Source | Sink]) -> None:
    called = {
        "views": "transform",
        "dead_letter_topic": "dead_letters",
        "key_format": "key",
        "kind": "topic",
        "target": "delta",
        "view": "from",
    }
    derived = {"file", "transform"}
    if kind is not PipelineDefinition:
        derived.add("name")
    title = {PipelineDefinition: "for the pipeline", Source: "for a source", Sink: "for a sink"}[kind]
    (table,) = re.findall(rf"^\| {title} \|.*?(?=\n\n)", PAGE, flags=re.M | re.S)
    named = {word for line in table.splitlines() for word in re.findall(r"`(\w+)`", line.split("|")[1])}
    for field in fields(kind):
        if field.name not in derived:
            assert called.get(field.name, field.name) in named, field.name
