"""`moldau group lag` against Apache Kafka, which samples no lag."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from apache_kafka import ApacheKafka, available
from typer.testing import CliRunner

from moldau.cli.commands import app
from moldau.client import Admin, Producer, TopicPartition

RECORDS = 20
PATIENCE_S = 60


@pytest.fixture(scope="module")
def bootstrap(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    reason = available()
    if reason is not None:
        pytest.skip(f"Apache Kafka is not there: {reason}")
    with ApacheKafka(tmp_path_factory.mktemp("kafka"), {}, heap="512m") as started:
        yield started.bootstrap


async def prepare(bootstrap: str) -> None:
    async with Admin(bootstrap) as admin:
        await admin.create_topic("orders", partitions=2)
        async with Producer(bootstrap) as producer:
            for number in range(2 * RECORDS):
                await producer.send("orders", b"v", partition=number % 2)
        await admin.alter_group_offsets(
            "readers", {TopicPartition("orders", 0): 5, TopicPartition("orders", 1): RECORDS}
        )


def test_lag_is_computed_from_commits_ends_and_timestamps(bootstrap: str) -> None:
    asyncio.run(asyncio.wait_for(prepare(bootstrap), PATIENCE_S))
    arguments = ["group", "lag", "readers", "--json", "--watch", "--count", "2", "--bootstrap", bootstrap]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    rows: list[dict[str, Any]] = [json.loads(line) for line in result.stdout.splitlines()]
    behind, read = rows[-2:]
    assert (behind["committed_offset"], behind["high_watermark"], behind["lag_records"]) == (5, RECORDS, RECORDS - 5)
    assert 0 < behind["lag_ms"] < PATIENCE_S * 1_000
    assert behind["lag_ms"] - rows[0]["lag_ms"] == behind["time_ms"] - rows[0]["time_ms"]
    assert (behind["commit_rate"], behind["produce_rate"], behind["catches_up"]) == (0, 0, False)
    assert (read["lag_records"], read["lag_ms"], read["state"]) == (0, 0, "ok")
