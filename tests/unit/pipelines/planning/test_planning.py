"""What is decided before a query starts: where its generation begins, which of several rows counts."""

from dataclasses import replace

import pytest

pytest.importorskip("pyspark")

from moldau.client.record import TopicPartition
from moldau.pipelines.definition import Pipeline, PipelineError, Sink, SinkKind, Source
from moldau.pipelines.planning.starts import as_json, read_start, settled_start, within
from moldau.pipelines.planning.topic_streams import AS_THE_SOURCES_SAY, Start
from moldau.pipelines.planning.writing import ordering
from moldau.testing import Broker
from support.log_writer import Given, LogWriter


class Kept(dict[str, str]):
    """Files by their paths."""

    def exists(self, path: str) -> bool:
        return path in self

    def read(self, path: str) -> str | None:
        return self.get(path)

    def write(self, path: str, text: str) -> None:
        self[path] = text


def test_kept_offsets_hold_unless_the_log_has_changed_under_them() -> None:
    same, shortened, anew, new, gone = (TopicPartition("t", index) for index in range(5))
    kept = {same: 5, shortened: 5, anew: 5, gone: 5}
    first, last = {same: 0, shortened: 7, anew: 0, new: 0}, {same: 9, shortened: 9, anew: 3, new: 4}
    assert within(kept, first, last) == {same: 5, shortened: 7, anew: 0, new: 0}


def test_where_a_generation_begins_is_read_as_it_was_written() -> None:
    offsets = {TopicPartition("t", 0): 5, TopicPartition("t", 11): 0, TopicPartition("u", 0): 1}
    assert read_start(Kept({"f": as_json(offsets)}), "f") == offsets
    assert read_start(Kept({"f": as_json({})}), "f") == {}
    assert read_start(Kept({}), "f") is None
    with pytest.raises(PipelineError, match="f cannot be read"):
        read_start(Kept({"f": "{"}), "f")


def test_all_queries_of_a_generation_begin_at_the_same_records() -> None:
    with Broker(topics={"t": 2}) as broker:
        written = LogWriter(broker.bootstrap)
        source = Source("s", ("t",), starting="latest")
        pipeline = Pipeline(
            "p", (source,), (), (Sink("out", SinkKind.CONSOLE, view="s"),), bootstrap=broker.bootstrap
        )
        files = Kept()

        def begin(start: Start = AS_THE_SOURCES_SAY, *, has_begun: bool) -> dict[str, str]:
            return settled_start(files, pipeline, source, start, "ck/1", has_begun=has_begun)

        written.send("t", [b"0"])
        first = begin(has_begun=False)
        assert first == {"startingOffsets": '{"t": {"0": 1, "1": 0}}'}
        written.send("t", [b"1", Given(b"0", partition=1)])
        assert begin(has_begun=True) == first
        # One that was given up before it began leaves nothing to go by.
        assert begin(has_begun=False) == {"startingOffsets": '{"t": {"0": 2, "1": 1}}'}
        assert begin(Start("earliest"), has_begun=True) == {"startingOffsets": "earliest"}


def test_a_topic_that_is_to_come_begins_with_its_first_record() -> None:
    with Broker(topics={}) as broker:
        source = Source("s", pattern="t.*", starting="latest")
        pipeline = Pipeline(
            "p", (source,), (), (Sink("out", SinkKind.CONSOLE, view="s"),), bootstrap=broker.bootstrap
        )
        files = Kept()
        found = settled_start(files, pipeline, source, AS_THE_SOURCES_SAY, "ck/1", has_begun=False)
        assert found == {"startingOffsets": "latest"}
        written = LogWriter(broker.bootstrap)
        written.create_named("t1")
        written.send("t1", [b"0"])
        found = settled_start(files, pipeline, source, AS_THE_SOURCES_SAY, "ck/1", has_begun=True)
        assert found == {"startingOffsets": '{"t1": {"0": 0}}'}


def test_of_equal_rows_the_one_that_was_read_last_counts() -> None:
    sink = Sink("t", SinkKind.DELTA, "d", mode="upsert", key=("id",), order_by=("at",))
    assert ordering(sink, ["id", "at", "_offset"]) == ("at", "_offset")
    assert ordering(sink, ["id", "at"]) == ("at",)
    assert ordering(replace(sink, order_by=()), ["id", "_offset"]) == ("_offset",)
    assert ordering(replace(sink, order_by=("_offset", "at")), ["_offset", "at"]) == ("_offset", "at")
