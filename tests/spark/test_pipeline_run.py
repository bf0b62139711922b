"""Runs of a pipeline on real Spark: state on disk, stop, failure and replay."""

import json
import threading
from itertools import count, islice
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from moldau.pipelines.definition import PipelineError
from moldau.pipelines.runtime.progress import QueryStatus, latest_progress, read_lines
from moldau.pipelines.runtime.stop_request import StopRequest
from moldau.pipelines.templates.generator import GeneratedRecord
from moldau.testing import Broker
from support.pipeline_runs import PipelineRuns, create_topics, read_json, send_all

pytestmark = pytest.mark.spark

numbers = count(1)


@pytest.fixture
def topic(broker: Broker) -> str:
    """A topic of this test only; output goes to `<topic>.out`."""
    name = f"numbers-{next(numbers)}"
    create_topics(broker.bootstrap, {name: 2, f"{name}.out": 1})
    return name


def run_generation(runs: PipelineRuns, **options: Any) -> int:
    """Runs the pipeline to the end. Returns the generation that it used."""
    runs.run_to_end(**options)
    record = runs.state.read_run()
    assert record is not None
    return record.generation


def values(*given: int) -> list[GeneratedRecord]:
    return [GeneratedRecord(str(each).encode(), json.dumps({"number": each}).encode()) for each in given]


def pipeline(topic: str, sinks: str, select: str = "SELECT number FROM numbers", more: str = "") -> str:
    return (
        f"name: {topic}\n"
        f"sources:\n  numbers: {{topic: {topic}, schema: number INT}}\n"
        f"transform: {select}\n"
        f"sinks: {sinks}\n{more}\n"
    )


def out(bootstrap: str, topic: str) -> list[int]:
    return sorted(row["number"] for row in read_json(bootstrap, f"{topic}.out"))


def test_a_run_resumes_where_the_last_one_ended_and_reports_progress(
    spark: SparkSession, broker: Broker, topic: str, tmp_path: Path
) -> None:
    runs = PipelineRuns(spark, broker.bootstrap, tmp_path, pipeline(topic, f"{{out: {{topic: {topic}.out}}}}"))
    send_all(broker.bootstrap, topic, values(*range(10)))
    outcome = runs.run_to_end()
    assert [(each.query, each.state, each.rows) for each in outcome.states] == [("out", QueryStatus.DONE, 10)]
    send_all(broker.bootstrap, topic, values(*range(10, 15)))
    outcome = runs.run_to_end()
    assert outcome.states[0].rows == 5
    assert out(broker.bootstrap, topic) == list(range(15))
    record = runs.state.read_run()
    assert record is not None
    assert (record.outcome, record.error, record.generation) == ("done", None, 1)
    assert record.ended is not None
    last = latest_progress(read_lines(runs.state.progress))["out"]
    assert (last.lag, last.query) == (0, "out")
    events = [json.loads(line) for line in read_lines(runs.state.progress)]
    assert [each["event"] for each in events if each["event"] != "batch"] == ["started", "done"] * 2
    assert sum(each["rows"] for each in events if each["event"] == "batch") == 15
    assert (runs.state.checkpoints / "1" / "out").is_dir()


def test_a_stopped_run_finishes_its_batch_and_loses_nothing(
    spark: SparkSession, broker: Broker, topic: str, tmp_path: Path
) -> None:
    runs = PipelineRuns(spark, broker.bootstrap, tmp_path, pipeline(topic, f"{{out: {{topic: {topic}.out}}}}"))
    send_all(broker.bootstrap, topic, values(*range(10)))
    stop_request = StopRequest()

    class Stopping(type(runs.recorded)):  # type: ignore[misc]
        def batch(self, progress: object) -> None:
            stop_request.request()

    runs.recorded = Stopping()
    outcome = runs.run(stop_request, available_now=False)
    assert (outcome.name, outcome.error) == ("stopped", None)
    assert [each.state for each in outcome.states] == [QueryStatus.STOPPED]
    assert not any(query.isActive for query in spark.streams.active)
    assert out(broker.bootstrap, topic) == list(range(10))
    send_all(broker.bootstrap, topic, values(10))
    runs.run_to_end()
    assert out(broker.bootstrap, topic) == list(range(11)), "each once: the batch was finished"


def test_a_running_pipeline_cannot_be_started_again(
    spark: SparkSession, broker: Broker, topic: str, tmp_path: Path
) -> None:
    text = pipeline(topic, f"{{out: {{topic: {topic}.out}}}}")
    runs = PipelineRuns(spark, broker.bootstrap, tmp_path, text)
    refused: list[str] = []
    stop_request = StopRequest()

    class Second(type(runs.recorded)):  # type: ignore[misc]
        def states(self, states: object) -> None:
            if not refused:
                try:
                    runs.run()
                except PipelineError as error:
                    refused.append(str(error))
                stop_request.request()

    runs.recorded = Second()
    assert runs.run(stop_request, available_now=False).name == "stopped"
    assert f"{topic} is already running as process" in refused[0]


