"""Decisions before a query starts: starting offsets of a generation, and the order of rows with one key."""

import json
from dataclasses import replace

import pytest

pytest.importorskip("pyspark")

from moldau.client.record import TopicPartition
from moldau.pipelines.definition import PipelineDefinition, PipelineError, Sink, SinkKind, Source
from moldau.pipelines.planner.sink_writers import upsert_order
from moldau.pipelines.planner.starting_offsets import clamp_offsets, read_starting_offsets, starting_options_for
from moldau.spark.source.offsets import StreamPosition
from moldau.testing import Broker
from support.log_writer import LogWriter, ProducedRecord


class StoredFiles(dict[str, str]):
    """Files by path."""

    def exists(self, path: str) -> bool:
        return path in self

    def read(self, path: str) -> str | None:
        return self.get(path)

    def write(self, path: str, text: str) -> None:
        self[path] = text


def test_stored_offsets_are_used_unless_the_log_has_changed() -> None:
    same, shortened, anew, new, gone = (TopicPartition("t", index) for index in range(5))
    kept = {same: 5, shortened: 5, anew: 5, gone: 5}
    first, last = {same: 0, shortened: 7, anew: 0, new: 0}, {same: 9, shortened: 9, anew: 3, new: 4}
    assert clamp_offsets(kept, first, last) == {same: 5, shortened: 7, anew: 0, new: 0}


def test_starting_offsets_are_read_back() -> None:
    offsets = {TopicPartition("t", 0): 5, TopicPartition("t", 11): 0, TopicPartition("u", 0): 1}
    assert read_starting_offsets(StoredFiles({"f": json.dumps(StreamPosition(offsets).to_json())}), "f") == offsets
    assert read_starting_offsets(StoredFiles({"f": "{}"}), "f") == {}
    assert read_starting_offsets(StoredFiles({}), "f") is None
    with pytest.raises(PipelineError, match="f cannot be read"):
        read_starting_offsets(StoredFiles({"f": "{"}), "f")


def test_all_queries_of_a_generation_start_at_the_same_offsets() -> None:
    with Broker(topics={"t": 2}) as broker:
        written = LogWriter(broker.bootstrap)
        source = Source("s", ("t",), starting="latest")
        pipeline = PipelineDefinition(
            "p", (source,), (), (Sink("out", SinkKind.CONSOLE, view="s"),), bootstrap=broker.bootstrap
        )
        files = StoredFiles()

        def begin(start: str | None = None, *, has_started: bool) -> dict[str, str]:
            return starting_options_for(files, pipeline, source, start, "ck/1", has_started=has_started)

        written.send("t", [b"0"])
        first = begin(has_started=False)
        assert first == {"startingOffsets": '{"t": {"0": 1, "1": 0}}'}
        written.send("t", [b"1", ProducedRecord(b"0", partition=1)])
        assert begin(has_started=True) == first
        # An abandoned generation has no stored offsets.
        assert begin(has_started=False) == {"startingOffsets": '{"t": {"0": 2, "1": 1}}'}
        assert begin("earliest", has_started=True) == {"startingOffsets": "earliest"}


def test_a_topic_created_later_starts_at_its_first_record() -> None:
    with Broker(topics={}) as broker:
        source = Source("s", pattern="t.*", starting="latest")
        pipeline = PipelineDefinition(
            "p", (source,), (), (Sink("out", SinkKind.CONSOLE, view="s"),), bootstrap=broker.bootstrap
        )
        files = StoredFiles()
        found = starting_options_for(files, pipeline, source, None, "ck/1", has_started=False)
        assert found == {"startingOffsets": "latest"}
        written = LogWriter(broker.bootstrap)
        written.create_named("t1")
        written.send("t1", [b"0"])
        found = starting_options_for(files, pipeline, source, None, "ck/1", has_started=True)
        assert found == {"startingOffsets": '{"t1": {"0": 0}}'}


def test_equal_rows_are_ordered_by_offset() -> None:
    sink = Sink("t", SinkKind.DELTA, "d", mode="upsert", key=("id",), order_by=("at",))
    assert upsert_order(sink, ["id", "at", "_offset"]) == ("at", "_offset")
    assert upsert_order(sink, ["id", "at"]) == ("at",)
    assert upsert_order(replace(sink, order_by=()), ["id", "_offset"]) == ("_offset",)
    assert upsert_order(replace(sink, order_by=("_offset", "at")), ["_offset", "at"]) == ("_offset", "at")
