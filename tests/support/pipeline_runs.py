"""Runs of pipelines in tests: a file from a template, produced records, a run to the end, and its output."""

import asyncio
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from moldau.client import Admin, Producer
from moldau.client.admin.types import NewTopic
from moldau.client.record import ConsumerRecord
from moldau.pipelines.definition import PipelineDefinition
from moldau.pipelines.planner.sink_writers import ConsoleBatch
from moldau.pipelines.runtime.progress import Progress, QueryState
from moldau.pipelines.runtime.run import RunOptions, RunOutcome, run
from moldau.pipelines.runtime.state_directory import StateDirectory
from moldau.pipelines.runtime.stop_request import StopRequest
from moldau.pipelines.spec.loader import load
from moldau.pipelines.templates.generator import GeneratedRecord
from support.log_reader import committed_records


class RecordedRun:
    """An observer that stores what it receives."""

    def __init__(self) -> None:
        self.batches: list[Progress] = []
        self.last: Sequence[QueryState] = ()
        self.shown: list[ConsoleBatch] = []

    def step(self, what: str) -> None:
        pass

    def batch(self, progress: Progress) -> None:
        self.batches.append(progress)

    def states(self, states: Sequence[QueryState]) -> None:
        self.last = list(states)

    def rows(self, batch: ConsoleBatch) -> None:
        self.shown.append(batch)


class PipelineRuns:
    """One pipeline with its state directory and broker."""

    def __init__(self, spark: SparkSession, bootstrap: str, directory: Path, text: str) -> None:
        self.spark = spark
        self.bootstrap = bootstrap
        self.directory = directory
        self.file = directory / "pipeline.yaml"
        self.file.write_text(text)
        self.pipeline: PipelineDefinition = load(self.file, overrides={"bootstrap": bootstrap})
        self.state = StateDirectory.of(directory / "state", self.pipeline.name)
        self.recorded = RecordedRun()

    def run(self, stop_request: StopRequest | None = None, **options: Any) -> RunOutcome:
        options.setdefault("available_now", True)
        return run(
            self.pipeline,
            self.state,
            RunOptions(**options),
            stop_request or StopRequest(),
            self.recorded,
            spark=self.spark,
        )

    def run_to_end(self, **options: Any) -> RunOutcome:
        outcome = self.run(**options)
        assert outcome.name == "done", outcome.error
        return outcome


def create_topics(bootstrap: str, topics: dict[str, int]) -> None:
    async def create() -> None:
        async with Admin(bootstrap) as admin:
            for result in (
                await admin.create_topics([NewTopic(name, partitions) for name, partitions in topics.items()])
            ).values():
                if isinstance(result, Exception):
                    raise result

    asyncio.run(create())


def send_all(bootstrap: str, topic: str, records: Iterable[GeneratedRecord]) -> int:
    """Sends all records and returns their number. Raises an error if a record is not delivered."""

    async def sending() -> int:
        async with Producer(bootstrap) as producer:
            deliveries = [await producer.send(topic, each.value, key=each.key) for each in records]
            await producer.flush()
            return len([await each for each in deliveries])

    return asyncio.run(sending())


def read_all(bootstrap: str, topic: str) -> list[ConsumerRecord]:
    """Returns all committed records of a topic, partition by partition."""
    return committed_records(bootstrap, topic)


def read_json(bootstrap: str, topic: str) -> list[dict[str, Any]]:
    return [json.loads(record.value or b"null") for record in read_all(bootstrap, topic)]