def test_a_failed_query_stops_all_and_the_cause_is_one_sentence(
    spark: SparkSession, broker: Broker, topic: str, tmp_path: Path
) -> None:
    text = pipeline(
        topic,
        f"{{good: {{topic: {topic}.out, from: numbers}}, bad: {{topic: {topic}.out}}}}",
        "SELECT 10 DIV number AS number FROM numbers",
    )
    runs = PipelineRuns(spark, broker.bootstrap, tmp_path, text)
    send_all(broker.bootstrap, topic, values(1, 0, 2))
    outcome = runs.run(available_now=False)
    assert outcome.name == "failed"
    assert outcome.error is not None
    assert outcome.error.startswith("bad: Division by zero.")
    assert "\n" not in outcome.error
    assert " at org.apache" not in outcome.error
    states = {each.query: each.state for each in outcome.states}
    assert states == {"good": QueryStatus.STOPPED, "bad": QueryStatus.FAILED}
    assert not spark.streams.active
    record = runs.state.read_run()
    assert record is not None
    assert (record.outcome, record.error) == ("failed", outcome.error)
    known = runs.state.error_log.read_text()
    assert "DIVIDE_BY_ZERO" in known
    assert "at org.apache.spark" in known


def test_a_pipeline_that_cannot_start_reports_why(
    spark: SparkSession, broker: Broker, topic: str, tmp_path: Path
) -> None:
    text = pipeline(topic, f"{{out: {{topic: {topic}.out}}}}", "SELECT numbr FROM numbers")
    outcome = PipelineRuns(spark, broker.bootstrap, tmp_path, text).run()
    assert outcome.name == "failed"
    assert outcome.error is not None
    assert "numbr" in outcome.error
    assert "\n" not in outcome.error


def test_a_replay_is_a_new_generation_and_the_old_one_can_be_resumed(
    spark: SparkSession, broker: Broker, topic: str, tmp_path: Path
) -> None:
    sinks = "{files: {parquet: files}, appended: {delta: appended}, kept: {delta: kept, mode: upsert, key: number}}"
    runs = PipelineRuns(spark, broker.bootstrap, tmp_path, pipeline(topic, sinks))

    def written() -> dict[str, list[int]]:
        tables = {name: DeltaTable(str(tmp_path / name)).to_pyarrow_table() for name in ("appended", "kept")}
        files = {name: spark.read.parquet(str(tmp_path / name)).toArrow() for name in directories}
        return {name: sorted(rows["number"].to_pylist()) for name, rows in {**tables, **files}.items()}

    directories = ["files"]
    send_all(broker.bootstrap, topic, values(1, 2))
    runs.run_to_end()
    assert written() == {name: [1, 2] for name in ("files", "appended", "kept")}
    send_all(broker.bootstrap, topic, values(3))
    assert run_generation(runs, replay_from="earliest") == 2
    directories.append("files.2")
    assert written() == {"appended": [1, 1, 2, 2, 3], "kept": [1, 2, 3], "files": [1, 2], "files.2": [1, 2, 3]}
    send_all(broker.bootstrap, topic, values(4))
    assert run_generation(runs) == 2, "what follows goes on with the new one"
    assert written()["files.2"] == [1, 2, 3, 4]
    assert run_generation(runs, generation=1) == 1
    assert written() == {
        "appended": [1, 1, 2, 2, 3, 3, 4, 4],
        "kept": [1, 2, 3, 4],
        "files": [1, 2, 3, 4],
        "files.2": [1, 2, 3, 4],
    }
    with pytest.raises(PipelineError, match="generation 7 of checkpoints does not exist"):
        runs.run(generation=7)


def test_rows_of_a_long_stream_are_all_counted(spark: SparkSession, broker: Broker, topic: str, tmp_path: Path) -> None:
    text = pipeline(topic, f"{{out: {{topic: {topic}.out}}}}", more="rate_limit: 5")
    runs = PipelineRuns(spark, broker.bootstrap, tmp_path, text)
    send_all(broker.bootstrap, topic, values(*islice(count(), 23)))
    outcome = runs.run_to_end()
    assert outcome.states[0].rows == 23
    assert len(runs.recorded.batches) >= 5
    assert runs.recorded.batches[0].lag == 23 - runs.recorded.batches[0].rows
    assert runs.recorded.batches[-1].lag == 0


def test_a_stop_request_from_another_thread_ends_an_idle_run(
    spark: SparkSession, broker: Broker, topic: str, tmp_path: Path
) -> None:
    text = pipeline(topic, f"{{out: {{topic: {topic}.out}}}}", more="trigger: 1 hour")
    runs = PipelineRuns(spark, broker.bootstrap, tmp_path, text)
    send_all(broker.bootstrap, topic, values(1))
    stop_request = StopRequest()
    has_batch = threading.Event()

    class Telling(type(runs.recorded)):  # type: ignore[misc]
        def batch(self, progress: object) -> None:
            has_batch.set()

    runs.recorded = Telling()
    thread = threading.Thread(target=lambda: has_batch.wait(60) and stop_request.request())
    thread.start()
    outcome = runs.run(stop_request, available_now=False)
    thread.join()
    assert (outcome.name, outcome.states[0].rows) == ("stopped", 1)
